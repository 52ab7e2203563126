"""Maps of cells, and their axes of many values."""

from hypothesis import example, given
from hypothesis import strategies as st

from scalestudy.experiments.report.maps import Bins, map_axis


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=40), st.integers(1, 12))
@example([1.0000000000000002e-06, 1e-06], 2)
def test_every_value_has_a_column(values, most):
    bins = Bins.of(values, most)
    assert len(bins.names) == len(bins.starts) <= most
    for value in values:
        column = bins.place(value)
        assert 0 <= column < len(bins.names)
        assert bins.starts[column] <= value * (1 + 1e-9)
    if not bins.ranges:
        assert [bins.place(start) for start in bins.starts] == list(range(len(bins.starts)))


def test_few_values_stand_by_themselves_and_many_in_ranges():
    assert Bins.of([4, 1, 2, 2], 10).names == ["1", "2", "4"]
    many = Bins.of([2**power for power in range(9)], 4)
    assert (many.names, many.ranges) == (["1", "4", "16", "64"], True)
    assert many.axis("num_gpus") == "num_gpus, each a range from"


def test_an_axis_has_the_column_of_each_value():
    assert map_axis("learning rate", [0.2, 0.1, 0.2], 10) == {
        "label": "learning rate",
        "names": ["0.1", "0.2"],
        "values": [0.1, 0.2],
        "places": [0, 1],
    }
    many = map_axis("batch size", [2**power for power in range(20)], 12)
    assert (len(many["names"]), many["label"]) == (12, "batch size, each a range from")
    assert many["places"] == sorted(many["places"])
    assert set(many["places"]) == set(range(12))
