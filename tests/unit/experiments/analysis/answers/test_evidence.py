"""What a study's records say to the design of an adaptive search."""

import math

import numpy as np
import pytest

from scalestudy.experiments.analysis.answers.beliefs import Place, Recipe, Size
from scalestudy.experiments.analysis.answers.evidence import Evidence, is_confirmation, places_of, rests_short
from scalestudy.experiments.analysis.measures.metric import StudyMetric
from tests.support.looks import LOOP_TEXT, SAMPLES, START_SECONDS, TEXT, Looking, end_of, step_seconds, steps_of
from tests.support.synthetic_studies import spec_of


@pytest.fixture(scope="module")
def whole():
    search = Looking(spec=spec_of(TEXT, "budget.trials=16"))
    search.run()
    return search


def evidence_of(search, lines=None):
    return Looking(
        spec=search.spec, lines=search.lines if lines is None else lines, asked=search.asked
    ).analysis.evidence


def ended_as(line, status, number=90, **params):
    """A line like this one with another end."""
    changed = {**line, "trial_id": f"{number:012}", "status": status, "params": {**line["params"], **params}}
    return {**changed, "look": {**line["look"], "number": number}}


def training(search):
    return next(line for line in search.lines if line["kind"] == "training")


def timing(search):
    return next(line for line in search.lines if line["kind"] == "timing")


# --- what counts --------------------------------------------------------------------------------------------------
def test_confirmations_are_kept_apart_and_never_used_for_beliefs(whole):
    first = next(n for n, line in enumerate(whole.lines) if line["look"]["kind"] == "confirmation")
    before, after = evidence_of(whole, whole.lines[:first]), evidence_of(whole)
    assert len(after.confirmations) == 10
    assert all(map(is_confirmation, after.confirmations))
    assert not any(map(is_confirmation, after.trials))
    assert np.array_equal(before.beliefs.logs, after.beliefs.logs)
    assert {each.seed for each in after.posterior.trainings("")} == {
        each.seed for each in before.posterior.trainings("")
    }


def test_the_evidence_of_more_records_takes_over_what_it_may_and_changes_nothing(whole):
    some = evidence_of(whole, whole.lines[:8])
    alone, after = evidence_of(whole), Evidence.of(whole.spec, whole.plan, whole.analysis.usable, some)
    assert np.array_equal(alone.beliefs.logs, after.beliefs.logs)


# --- which cells may be the answer --------------------------------------------------------------------------------
def left_out(search, *more):
    evidence = evidence_of(search, [*search.lines, *more])
    return set(places_of(search.spec)) - set(evidence.possible)


def test_cells_of_as_many_examples_a_worker_as_one_that_ran_out_of_memory_are_out(whole):
    line = ended_as(training(whole), "out_of_memory", num_gpus=2, batch_size=128)
    assert {place.size for place in left_out(whole, line)} == {(1, 64), (1, 128), (2, 128)}


def test_a_batch_size_and_rate_whose_trainings_fail_twice_are_out_on_all_workers(whole):
    failed = [ended_as(training(whole), "failed", number, batch_size=64, learning_rate=0.4) for number in (90, 91)]
    assert left_out(whole, failed[0]) == set()
    assert left_out(whole, *failed) == {Place(1, 64, 0.4), Place(2, 64, 0.4)}


def test_a_size_of_which_two_timing_runs_fail_or_two_rates_is_out(whole):
    size = {"num_gpus": 2, "batch_size": 64}
    runs = [ended_as(timing(whole), "failed", number, **size) for number in (90, 91)]
    assert left_out(whole, runs[0]) == set()
    assert {place.size for place in left_out(whole, *runs)} == {(2, 64)}
    rates = [
        ended_as(training(whole), "failed", number, learning_rate=rate, **size)
        for number, rate in ((90, 0.1), (91, 0.2))
    ]
    assert {place.size for place in left_out(whole, *rates)} == {(2, 64)}


