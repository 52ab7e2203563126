"""Maps of cells, and their axes of many values."""

from hypothesis import example, given
from hypothesis import strategies as st

from scalestudy.experiments.report.maps import Bins, squares


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


def test_a_map_has_a_square_for_each_cell_and_names_for_its_values():
    found = squares([0.1, 0.2, 0.1], [32, 32, 64], x_label="learning rate")
    assert found == {
        "x": "learning rate",
        "y": "batch size, all workers",
        "columns": ["0.1", "0.2"],
        "rows": ["32", "64"],
        "places": [[0, 0], [1, 0], [0, 1]],
    }
    many = squares([1.0] * 40, [2.0 ** (each % 20) for each in range(40)], x_label="workers")
    assert (len(many["rows"]), many["y"]) == (12, "batch size, all workers, each a range from")
    assert {row for _, row in many["places"]} == set(range(12))
