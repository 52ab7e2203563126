"""What `summary.json` says of an adaptive search: its looks, its choice, why it ended, and the confirmation."""

import pytest

from scalestudy.experiments.analysis.answers.adaptive import adaptive_part
from scalestudy.experiments.analysis.answers.analysis import Analysis
from scalestudy.experiments.analysis.answers.next_look import Over
from scalestudy.experiments.analysis.answers.summary import summarise, summary_of
from scalestudy.experiments.analysis.text.answer import answer_lines
from scalestudy.experiments.plan.plan import make_plan
from tests.support.looks import TEXT, Looking, finished_search, step_seconds, steps_of
from tests.support.synthetic_studies import TINY, spec_of, strict
from tests.support.synthetic_studies import summary_of as synthetic_summary


def looking(*overrides, **parts):
    return Looking(spec=spec_of(TEXT, *overrides), **parts)


@pytest.fixture(scope="module")
def whole():
    return finished_search()


@pytest.fixture(scope="module")
def summary(whole):
    return summary_of(whole.analysis, 600.0)


@pytest.fixture(scope="module")
def part(summary):
    return strict(summary)["adaptive"]


def part_of(search, lines=None, wall_seconds=None):
    shown = Looking(spec=search.spec, lines=search.lines if lines is None else lines, asked=search.asked)
    return strict(adaptive_part(shown.analysis, wall_seconds))


def test_a_study_of_another_search_has_no_such_part():
    assert "adaptive" not in synthetic_summary(TINY)


# --- the choice ---------------------------------------------------------------------------------------------------
def test_the_choice_is_what_was_confirmed_with_its_probability_and_its_runner_up(whole, part):
    look = whole.asked[-1].look
    assert (part["ended"], part["why"]) == ("sure", None)
    assert part["chosen"] == look.best
    assert part["probability"] == look.probability >= 0.9
    assert {part["chosen"], part["beside"]} == {"workers=2 batch=32 lr=0.2", "workers=2 batch=64 lr=0.2"}
    assert part["leans_on"] == {"steps": "looks", "seconds": "looks"}


def test_the_recommendation_is_the_search_s_choice_and_fastest_and_cheapest_are_estimates(summary, part):
    recommendation = summary["recommendation"]
    assert recommendation["recommended"]["label"] == part["chosen"]
    times = {row["label"]: row for row in summary["time_to_target"] if row["seconds"] is not None}
    assert recommendation["fastest"]["label"] == min(times, key=lambda name: times[name]["seconds"])
    assert recommendation["cheapest"]["label"] == min(times, key=lambda name: times[name]["worker_seconds"])
    assert recommendation["cheapest"]["num_gpus"] == 1
    assert "untrained" not in recommendation


def test_the_recommendation_follows_the_search_though_another_cell_is_cheaper_and_as_good(whole, part):
    """A factor of two would be tolerated: a grid's recommendation would be the cheapest."""
    spec = spec_of(TEXT, "targets.tolerance=1.0")
    wide = Analysis(spec, whole.plan, whole.lines)
    assert wide.recommendation["recommended"]["label"] == part["chosen"]
    assert wide.recommendation["cheapest"]["label"] != part["chosen"]


def test_a_choice_that_was_not_trained_is_named_beside_what_is_recommended():
    search = looking("budget.trials=1", "train.epochs=100")
    search.run()
    summary = summary_of(search.analysis, 600.0)
    chosen, recommendation = summary["adaptive"]["chosen"], summary["recommendation"]
    trained = {(trial.batch_size, trial.learning_rate) for trial in search.asked if trial.kind == "training"}
    recommended = recommendation["recommended"]
    assert {(recommended["batch_size"], recommended["learning_rate"])} == trained
    assert recommended["label"] != chosen == recommendation["untrained"]
    assert any(f"The search's own choice, {chosen}, was not trained." in line for line in answer_lines(summary))


def test_a_choice_that_has_too_many_workers_for_the_reader_was_trained_all_the_same(whole, part):
    found = whole.analysis.recommend(max_gpus=1)
    assert found["recommended"]["num_gpus"] == 1
    assert "workers=2" in part["chosen"]
    assert "untrained" not in found


