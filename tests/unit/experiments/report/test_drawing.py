"""The ticks of a logarithmic axis."""

import pytest

from scalestudy.experiments.report.drawing import log_ticks


@pytest.mark.parametrize(("low", "high"), [(1.4, 2.8), (0.5, 200), (1.0, 1.05), (3e-5, 7e3), (9.1, 11)])
def test_log_ticks_are_few_and_within(low, high):
    ticks = log_ticks(low, high)
    assert all(low <= tick <= high for tick in ticks)
    assert len(ticks) <= 10
    assert len(ticks) >= 2 or high / low < 1.1
