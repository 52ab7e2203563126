"""What a factorised study infers, the cells that were run in full against it, and what it saved."""

import json

import pytest

from scalestudy.experiments.analysis import book_table, recommend, summarise
from scalestudy.experiments.analysis.answers.factorised import held_out_trials
from scalestudy.experiments.analysis.measures.cells import gather
from scalestudy.experiments.analysis.measures.metric import ACCURACY
from scalestudy.experiments.plan.plan import make_plan
from scalestudy.experiments.report import write_report
from scalestudy.experiments.study.folder import StudyFolder
from tests.support.factorised import SMALL, factorised_study, records_of, stopped_after
from tests.support.synthetic_studies import spec_of, study_of, summary_of
from tests.support.trials import Law, make_trials

TEXT = (
    "name: x\ntrain: {epochs: 6}\ntargets: {accuracy: [0.2, 0.3]}\nsearch: {method: factorised}\n"
    "sweep: {num_gpus: [1, 2, 4], batch_size: [32, 128], learning_rate: [0.1, 0.2], seed: [0, 1, 2]}"
)
GRID = TEXT.replace("factorised", "grid")
ASHA = TEXT.replace("{method: factorised}", "{method: factorised, scheduler: asha}")


@pytest.fixture(scope="module")
def study():
    return factorised_study(TEXT)


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
    assert list(by_label(summary["cells"])) == list(by_label(grid["cells"]))
    for label, row in by_label(summary["cells"]).items():
        other = by_label(grid["cells"])[label]
        for key in ("epoch_seconds", "samples_per_second", "test_accuracy", "best_test_accuracy"):
            assert row[key]["value"] == pytest.approx(other[key]["value"])
        assert row["speedup"] == pytest.approx(other["speedup"])
        assert row["step_seconds"] == pytest.approx(other["step_seconds"])
        assert row["test_accuracy"]["n"] == 3
        assert row["device"] is not None


def test_inferred_cells_say_so_and_were_not_run(summary):
    kinds = [row["kind"] for row in summary["cells"]]
    assert (kinds.count("measured"), kinds.count("factorised")) == (4 + 2, 12 - 6)
    for row in summary["cells"]:
        counts = (row["trials"]["planned"], row["trials"]["finished"])
        assert counts == ((0, 0) if row["kind"] == "factorised" else (3, 3))
    assert (summary["trials"]["planned"], summary["trials"]["finished"]) == (12 + 6, 12 + 6)
    assert (summary["trials"]["not_run"], summary["timing_runs"]) == (0, {"runs": 12, "used": 12})
    assert not any(row["flags"] for row in summary["cells"]), "the trainings ran side by side, and are not timed by"


def test_times_to_targets_and_the_recommendation_are_the_grid_s(summary, grid):
    assert len(summary["time_to_target"]) == len(grid["time_to_target"]) == 24
    for row, other in zip(summary["time_to_target"], grid["time_to_target"], strict=True):
        assert (row["label"], row["target"], row["reached"]) == (other["label"], other["target"], other["reached"])
        assert row["seconds"] == (None if other["seconds"] is None else pytest.approx(other["seconds"], rel=1e-3))
    for choice in ("fastest", "cheapest"):  # two and four workers are equally fast
        found, other = summary["recommendation"][choice], grid["recommendation"][choice]
        assert found["seconds"] == pytest.approx(other["seconds"], rel=1e-3)
        assert (found["batch_size"], found["learning_rate"]) == (other["batch_size"], other["learning_rate"])
    rows = {row["label"]: row for row in grid["timings"]}
    for row in summary["timings"]:
        assert row["speedup"] == pytest.approx(rows[row["label"]]["speedup"])
        assert row["device"] is not None


def test_recommend_knows_the_inferred_cells_too(study, summary):
    advice = recommend(study.spec, study.plan, study.trials)
    assert advice["fastest"]["seconds"] == summary["recommendation"]["fastest"]["seconds"]
    assert recommend(study.spec, study.plan, study.trials, max_gpus=2)["fastest"]["num_gpus"] <= 2