def test_a_training_that_diverged_leaves_no_cell_out(whole):
    assert left_out(whole, ended_as(training(whole), "diverged")) == set()


# --- what would never arrive --------------------------------------------------------------------------------------
def approach(end, count=12, ratio=0.6, begin=0.1):
    """An accuracy that comes nearer to its end by the same ratio at each evaluation."""
    return [end - (end - begin) * ratio**number for number in range(1, count + 1)]


@pytest.mark.parametrize(
    ("values", "short"),
    [
        (approach(0.79), True),
        (approach(0.9), False),
        (approach(0.82, ratio=0.8), False),  # 0.77 by now
        (approach(0.78, ratio=0.8), True),
        ([0.5] * 12, True),
        ([0.1 + 0.05 * number for number in range(12)], False),  # it does not slow down
        ([0.1 + 0.002 * number**2 for number in range(12)], False),  # it gets faster
        ([*approach(0.5, 4), *[0.4] * 4, *[0.6] * 4], False),  # it rested in between
        ([*(0.1 + 0.05 * number for number in range(11)), 0.3], False),  # its last value is not its best
        (approach(0.79)[:5], False),  # too few evaluations tell nothing
        ([value for pair in zip(approach(0.79), approach(0.6), strict=True) for value in pair], True),  # the best count
    ],
)
def test_a_training_comes_to_rest_short_of_the_target_where_its_approach_ends_below(whole, values, short):
    assert rests_short(values, 0.8, StudyMetric.of(whole.spec.workload)) is short


def resting(search, rate, number, end=0.7, ratio=0.6, status="finished"):
    """A training to its last epoch whose accuracy comes to rest."""
    like = max((line for line in search.lines if line["kind"] == "training"), key=lambda line: len(line["epochs"]))
    values = approach(end, len(like["epochs"]), ratio)
    epochs = [{**epoch, "test_accuracy": value} for epoch, value in zip(like["epochs"], values, strict=True)]
    return {**ended_as(like, status, number, learning_rate=rate), "epochs": epochs}


def test_what_rests_short_with_a_rate_above_one_that_arrived_counts_as_lost(whole):
    """0.4 is above all that arrived. Below them a rate may only be too low; a trial that was cut short says nothing."""
    lines = [line for line in whole.lines if line["params"]["learning_rate"] != 0.4]

    def share(*more):
        beliefs = evidence_of(whole, [*lines, *more]).beliefs
        return {
            recipe.learning_rate: lost for recipe, lost in zip(beliefs.recipes, beliefs.lost.mean(axis=0), strict=True)
        }

    assert not any(share().values())
    above = share(resting(whole, 0.4, 90))
    assert above[0.4] > 0.5 > above[0.05]
    assert not any(share(resting(whole, 0.05, 90)).values())
    assert not any(share(resting(whole, 0.4, 90, status="stopped")).values())
    assert not any(share(resting(whole, 0.4, 90, end=0.95)).values())
    assert not any(share(resting(whole, 0.4, 90, end=0.95, ratio=0.9)).values()), "it has not come that far"


def test_a_training_has_to_meet_the_target_by_the_evaluation_before_its_last(whole):
    """Two in a row meet it: 20 epochs of batch 64 have 460 steps, 437 to the last but one."""
    evidence = evidence_of(whole)
    batches = [recipe.batch_size for recipe in evidence.beliefs.recipes]
    assert dict(zip(batches, np.exp(evidence.beliefs.latest), strict=True))[64] == pytest.approx(437)
    assert evidence.longest(64) == 460
    once = evidence.training_seconds(100.0, 0.1, 64)
    assert evidence.training_seconds(200.0, 0.1, 64) == pytest.approx(once * 223 / 123)
    assert evidence.training_seconds(5000.0, 0.1, 64) == pytest.approx(once * 460 / 123), "it ends at its last"