def test_the_choice_of_a_search_that_went_on_and_swapped_its_two_cells_is_the_new_one(whole):
    """Both have their fresh seeds already, so that no further confirmation names the new choice."""
    first = whole.kinds().index("confirmation")
    search = Looking(spec=whole.spec, lines=list(whole.lines), asked=whole.asked)
    for number, line in enumerate(search.lines[first:], start=first):
        other = "workers=2 batch=64 lr=0.2" if "batch=32" in line["look"]["best"] else "workers=2 batch=32 lr=0.2"
        search.lines[number] = {**line, "look": {**line["look"], "best": other}}
    analysis = search.analysis
    assert analysis.recommendation["recommended"]["label"] == part_of(search)["chosen"] == analysis.searched


# --- what was looked at -------------------------------------------------------------------------------------------
def test_every_look_is_a_step_with_its_reason_in_order(whole, part):
    steps = part["steps"]
    assert [step["number"] for step in steps] == list(range(1, len(whole.lines) + 1))
    for step, trial, line in zip(steps, whole.asked, whole.lines, strict=True):
        assert step.items() >= trial.look.to_dict().items()
        assert (step["name"], step["status"]) == (trial.name, line["status"])
        assert step["took"] == pytest.approx(line["wall_seconds"] * trial.num_gpus)
    looks = part["looks"]
    assert looks["confirmations"] == 10
    assert sum(looks.values()) == len(steps)


def test_what_was_not_looked_at_is_counted_over_all_stated_cells(whole, part):
    looked = [trial for trial in whole.asked if trial.look.kind != "confirmation"]
    trained = {(t.num_gpus, t.batch_size, t.learning_rate) for t in looked if t.kind == "training"}
    timed = {(t.num_gpus, t.batch_size) for t in looked if t.kind == "timing"}
    assert part["untried"] == {
        "cells": 24 - len(trained),
        "of": 24,
        "steps": 12 - len({place[1:] for place in trained}),
        "of_steps": 12,
        "sizes": 6 - len(timed),
        "of_sizes": 6,
    }
    assert part["budget"] == {"unit": "trials", "amount": 60}


def test_a_choice_that_was_not_looked_at_leans_on_the_law(whole):
    """After the first training, of batch 64 at a rate of 0.1, with and without timing runs of that batch."""
    found = set()
    early = whole.lines[: whole.kinds().index("first") + 1]
    for left_out in ([], [(2, 64)], [(2, 32)], [(2, 32), (2, 64)], [(2, 32), (2, 64), (2, 128)]):
        lines = [line for line in early if line["kind"] == "training" or _size(line) not in left_out]
        part = part_of(whole, lines)
        workers, batch, rate = (word.split("=")[1] for word in part["chosen"].split())
        looked = batch == "64" and rate == "0.1", (int(workers), int(batch)) in map(_size, lines[:-1])
        basis = part["leans_on"]["steps"], part["leans_on"]["seconds"]
        assert basis == tuple("looks" if each else "law" for each in looked)
        found |= {("steps", basis[0]), ("seconds", basis[1])}
    assert len(found) == 4, "each was by looks once, and by a law once"


def _size(line):
    return line["params"]["num_gpus"], line["params"]["batch_size"]


# --- the confirmation ---------------------------------------------------------------------------------------------
def test_fresh_seeds_that_take_what_was_predicted_confirm_it(whole, part):
    """300 steps of 62 ms at batch 32, 200 of 94 ms at 64."""
    rows = {row["label"]: row for row in part["confirmation"]}
    assert list(rows) == [part["chosen"], part["beside"]]
    for batch, name in ((32, "workers=2 batch=32 lr=0.2"), (64, "workers=2 batch=64 lr=0.2")):
        row, true = rows[name], steps_of(batch, 0.2) * step_seconds(2, batch)
        assert (row["seeds"], row["reached"], row["confirmed"]) == (5, 5, True)
        assert row["fresh_seconds"] == pytest.approx(true, rel=0.1)
        assert row["low"] < row["seconds"] < row["high"]
        assert row["seconds"] == pytest.approx(true, rel=0.15)


def slower(line, factor):
    """The line of a confirmation whose steps took so many times as long."""
    if line["look"]["kind"] != "confirmation":
        return line
    epochs = [
        {
            **epoch,
            "train_seconds": epoch["train_seconds"] * factor,
            "samples_per_second": epoch["samples_per_second"] / factor,
        }
        for epoch in line["epochs"]
    ]
    return {**line, "epochs": epochs}


