"""The axis of a share, and labels that keep apart."""

import pytest

from scalestudy.experiments.report.curves import apart, share_limits


@pytest.mark.parametrize(
    ("values", "limits"),
    [
        ([0.2, 0.9], (0.0, 1.0)),
        ([0.76, 0.889], (0.7, 0.9)),
        ([0.985, 0.99], (0.9, 1.0)),
        ([1.0, 1.0], (0.9, 1.0)),
        ([0.5], (0.5, 0.6)),
    ],
)
def test_the_axis_of_a_share(values, limits):
    assert share_limits(values) == pytest.approx(limits)


def test_labels_keep_apart():
    assert apart([0.1, 0.5], 0.06) == [0.1, 0.5]
    assert apart([0.5, 0.51, 0.9], 0.06) == pytest.approx([0.5, 0.56, 0.9])
    assert apart([0.5, 0.5, 0.5], 0.06) == pytest.approx([0.5, 0.56, 0.62])
    assert apart([], 0.06) == []
