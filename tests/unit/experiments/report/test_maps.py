"""The axes of maps of cells."""

from hypothesis import example, given
from hypothesis import strategies as st

from scalestudy.experiments.report.maps import map_axis


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=40), st.integers(1, 12))
@example([1.0000000000000002e-06, 1e-06], 2)
def test_every_value_has_a_column(values, most):
    axis = map_axis("x", values, most)
    assert axis["values"] == sorted(set(values))
    assert len(axis["names"]) <= most
    assert axis["places"] == sorted(axis["places"])
    assert set(axis["places"]) <= set(range(len(axis["names"])))
    if len(axis["values"]) <= most:
        assert axis["places"] == [*range(len(axis["values"]))]


def test_few_values_stand_by_themselves_and_many_in_ranges():
    assert map_axis("learning rate", [0.2, 0.1, 0.2], 10) == {
        "label": "learning rate",
        "names": ["0.1", "0.2"],
        "values": [0.1, 0.2],
        "places": [0, 1],
    }
    # the fifth root of 10**10 is a little more than 100
    many = map_axis("num_gpus", [10**power for power in range(11)], 5)
    assert (many["label"], many["names"]) == ("num_gpus, each a range from", ["1", "100", "10000", "1e+06", "1e+08"])
    assert many["places"] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 4]
    assert map_axis("momentum", [0, 0.5, 0.9], 2)["places"] == [0, 1, 1]