# --- when a training ends -----------------------------------------------------------------------------------------
def test_a_training_ends_at_the_evaluation_after_its_prediction_s_99th_percentile(whole):
    """At batch 64 an epoch has 23 steps: with draws of 230 and no scatter 10 epochs meet it, and one confirms it."""
    evidence, draws = evidence_of(whole), np.full(4000, math.log(229.0))
    assert evidence.steps_between(64) == math.ceil(SAMPLES / 64) == 23
    assert evidence.evaluations(draws, 0.0, 64) == 11
    later = evidence.evaluations(draws, 0.1, 64)  # 229 · exp(2.326 · 0.1) = 289 steps, 12.6 epochs
    assert later in (13, 14)
    assert evidence.evaluations(draws + math.log(2.0), 0.0, 64) is None, "20 epochs are all"


def test_steps_of_an_epoch_that_is_not_known_are_those_of_as_many_examples(whole):
    """1,437 examples; the last batch of an epoch may be smaller."""
    evidence = evidence_of(whole)
    assert [evidence.steps_between(batch) for batch in (16, 512, 1000, 2048)] == [90, 3, 2, 1]
    assert evidence_of(whole, whole.lines[:5]).steps_between(64) == 1.0, "nothing has trained"


def test_where_the_examples_of_an_epoch_are_not_told_they_follow_from_its_steps(whole):
    lines = [
        {**line, "epochs": [{**epoch, "samples": None} for epoch in line["epochs"]]}
        for line in whole.lines
        if line["kind"] == "timing" or line["params"]["batch_size"] == 64
    ]
    assert evidence_of(whole, lines).steps_between(512) == math.ceil(23 * 64 / 512)


def test_a_loop_may_report_more_often_than_it_has_epochs(whole):
    line = training(whole)
    epochs = line["epochs"] + [{**line["epochs"][-1], "epoch": len(line["epochs"]) + more} for more in range(1, 31)]
    many = {**line, "epochs": epochs}
    longest = evidence_of(whole, [*whole.lines[:5], many]).longest(line["params"]["batch_size"])
    assert longest == len(many["epochs"]) * line["epochs"][0]["steps"]


def test_a_timing_run_may_have_more_epochs_than_a_training(whole):
    """65 steps of 3 an epoch are 22 epochs; a training has 20."""
    lines = []
    for line in whole.lines:
        if line["kind"] == "timing":
            [epoch] = line["epochs"]
            told = {"steps": 3, "samples": None, "train_seconds": 3 * epoch["train_seconds"] / epoch["steps"]}
            line = {**line, "epochs": [{**epoch, **told, "epoch": number} for number in range(1, 31)]}
        lines.append(line)
    assert evidence_of(whole, lines).longest(64) == evidence_of(whole).longest(64) == 460


def test_the_share_that_ended_at_a_limit_is_of_those_that_had_one(whole):
    with_limit = {**training(whole)["look"], "evaluations": 9}
    lines = [
        ended_as({**training(whole), "look": with_limit}, status, n)
        for n, status in enumerate(["stopped", "at_target", "at_target", "diverged"], 90)
    ]
    without = [line for line in whole.lines if "evaluations" not in line["look"]]
    assert evidence_of(whole, without).censored_share == 0.0
    assert evidence_of(whole, [*without, *lines]).censored_share == pytest.approx(1 / 3)


def test_a_training_at_its_limit_is_only_known_to_take_longer():
    """Others came past the same value and took twice as long to the target: for being behind, it would have to."""
    search = Looking(spec=spec_of(TEXT, "train.epochs=30"))
    trial = search.until(lambda trial: trial.look.evaluations is not None)
    recipe = Recipe(trial.batch_size, trial.learning_rate, 1)
    line = end_of(trial, steps=6 * steps_of(*recipe[:2])).to_line(trial)
    behind = {key: value for key, value in line.items() if key != "look"}
    assert line["status"] == "stopped"
    found = {}
    for name, told in (("limited", line), ("behind", behind)):
        evidence = evidence_of(search, [*search.lines, told])
        learnt = evidence.posterior.learnt(evidence.combination, evidence.target)
        found[name] = math.exp(learnt.found.mean[learnt.places[recipe]])
        assert learnt.unseen == 0
    assert found["behind"] > 1.2 * found["limited"]