def test_held_out_cells_show_no_error(summary):
    part = summary["factorised"]
    assert (part["cells"], part["timings"], len(part["held_out"])) == (12, 12, 2)
    for row in part["held_out"]:
        assert row["target"] == 0.3
        assert row["predicted_seconds"] == pytest.approx(row["measured_seconds"])
        assert row["error"] == pytest.approx(0, abs=1e-9)
        assert by_label(summary["cells"])[row["label"]]["kind"] == "measured"
    assert part["median_error"] == pytest.approx(0, abs=1e-9)


def test_what_it_cost_against_the_grid(study, summary, grid):
    part = summary["factorised"]
    assert part["worker_seconds"] == pytest.approx(summary["cost"]["worker_seconds"])
    assert part["grid_worker_seconds"] == pytest.approx(grid["cost"]["worker_seconds"])
    assert part["saved_by_factorising"] == pytest.approx(1 - part["worker_seconds"] / part["grid_worker_seconds"])
    assert (part["saved_by_asha"], part["why"]) == (None, None)


def test_the_summary_is_strict_json_and_others_have_no_part(summary, grid):
    json.dumps(summary, allow_nan=False)
    assert grid["factorised"] is None
    assert {row["kind"] for row in grid["cells"]} == {"measured"}


# --- where it does not hold, or something is missing ----------------------------------------------------------------


def test_the_error_is_stated(study):
    """Held-out cells that take 10 % longer than timing runs say."""
    slow = []
    for record in study.held_out:
        epochs = [{**epoch, "train_seconds": epoch["train_seconds"] * 1.1} for epoch in record["epochs"]]
        slow.append({**record, "epochs": epochs})
    part = summarise(study.spec, study.plan, [*study.trained, *slow, *study.timings])["factorised"]
    assert [row["error"] for row in part["held_out"]] == pytest.approx([1 / 1.1 - 1] * 2)
    assert part["median_error"] == pytest.approx(1 - 1 / 1.1)


def test_what_asha_saves_is_told_apart():
    """Half of the trainings stop after one of six epochs; the others have spent what they have without it."""
    half = factorised_study(ASHA, change=lambda r: stopped_after(r, 1) if r["params"]["learning_rate"] == 0.1 else r)
    whole, part = factorised_study(TEXT).summary()["factorised"], half.summary()["factorised"]
    assert part["grid_worker_seconds"] == pytest.approx(whole["grid_worker_seconds"])
    assert part["worker_seconds"] < whole["worker_seconds"]
    together = (1 - part["saved_by_factorising"]) * (1 - part["saved_by_asha"])
    assert together == pytest.approx(part["worker_seconds"] / part["grid_worker_seconds"])
    spent = {t["trial_id"]: t["train_seconds"] * t["params"]["num_gpus"] for t in half.trials}
    saved = sum(5 * spent[t["trial_id"]] for t in half.trained if t["status"] == "stopped")
    assert part["saved_by_asha"] == pytest.approx(saved / (saved + sum(spent.values())))
    assert {row["target"] for row in part["held_out"]} == {0.3}, "cells were held out whose training went on"


def test_without_a_timing_run_an_inferred_cell_has_no_time(study):
    lost, *_ = (timing for timing in study.timings if timing["params"]["num_gpus"] == 4)
    trials = [trial for trial in study.trials if not (trial in study.timings and trial["params"] == lost["params"])]
    summary = summarise(study.spec, study.plan, trials)
    batch_size = lost["params"]["batch_size"]
    rows = [r for r in summary["cells"] if (r["params"]["num_gpus"], r["params"]["batch_size"]) == (4, batch_size)]
    inferred = [row for row in rows if row["kind"] == "factorised"]
    assert inferred
    for row in inferred:
        assert row["epoch_seconds"] == {"value": None, "why": "no timing run of its workers and batch size ended well"}
        assert row["step_seconds"]["value"] is None
        assert row["test_accuracy"]["n"] == 3, "that is known all the same"
        times = [each for each in summary["time_to_target"] if each["label"] == row["label"]]
        assert {(each["seconds"], each["n_seeds"]) for each in times} == {(None, 0)}
        assert all("no timing run" in each["why"] for each in times)
    part = summary["factorised"]
    assert (part["timings"], part["grid_worker_seconds"], part["saved_by_factorising"]) == (10, None, None)
    assert "no timing run" in part["why"]
    json.dumps(summary, allow_nan=False)


