"""Cells of an adaptive study that ran no training: they have those with other workers, and their own timing runs."""

import json

import pytest

from scalestudy.experiments.analysis import book_table, recommend, summarise
from scalestudy.experiments.analysis.measures.cells import gather
from scalestudy.experiments.analysis.measures.metric import ACCURACY
from tests.support.synthetic_studies import summary_of
from tests.support.timed_studies import lent_study

SWEEP = "num_gpus: [1, 2, 4], batch_size: [32, 128], learning_rate: [0.1, 0.2]"
STUDY = "name: x\ntrain: {epochs: 6}\ntargets: {accuracy: [0.2, 0.3]}\n"
TEXT = f"{STUDY}search: {{method: adaptive}}\nbudget: {{trials: 100}}\nsweep: {{{SWEEP}}}"
GRID = f"{STUDY}sweep: {{{SWEEP}, seed: [0, 1, 2]}}"


@pytest.fixture(scope="module")
def study():
    return lent_study(TEXT)


@pytest.fixture(scope="module")
def summary(study):
    return study.summary()


@pytest.fixture(scope="module")
def grid():
    return summary_of(GRID)


def by_label(rows):
    return {row["label"]: row for row in rows}


# --- the product holds exactly: everything is as in the grid ----------------------------------------------------------


def test_every_cell_of_the_grid_is_there(summary, grid):
    assert by_label(summary["cells"]).keys() == by_label(grid["cells"]).keys()
    for label, row in by_label(summary["cells"]).items():
        other = by_label(grid["cells"])[label]
        for key in ("epoch_seconds", "samples_per_second", "test_accuracy", "best_test_accuracy"):
            assert row[key]["value"] == pytest.approx(other[key]["value"])
        assert row["speedup"] == pytest.approx(other["speedup"])
        assert row["step_seconds"] == pytest.approx(other["step_seconds"])
        assert row["test_accuracy"]["n"] == 3
        assert (row["timed_apart"], row["device"] is None) == (True, False)


def test_cells_with_lent_trials_say_so_and_were_not_run(summary, grid):
    assert {row["kind"] for row in grid["cells"]} == {"measured"}
    for row in summary["cells"]:
        own = row["params"]["num_gpus"] == 1
        counts = (row["trials"]["planned"], row["trials"]["finished"])
        assert (row["kind"], counts) == (("measured", (3, 3)) if own else ("lent", (0, 0)))
    assert (summary["trials"]["planned"], summary["trials"]["finished"], summary["trials"]["not_run"]) == (12, 12, 0)
    assert summary["timing_runs"] == {"runs": 12, "used": 12}
    assert not any(row["flags"] for row in summary["cells"]), "the trainings ran side by side, and are not timed by"


def test_times_to_targets_and_the_fastest_and_cheapest_are_the_grid_s(summary, grid):
    found, others = ({(row["label"], row["target"]): row for row in each["time_to_target"]} for each in (summary, grid))
    assert found.keys() == others.keys()
    assert len(found) == 24
    for key, row in found.items():
        other = others[key]
        assert row["reached"] == other["reached"]
        assert row["seconds"] == (None if other["seconds"] is None else pytest.approx(other["seconds"], rel=1e-3))
    for choice in ("fastest", "cheapest"):  # two and four workers are equally fast
        one, other = summary["recommendation"][choice], grid["recommendation"][choice]
        assert one["seconds"] == pytest.approx(other["seconds"], rel=1e-3)
        assert (one["batch_size"], one["learning_rate"]) == (other["batch_size"], other["learning_rate"])
    rows = by_label(grid["timings"])
    for row in summary["timings"]:
        assert row["speedup"] == pytest.approx(rows[row["label"]]["speedup"])
        assert row["device"] is not None


def test_recommend_knows_these_cells_too(study, summary):
    advice = recommend(study.spec, study.plan, study.trials)
    assert advice["fastest"]["seconds"] == summary["recommendation"]["fastest"]["seconds"]
    assert recommend(study.spec, study.plan, study.trials, max_gpus=2)["fastest"]["num_gpus"] <= 2


def test_trials_that_are_lent_belong_to_one_cell_alone(study):
    cells = gather(study.plan, study.trials, ACCURACY)
    lent = [cell for cell in cells if cell.lent]
    assert len(lent) == 8
    assert all(cell.own == () and len(cell.counted) == 3 and cell.planned == 0 for cell in lent)
    owned = [trial.trial_id for cell in cells for trial in cell.own]
    assert len(owned) == len(set(owned)) == 12