# --- what a look takes --------------------------------------------------------------------------------------------
def test_a_training_takes_its_steps_and_those_to_one_more_evaluation_times_the_overhead(whole):
    evidence = evidence_of(whole)
    factors = [
        line["wall_seconds"] / line["train_seconds"]
        for line in whole.lines
        if line["kind"] == "training" and line["look"]["kind"] != "confirmation"
    ]
    assert evidence.overhead == pytest.approx(np.median(factors))
    assert evidence.training_seconds(100, 0.1, 64) == pytest.approx(evidence.overhead * 12.3)


def test_a_timing_run_takes_its_steps_or_two_seconds_and_what_comes_beside_them(whole):
    evidence = evidence_of(whole)
    assert evidence.beside_timing == pytest.approx(START_SECONDS)
    warm_up = evidence.spec.train.warm_up_steps
    assert evidence.timing_seconds(1.0, 64) == pytest.approx(max(warm_up, 5) + 60 + START_SECONDS)
    assert evidence.timing_seconds(1e-4, 64) == pytest.approx(max(warm_up, 5) * 1e-4 + 2.0 + START_SECONDS)


def test_a_timing_run_of_a_loop_takes_three_reports(whole):
    evidence = evidence_of(whole)
    evidence.spec = spec_of(LOOP_TEXT)
    assert evidence.timing_seconds(1e-4, 64) == pytest.approx(3 * 23 * 1e-4 + START_SECONDS)


@pytest.mark.parametrize("flags", [[], ["starved"], ["oversubscribed"]])
def test_untimed_sizes_of_workers_whose_timings_are_all_in_doubt_are_believed_as_slow_as_those(whole, flags):
    """Two workers take four times as long as one, by disturbed timings: the law of one worker knows nothing of it."""
    first = {line["params"]["batch_size"]: line for line in whole.lines if line["kind"] == "timing"}
    lines = [line for line in whole.lines if line["kind"] == "training"][:1]
    for number, (count, batch) in enumerate([(1, 32), (1, 64), (1, 128), (2, 32), (2, 128)], start=90):
        seconds = step_seconds(1, batch) * (4 if count == 2 else 1)
        like = first[min(first)]
        (epoch,) = like["epochs"]
        told = {"samples_per_second": batch / seconds, "samples": epoch["steps"] * batch}
        line = ended_as(like, "finished", number, num_gpus=count, batch_size=batch)
        epochs = [{**epoch, **told, "train_seconds": epoch["steps"] * seconds}]
        lines.append({**line, "epochs": epochs, "flags": flags if count == 2 else []})
    evidence = evidence_of(whole, lines)
    assert evidence.timed.seconds(2, 64) == pytest.approx(4 * step_seconds(1, 64), rel=0.3)
    beliefs = evidence.beliefs
    assert beliefs.places[beliefs.best].num_gpus == 1


def test_looks_are_counted_in_whatever_way_they_ended(whole):
    evidence = evidence_of(whole)
    lines = [line for line in whole.lines if line["look"]["kind"] != "confirmation"]
    assert evidence.timings.total() == sum(line["kind"] == "timing" for line in lines)
    assert evidence.timings[Size(2, 64)] == 1
    failed = ended_as(training(whole), "failed", batch_size=128, learning_rate=0.05)
    assert evidence_of(whole, [*whole.lines, failed]).trainings[Recipe(128, 0.05, 1)] == 1


def test_nothing_is_believed_before_something_was_trained_and_timed(whole):
    timings = [line for line in whole.lines if line["kind"] == "timing"]
    trainings = [line for line in whole.lines if line["kind"] == "training"]
    for lines in ([], timings, trainings):
        assert evidence_of(whole, lines).beliefs is None
    assert evidence_of(whole, [*timings, trainings[0]]).beliefs is not None