def test_targets_that_nobody_reached_leave_whole_trainings_to_compare():
    part = factorised_study(TEXT.replace("[0.2, 0.3]", "[0.99]")).summary()["factorised"]
    assert [(row["target"], row["error"]) for row in part["held_out"]] == [(None, pytest.approx(0, abs=1e-9))] * 2
    assert all("the whole of its training" in row["why"] for row in part["held_out"])
    none = factorised_study(TEXT.replace("targets: {accuracy: [0.2, 0.3]}\n", "")).summary()["factorised"]
    assert [row["why"] for row in none["held_out"]] == [None, None]


def test_nothing_was_held_out():
    summary = factorised_study(TEXT.replace("factorised}", "factorised, held_out: 0}")).summary()
    assert (summary["factorised"]["held_out"], summary["factorised"]["median_error"]) == ([], None)


def test_cells_that_were_held_out_are_not_denied_though_nothing_timed_them(study):
    summary = summarise(study.spec, study.plan, [*study.trained, *study.held_out])
    assert [row["error"] for row in summary["factorised"]["held_out"]] == [None, None]


def test_trainings_that_diverged_count_as_they_would_in_the_grid():
    endings = {f"workers=1 batch=32 lr=0.2 seed={seed}": "diverged" for seed in (0, 1, 2)}
    study = factorised_study(TEXT, endings=endings)
    grid_endings = {f"workers={n} batch=32 lr=0.2 seed={seed}": "diverged" for n in (1, 2, 4) for seed in (0, 1, 2)}
    grid = summarise(*study_of(GRID, endings=grid_endings))
    summary = study.summary()
    assert summary["factorised"]["grid_worker_seconds"] == pytest.approx(grid["cost"]["worker_seconds"])
    row, other = (by_label(each["time_to_target"])["workers=4 batch=32 lr=0.2"] for each in (summary, grid))
    assert (row["seconds"], row["reached"]) == (pytest.approx(other["seconds"]), other["reached"])
    assert by_label(summary["cells"])["workers=4 batch=32 lr=0.2"]["epoch_seconds"]["value"] is None


@pytest.mark.parametrize("count", [0, 1, 5, 12])
def test_a_study_that_was_cut_off_gives_what_it_has(count, study):
    spec, plan = study.spec, make_plan(study.spec)
    for trials in (study.trained[:count], [*study.trained, *study.timings[:count]], [*study.timings[:count]]):
        summary = summarise(spec, plan, trials)
        json.dumps(summary, allow_nan=False)
        assert len(summary["cells"]) == 12
        assert summary["factorised"]["cells"] == sum(t["kind"] == "training" for t in trials)
        book_table(summary)


def test_every_training_failed():
    summary = factorised_study(TEXT, endings={"*": "failed"}).summary()
    json.dumps(summary, allow_nan=False)
    assert (summary["factorised"]["held_out"], summary["trials"]["failed"]) == ([], 12)


def test_cells_whose_trainings_ran_alone_are_timed_like_the_others():
    alone = factorised_study(TEXT, flags={}).summary()
    assert {row["timed_apart"] for row in alone["cells"] if row["params"]["num_gpus"] == 1} == {True}


def test_trainings_with_more_workers(grid):
    study = factorised_study(TEXT.replace("factorised}", "factorised, train_on: 4}"))
    summary = study.summary()
    assert summary["recommendation"]["fastest"]["label"] == grid["recommendation"]["fastest"]["label"]
    assert summary["factorised"]["grid_worker_seconds"] == pytest.approx(grid["cost"]["worker_seconds"])
    assert summary["factorised"]["median_error"] == pytest.approx(0, abs=1e-9)


def test_a_cell_borrows_trials_and_does_not_own_them(study):
    cells = gather(study.plan, study.trials, ACCURACY)
    inferred = [cell for cell in cells if cell.inferred]
    assert all(cell.own == () and len(cell.counted) == 3 and cell.planned == 0 for cell in inferred)
    owned = [trial.trial_id for cell in cells for trial in cell.own]
    assert len(owned) == len(set(owned)) == 12 + 6