@pytest.mark.parametrize("factor", [0.3, 3.0])
def test_fresh_seeds_outside_the_interval_do_not_confirm_the_choice_and_leave_it(whole, part, factor):
    found = part_of(whole, [slower(line, factor) for line in whole.lines])
    assert [row["confirmed"] for row in found["confirmation"]] == [False, False]
    assert (found["chosen"], found["probability"]) == (part["chosen"], part["probability"])


def test_the_interval_is_that_of_a_median_of_fresh_seeds_so_fewer_are_wider(whole, part):
    first = whole.kinds().index("confirmation")
    one = part_of(whole, whole.lines[: first + 1])["confirmation"]
    assert len(one) == 1
    assert one[0]["seeds"] == 1
    five = part["confirmation"][0]
    assert one[0]["high"] / one[0]["low"] > five["high"] / five["low"]


def test_fresh_seeds_that_diverge_run_out_of_memory_or_miss_the_target_do_not_confirm_it(whole):
    statuses = iter(["diverged", "out_of_memory", "finished"] * 4)
    lines = [
        {**line, "status": next(statuses), "epochs": line["epochs"][:2]}
        if line["look"]["kind"] == "confirmation"
        else line
        for line in whole.lines
    ]
    for row in part_of(whole, lines)["confirmation"]:
        assert (row["seeds"], row["reached"], row["fresh_seconds"], row["confirmed"]) == (5, 0, None, False)


def failing(search, count):
    """The lines, of which the last confirmations failed."""
    kept = len(search.lines) - count
    return [*search.lines[:kept], *({**line, "status": "failed", "epochs": []} for line in search.lines[kept:])]


def test_fresh_seeds_that_fail_are_told_and_those_that_ended_count(whole, part):
    some = part_of(whole, failing(whole, 4))
    assert [(row["seeds"], row["confirmed"]) for row in some["confirmation"]] == [(3, True), (3, True)]
    assert some["why"] == "4 of 10 fresh seeds failed"
    none = part_of(whole, failing(whole, 10))
    assert none["why"] == "10 of 10 fresh seeds failed"
    for row in none["confirmation"]:
        assert (row["seeds"], row["reached"], row["fresh_seconds"], row["confirmed"]) == (5, 0, None, False)


def test_fresh_seeds_of_an_earlier_choice_do_not_make_up_for_those_that_are_missing(whole, part):
    first = whole.kinds().index("confirmation")
    earlier = [
        {**line, "trial_id": line["trial_id"][::-1], "params": {**line["params"], "learning_rate": 0.1}}
        for line in whole.lines[first:]
    ]
    found = part_of(whole, [*whole.lines[:first], *earlier, *whole.lines[first : first + 2]])
    assert found["chosen"] == part["chosen"]
    assert found["why"] is not None


def test_the_interval_is_of_seeds_that_reach_the_target_however_many_are_lost(whole, part):
    """A seed diverged at the rate of the choice: the predicted time is not ten times as long for it."""
    line = next(line for line in whole.lines if line["params"]["learning_rate"] == 0.2 and line["kind"] == "training")
    lost = {**line, "trial_id": "f" * 12, "status": "diverged", "epochs": line["epochs"][:1]}
    lost["look"] = {**line["look"], "number": 90}
    before, after = part["confirmation"], part_of(whole, [*whole.lines, lost])["confirmation"]
    assert [row["high"] for row in after] == pytest.approx([row["high"] for row in before], rel=0.2)


def test_fresh_seconds_are_those_at_the_rate_after_the_warm_up(whole, part):
    """An epoch that took ten times as long, by its warm-up, counts as its examples over their rate."""
    lines = []
    for line in whole.lines:
        first = {**line["epochs"][0], "train_seconds": 10 * line["epochs"][0]["train_seconds"]}
        lines.append({**line, "epochs": [first, *line["epochs"][1:]]} if line["kind"] == "training" else line)
    assert part_of(whole, lines)["confirmation"][0]["fresh_seconds"] == part["confirmation"][0]["fresh_seconds"]


# --- why it ended -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("overrides", "ends", "ended", "why"),
    [
        (["budget.trials=5"], None, "budget", "the budget had no room for the whole confirmation"),
        (["budget.trials=1"], None, "budget", "the budget had no room for the whole confirmation"),
        (["targets.accuracy=[0.99]"], "finished", "unreached", "no training has reached the target"),
        (["budget.trials=1"], "diverged", "budget", "the budget was used before a training had reached the target"),
        (
            ["budget.trials=null", "budget.worker_hours=0.0001"],
            None,
            "budget",
            "the budget was used before a training had reached the target",
        ),
    ],
)
def test_why_the_search_has_no_choice_or_no_confirmation_is_said(overrides, ends, ended, why):
    search = looking(*overrides, ends=lambda trial: ends if trial.kind == "training" else None)
    assert search.run() == Over(why=ended)
    found = part_of(search)
    assert (found["ended"], found["why"]) == (ended, why)
    assert (found["chosen"] is None) == ("reached the target" in why)


