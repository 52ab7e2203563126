"""The curves of a cell."""

import itertools

import pytest

from scalestudy.experiments.analysis.measures.cells import gather
from scalestudy.experiments.analysis.measures.metric import ACCURACY
from scalestudy.experiments.report.curves import curves_of
from tests.support.synthetic_studies import study_of
from tests.support.timed_studies import stopped_after
from tests.support.trials import Law


@pytest.mark.parametrize(("status", "ends"), [("at_target", 5), ("stopped", 8)])
def test_where_trainings_stop_at_the_target_a_line_ends_with_half_of_its_seeds(status, ends):
    _, plan, trials = study_of("name: x\ntrain: {epochs: 8}\nsweep: {seed: [0, 1, 2]}", Law(learning=40))
    slow = [{**epoch, "test_accuracy": epoch["test_accuracy"] / 2} for epoch in trials[2]["epochs"]]
    cut = [{**stopped_after(trials[place], count), "status": status} for place, count in enumerate((4, 5))]
    (cell,) = gather(plan, [*cut, {**trials[2], "epochs": slow}], ACCURACY)
    columns = curves_of(cell)
    assert {len(column) for column in columns.values()} == {ends}
    falls = [after < before for before, after in itertools.pairwise(columns["test_accuracy"])]
    assert any(falls) == (status == "stopped")


def test_each_quantity_is_the_median_of_the_seeds_that_have_it():
    _, plan, trials = study_of("name: x\ntrain: {epochs: 3}\nsweep: {seed: [0, 1, 2]}")
    given = {
        "train_loss": [[3.0, 2.0, 1.0], [5.0, None, 3.0], [4.0, 3.0, "nan"]],
        "test_loss": [[3.5, 2.5, 1.5], [None, 9.0, 3.5], [4.5, 3.5, 2.5]],
        "learning_rate": [[0.1, 0.05, 0.0]] * 3,
        "train_seconds": [[1.0, 1.0, 1.0], [2.0, 2.0, 2.0], [3.0, 3.0, None]],
    }
    lines = [
        {
            **trial,
            "epochs": [
                {**epoch, **{key: values[seed][place] for key, values in given.items()}}
                for place, epoch in enumerate(trial["epochs"])
            ],
        }
        for seed, trial in enumerate(trials)
    ]
    (cell,) = gather(plan, lines, ACCURACY)
    columns = curves_of(cell)
    assert columns["epochs"] == [1, 2, 3]
    assert columns["train_loss"] == [4.0, 2.5, 2.0]
    assert columns["test_loss"] == [4.0, 3.5, 2.5]
    assert columns["learning_rate"] == [0.1, 0.05, 0.0]  # a rate of zero is a rate
    assert columns["seconds"] == [2.0, 4.0, 4.5]


def test_what_no_training_measured_is_none_at_each_period():
    _, plan, trials = study_of("name: x\ntrain: {epochs: 2}")
    bare = [{"epoch": epoch["epoch"], "test_accuracy": epoch["test_accuracy"]} for epoch in trials[0]["epochs"]]
    (cell,) = gather(plan, [{**trials[0], "epochs": bare}], ACCURACY)
    columns = curves_of(cell)
    assert None not in columns["test_accuracy"]
    assert all(columns[key] == [None, None] for key in ("train_loss", "test_loss", "learning_rate", "seconds"))
