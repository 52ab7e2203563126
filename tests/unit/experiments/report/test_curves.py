"""The lines of a cell's metric."""

import itertools

import pytest

from scalestudy.experiments.analysis.measures.cells import gather
from scalestudy.experiments.analysis.measures.metric import ACCURACY
from scalestudy.experiments.report.curves import points_by_epoch, points_by_seconds
from tests.support.factorised import stopped_after
from tests.support.synthetic_studies import study_of
from tests.support.trials import Law


@pytest.mark.parametrize(("status", "ends"), [("at_target", 5), ("stopped", 8)])
def test_where_trainings_stop_at_the_target_a_line_ends_with_half_of_its_seeds(status, ends):
    _, plan, trials = study_of("name: x\ntrain: {epochs: 8}\nsweep: {seed: [0, 1, 2]}", Law(learning=40))
    slow = [{**epoch, "test_accuracy": epoch["test_accuracy"] / 2} for epoch in trials[2]["epochs"]]
    cut = [{**stopped_after(trials[place], count), "status": status} for place, count in enumerate((4, 5))]
    (cell,) = gather(plan, [*cut, {**trials[2], "epochs": slow}], ACCURACY)
    for points in (points_by_epoch(cell), points_by_seconds(cell)):
        assert [len(values) for values in points] == [ends, ends]
        falls = [after < before for before, after in itertools.pairwise(points[1])]
        assert any(falls) == (status == "stopped")