def test_too_little_memory_is_not_inherited_by_more_workers():
    plain = factorised_study(TEXT)
    train_on = plain.plan.factorised.train_on
    names = [f"workers={train_on} batch=128 lr=0.2 seed={seed}" for seed in (0, 1, 2)]
    for ended in (names, names[:1]):
        study = factorised_study(TEXT, endings=dict.fromkeys(ended, "out_of_memory"))
        rows = {row["label"]: row for row in study.summary()["time_to_target"] if "batch=128 lr=0.2" in row["label"]}
        inferred = [cell for cell in gather(study.plan, study.trials, ACCURACY) if cell.inferred]
        borrowed = [cell for cell in inferred if cell.label in rows]
        assert borrowed
        for cell in borrowed:
            assert (cell.not_lent, rows[cell.label]["n_seeds"]) == (len(ended), 3 - len(ended))
            if len(ended) == 3:
                assert "ran out of memory with fewer workers" in rows[cell.label]["why"]
        assert rows[f"workers={train_on} batch=128 lr=0.2"]["n_seeds"] == 3  # where it was trained it did miss


@pytest.mark.slow
def test_the_report_is_written(tmp_path):
    study = factorised_study(TEXT, Law(learning=130))
    folder = StudyFolder(tmp_path / "x")
    folder.create()
    folder.write_plan(study.plan, "x", spec_of(TEXT).to_yaml())
    for trial in study.trials:
        folder.append_trial(trial)
    text = write_report(folder).read_text()
    assert "their times are products" in text
    assert "workers=4" in text


# --- which cells are held out -----------------------------------------------------------------------------------------


def chosen(text, *overrides, known=(), **keywords):
    spec = spec_of(text, *overrides)
    plan = make_plan(spec)
    return held_out_trials(spec, plan, known, records_of(plan, **keywords))


def cells_of(trials):
    return sorted({(trial.batch_size, trial.learning_rate) for trial in trials})


def test_the_choice_is_the_seed_s_and_every_step_has_its_turn():
    first = chosen(SMALL)
    assert first == chosen(SMALL)
    assert len({trial.batch_size for trial in first}) == 2, "two batch sizes before one of them twice"
    assert len({tuple(cells_of(chosen(SMALL, f"search.seed={seed}"))) for seed in range(12)}) > 1


def test_cells_that_reached_their_targets_come_first():
    """With a rate of 0.1 a batch of 32 reaches 0.5, one of 128 does not, with 0.2 neither misses 0.3."""
    text = SMALL.replace("[0.2]}", "[0.3, 0.5]}").replace("0.1, 0.2]", "0.1]")
    law = Law(learning=60)
    assert law.accuracy(4, 32, 0.1) > 0.5 > law.accuracy(4, 128, 0.1)
    assert cells_of(chosen(text, "search.held_out=1")) == [(32, 0.1)]
    failed = {"workers=1 batch=32 lr=0.1 seed=1": "failed"}
    assert cells_of(chosen(text, endings=failed)) == [(128, 0.1)], "a training that failed says nothing"
    assert chosen(text, endings={"*": "failed"}) == []


def test_without_targets_the_longest_trainings_come_first():
    text = SMALL.replace("targets: {accuracy: [0.2]}\n", "")
    spec = spec_of(text, "search.held_out=1")
    plan = make_plan(spec)
    ran_on = plan.trials[-1].cell
    records = {
        trial.trial_id: record if trial.cell == ran_on else stopped_after(record, 1)
        for trial, record in zip(plan.trials, make_trials(plan, Law()), strict=True)
    }
    assert cells_of(held_out_trials(spec, plan, (), records)) == [(ran_on["batch_size"], ran_on["learning_rate"])]


def test_cells_that_are_held_out_stay_when_the_study_grows():
    before = chosen(SMALL)
    for grown in (SMALL.replace("[0.1, 0.2]", "[0.05, 0.1, 0.2]"), SMALL.replace("[1, 2]", "[1, 2, 4]")):
        assert chosen(grown, known=before) == before
    more = chosen(SMALL, "search.held_out=3", known=before)
    assert set(cells_of(before)) < set(cells_of(more))
    assert len(more) == 6
    seeds = chosen(SMALL.replace("seed: [0, 1]", "seed: [0, 1, 2]"), known=before)
    assert cells_of(seeds) == cells_of(before)
    assert len(seeds) == 6, "the new seed too"


def test_a_study_that_is_not_factorised_holds_nothing_out():
    assert chosen(SMALL.replace("factorised", "grid")) == []