# --- where something is missing -------------------------------------------------------------------------------------


def test_without_a_timing_run_such_a_cell_has_no_seconds_an_epoch(study):
    lost, *_ = (timing for timing in study.timings if timing["params"]["num_gpus"] == 4)
    trials = [trial for trial in study.trials if not (trial in study.timings and trial["params"] == lost["params"])]
    summary = summarise(study.spec, study.plan, trials)
    batch_size = lost["params"]["batch_size"]
    rows = [r for r in summary["cells"] if (r["params"]["num_gpus"], r["params"]["batch_size"]) == (4, batch_size)]
    assert len(rows) == 2
    for row in rows:
        assert row["epoch_seconds"] == {"value": None, "why": "no timing run of its workers and batch size ended well"}
        assert row["step_seconds"]["value"] is None
        assert row["test_accuracy"]["n"] == 3, "that is known all the same"
        times = [each for each in summary["time_to_target"] if each["label"] == row["label"]]
        assert {each["n_seeds"] for each in times} == {0}
        assert all("no timing run" in each["why"] for each in times if each["seconds"] is None)
    json.dumps(summary, allow_nan=False)


def test_trainings_that_diverged_count_as_they_would_in_the_grid():
    names = [f"workers={{}} batch=32 lr=0.2 seed={seed}" for seed in (0, 1, 2)]
    summary = lent_study(TEXT, endings={name.format(1): "diverged" for name in names}).summary()
    grid = summary_of(GRID, endings={name.format(workers): "diverged" for name in names for workers in (1, 2, 4)})
    label = "workers=4 batch=32 lr=0.2"
    row, other = (by_label(each["time_to_target"])[label] for each in (summary, grid))
    assert (row["seconds"], row["reached"]) == (other["seconds"], other["reached"])
    assert by_label(summary["cells"])[label]["epoch_seconds"]["value"] is None


@pytest.mark.parametrize(("trained", "timed"), [(0, 0), (1, 0), (12, 0), (12, 5), (0, 5), (0, 12)])
def test_a_study_that_was_cut_off_gives_what_it_has(trained, timed, study):
    summary = summarise(study.spec, study.plan, [*study.trained[:trained], *study.timings[:timed]])
    json.dumps(summary, allow_nan=False)
    assert len(summary["cells"]) == 12
    book_table(summary)


def test_every_training_failed():
    summary = lent_study(TEXT, endings={"*": "failed"}).summary()
    json.dumps(summary, allow_nan=False)
    assert summary["trials"]["failed"] == 12


def test_cells_whose_trainings_ran_alone_are_timed_like_the_others():
    alone = lent_study(TEXT, flags={}).summary()
    assert {row["timed_apart"] for row in alone["cells"]} == {True}


def test_trainings_with_more_workers_stand_for_fewer(grid):
    summary = lent_study(TEXT, train_with=4).summary()
    assert {row["kind"] for row in summary["cells"] if row["params"]["num_gpus"] < 4} == {"lent"}
    assert summary["recommendation"]["fastest"]["label"] == grid["recommendation"]["fastest"]["label"]


@pytest.mark.parametrize("seeds", [(0, 1, 2), (0,)])
def test_too_little_memory_is_not_lent_to_more_workers(seeds):
    names = [f"workers=1 batch=128 lr=0.2 seed={seed}" for seed in seeds]
    study = lent_study(TEXT, endings=dict.fromkeys(names, "out_of_memory"))
    rows = {row["label"]: row for row in study.summary()["time_to_target"]}
    lent = [cell for cell in gather(study.plan, study.trials, ACCURACY) if cell.lent]
    cells = [cell for cell in lent if cell.label.endswith("batch=128 lr=0.2")]
    assert len(cells) == 2
    for cell in cells:
        assert (cell.not_lent, rows[cell.label]["n_seeds"]) == (len(seeds), 3 - len(seeds))
        if len(seeds) == 3:
            assert "ran out of memory with fewer workers" in rows[cell.label]["why"]
    assert rows["workers=1 batch=128 lr=0.2"]["n_seeds"] == 3  # where it was trained it did miss