def test_a_budget_of_minutes_that_was_used_is_told_by_the_study_s_wall_time():
    search = looking("budget.trials=null", "budget.minutes=1")
    assert (part_of(search, wall_seconds=61)["ended"], part_of(search, wall_seconds=59)["ended"]) == ("budget", None)


def test_a_study_whose_timing_runs_all_failed_says_so():
    search = looking(ends=lambda trial: "failed")
    search.run()
    assert part_of(search)["why"] == "no timing run told what a step takes"


def test_a_study_whose_cells_all_ran_out_of_memory_says_so():
    search = looking(ends=lambda trial: "out_of_memory")
    search.run()
    assert part_of(search)["why"] == "of every cell trials failed or ran out of memory"


def test_a_search_that_was_cut_short_says_so(whole):
    first = whole.kinds().index("confirmation")
    cut = "its looks, or its confirmation, were cut short"
    for count in (first - 2, first + 3):
        found = part_of(whole, whole.lines[:count])
        assert (found["ended"], found["why"]) == (None, cut)
    assert part_of(whole, [])["why"] == "it was cut short before a training had reached the target"


def test_a_larger_budget_that_ended_again_without_a_new_choice_has_ended():
    search = looking("budget.trials=14")
    search.run()
    larger = looking("budget.trials=15", lines=search.lines, asked=search.asked)
    over = larger.run()
    assert part_of(larger)["ended"] == over.why


# --- the rest of the summary --------------------------------------------------------------------------------------
def test_trainings_stand_for_every_num_gpus_and_a_size_that_was_not_timed_has_the_law_s_seconds(whole, summary):
    """(1, 64) was trained and never timed: 200 steps of 148 ms at the best rate."""
    timed = {(trial.num_gpus, trial.batch_size) for trial in whole.asked if trial.kind == "timing"}
    assert (1, 64) not in timed
    rows = {row["label"]: row for row in summary["time_to_target"]}
    trained = {(trial.batch_size, trial.learning_rate) for trial in whole.asked if trial.kind == "training"}
    assert rows["workers=1 batch=64 lr=0.2"]["seconds"] == pytest.approx(200 * 0.148, rel=0.15)
    for batch, rate in trained:
        for workers in (1, 2):
            assert f"workers={workers} batch={batch} lr={rate:g}" in rows
    own = {(trial.num_gpus, trial.batch_size, trial.learning_rate) for trial in whole.asked if trial.kind == "training"}
    lent = {
        tuple(row["params"][key] for key in ("num_gpus", "batch_size", "learning_rate"))
        for row in summary["cells"]
        if row["kind"] == "lent"
    }
    assert lent == {(workers, *recipe) for workers in (1, 2) for recipe in trained} - own


def test_no_planned_trial_is_missing_and_what_diverged_is_told_of_trainings(whole):
    lines = [*whole.lines[:7], {**whole.lines[7], "status": "diverged"}, *whole.lines[8:]]
    found = summary_of(Looking(spec=whole.spec, lines=lines, asked=whole.asked).analysis)
    assert found["trials"]["not_run"] == 0
    count = sum(trial.kind == "training" for trial in whole.asked)
    assert f"Of {count} trainings, 1 diverged." in [caveat["words"] for caveat in found["caveats"]]


def test_trainings_at_their_limit_have_a_caveat_of_their_own():
    search = looking()
    search.end(search.until(lambda trial: trial.look.evaluations is not None), steps=2000)
    words = [caveat["words"] for caveat in summary_of(search.analysis)["caveats"]]
    assert (
        "1 training was stopped where the prediction ended. Of such a one it is only known that it takes longer to the "
        "target."
    ) in words
    assert not any("stopped early" in each for each in words)


def test_a_study_of_which_nothing_ran_has_a_summary():
    spec = spec_of(TEXT)
    part = strict(summarise(spec, make_plan(spec), []))["adaptive"]
    assert (part["chosen"], part["steps"]) == (None, [])
