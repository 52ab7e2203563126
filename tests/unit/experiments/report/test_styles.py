"""Which cells have colours."""

from scalestudy.experiments.report.styles import MOST_CELLS, Styles
from tests.support.rich_study import rich_cells, rich_summary


def test_of_many_cells_the_recommended_have_colours_and_are_drawn():
    summary, cells = rich_summary(), rich_cells()
    styles = Styles.of(summary)
    assert styles.by_cell
    drawn = styles.most_important(cells)
    assert len(drawn) == MOST_CELLS < len(cells)
    labels = {cell.label for cell in drawn}
    for role in ("recommended", "fastest", "cheapest", "best_accuracy"):
        choice = summary["recommendation"][role]
        assert choice["label"] in labels
        assert not styles.is_grey(choice["params"])
    assert len({styles.colour(params) for params in (cell.params for cell in drawn)}) <= 7
