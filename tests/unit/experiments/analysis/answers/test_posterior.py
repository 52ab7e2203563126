"""The times of cells, estimated together: what moves them, and what does not."""

import copy
from functools import partial

import numpy as np
import pytest

from scalestudy.experiments.analysis.answers.posterior import (
    Learnt,
    Posterior,
    Timed,
    seconds_untried,
    time_untried,
    times_of,
)
from scalestudy.experiments.analysis.measures.cells import combinations, gather
from scalestudy.experiments.analysis.measures.metric import ACCURACY
from scalestudy.experiments.analysis.measures.step_timings import timed_steps
from scalestudy.experiments.analysis.measures.trainings import trainings_of
from tests.support.batch_studies import BatchTruth
from tests.support.batch_summaries import study
from tests.support.timed_studies import packed_study, stopped_after
from tests.support.trials import Law, slow_down

TARGET = 0.8
SIZE = {
    "workers": "[1, 2]",
    "batches": "[128, 256, 512]",
    "rates": "[0.1, 0.2, 0.4]",
    "seeds": "[0, 1, 2]",
    "epochs": 60,
}
CELL = "workers=1 batch=256 lr=0.2"


@pytest.fixture(scope="module")
def known():
    """Plan and trials of a study with 5 % noise over seeds."""
    _, plan, trials = study(BatchTruth(noise=0.05), **SIZE)
    return plan, trials


@pytest.fixture(scope="module")
def usual(known):
    """Its times, seconds by cell."""
    return times(*known)


def halves(plan, trials, target=TARGET, *, pooled=True):
    """The study's cells, the steps to the target and the seconds of a step."""
    cells = gather(plan, trials, ACCURACY)
    learnt = Learnt.of(trainings_of(cells), target, ACCURACY, np.random.default_rng(0), pooled=pooled, confirmed=0.8)
    (combination,) = combinations(cells)
    return cells, learnt, Timed.of(timed_steps(combination))


def estimated(plan, trials, target=TARGET, *, pooled=True):
    """The times of the study's cells."""
    cells, learnt, timed = halves(plan, trials, target, pooled=pooled)
    return None if learnt is None else times_of(cells, learnt, timed)


def times(plan, trials, *, target=TARGET, pooled=True):
    """Seconds by cell."""
    found = estimated(plan, trials, target, pooled=pooled)
    return {} if found is None else dict(zip(found.labels, np.exp(found.mean).tolist(), strict=True))


def changed(trials, change, **params):
    """Trials of which those with these parameters are changed. change: of a copy, in place or to what it returns."""
    made = []
    for trial in copy.deepcopy(trials):
        if all(trial["params"][key] == value for key, value in params.items()):
            trial = change(trial) or trial
        made.append(trial)
    return made


ONE = {"num_gpus": 1, "batch_size": 256, "learning_rate": 0.2}


def test_the_same_records_give_the_same_draws_whatever_their_order(known, usual):
    plan, trials = known
    first, again = (estimated(plan, each, TARGET, pooled=True) for each in (trials, trials))
    assert (first.labels, first.mean.tolist()) == (again.labels, again.mean.tolist())
    assert (first.draws == again.draws).all()
    assert times(plan, trials[::-1]) == pytest.approx(usual)


def test_one_outlying_run_moves_no_cell(known, usual):
    plan, trials = known
    slow = times(plan, changed(trials, partial(slow_down, factor=3.0), **ONE, seed=1))
    for label, seconds in usual.items():
        assert slow[label] == pytest.approx(seconds, rel=0.05)


def test_one_timing_run_of_a_hundred_that_is_far_too_slow_moves_no_cell():
    """A study whose trials ran side by side times each place twice: of these two the slow one does not count."""
    text = (
        "name: x\ntrain: {epochs: 6}\nsweep: {num_gpus: [1, 2, 4, 8, 16], "
        "batch_size: [32, 48, 64, 96, 128, 192, 256, 384, 512, 768], learning_rate: [0.4], seed: [0, 1, 2]}"
    )
    made = packed_study(text, Law(learning=600, noise=0.03))
    assert len(made.timings) == 100
    disturbed = changed(made.timings[40:41], partial(slow_down, factor=3.0))  # the faster of its place's two
    usual, slow = (
        times(made.plan, [*made.trained, *timings], target=0.6)
        for timings in (made.timings, [*made.timings[:40], *disturbed, *made.timings[41:]])
    )
    assert slow == pytest.approx(usual, rel=0.05)
    assert slow != usual


def test_a_place_of_which_every_run_is_slow_is_slow(known, usual):
    plan, trials = known
    slow = times(plan, changed(trials, slow_down, num_gpus=1, batch_size=256))
    assert slow[CELL] / usual[CELL] > 1.5


def in_vain(until):
    """A training that stays below the target for so many epochs."""

    def change(trial):
        for epoch in trial["epochs"]:
            epoch["test_accuracy"] = min(epoch["test_accuracy"], TARGET - 0.01)
        return stopped_after(trial, until)

    return change


def test_a_seed_that_trained_in_vain_delays_the_median_the_more_the_longer_it_trained(known):
    plan, trials = known
    # both num_gpus make the same steps, so that both of their trainings are cut
    one = {"batch_size": 256, "learning_rate": 0.2, "seed": 1}
    less = times(plan, [trial for trial in trials if not _is(trial, **one)])[CELL]
    (early, late, last) = (times(plan, changed(trials, in_vain(until), **one))[CELL] for until in (2, 30, 60))
    assert early == pytest.approx(less, rel=0.02), "it ended before the others arrived, and says nothing"
    assert 1.003 * less < late < last < 1.25 * less, (less, late, last)


def test_a_diverged_seed_of_three_delays_the_median(known):
    plan, trials = known
    lost = changed(
        trials, lambda trial: trial.update(status="diverged", epochs=[]), batch_size=256, learning_rate=0.2, seed=1
    )
    less = [trial for trial in trials if not _is(trial, batch_size=256, learning_rate=0.2, seed=1)]
    # the median of three of which one never comes is the 75th percentile of those that do
    assert times(plan, lost)[CELL] > 1.01 * times(plan, less)[CELL]
    none = changed(trials, lambda trial: trial.update(status="diverged", epochs=[]), batch_size=256, learning_rate=0.2)
    assert CELL not in times(plan, none)


def test_a_cell_of_early_ended_seeds_has_the_time_of_the_one_that_went_on(known):
    plan, trials = known
    cut = changed(trials, lambda trial: stopped_after(trial, 1) if trial["params"]["seed"] else None, **ONE)
    assert times(plan, cut, pooled=False)[CELL] == pytest.approx(times(plan, trials, pooled=False)[CELL], rel=0.1)


def test_the_epochs_of_cells_that_differ_in_workers_alone_cancel(known):
    """Pooled, the ratio of two cells that differ in num_gpus alone is that of their step times."""
    plan, trials = known
    found = estimated(plan, trials, TARGET, pooled=True)
    place = {label: number for number, label in enumerate(found.labels)}
    for batch in (128, 256):
        ratios = [
            found.draws[:, place[f"workers=2 batch={batch} lr={rate}"]]
            - found.draws[:, place[f"workers=1 batch={batch} lr={rate}"]]
            for rate in ("0.1", "0.2")
        ]
        assert ratios[0] == pytest.approx(ratios[1], abs=1e-9), "their epochs cancel, draw by draw"
        assert ratios[0].std() < 0.5 * found.draws[:, place[f"workers=1 batch={batch} lr=0.1"]].std()


def test_the_first_epoch_s_warm_up_is_part_of_the_time(known, usual):
    plan, trials = known

    def warmed_up(trial):
        trial["epochs"][0]["train_seconds"] += 7.0

    slow = times(plan, changed(trials, warmed_up, num_gpus=1))
    for label, seconds in usual.items():
        assert slow[label] == pytest.approx(seconds + (7.0 if label.startswith("workers=1") else 0.0), rel=1e-6)


def test_seeds_that_ran_out_of_memory_delay_the_median_of_their_cell_alone(known, usual):
    plan, trials = known
    lost = changed(trials, lambda trial: trial.update(status="out_of_memory", epochs=[]), **ONE, seed=1)
    slow = times(plan, lost)
    assert slow[CELL] > 1.01 * usual[CELL]
    assert slow["workers=2 batch=256 lr=0.2"] == pytest.approx(usual["workers=2 batch=256 lr=0.2"], rel=0.01)


def test_a_cell_has_the_same_time_asked_as_a_cell_and_asked_as_any_place(known):
    """With a warm-up, and with a seed of three that diverged."""
    plan, trials = known

    def changed_trial(trial):
        trial["epochs"][0]["train_seconds"] += 7.0
        if trial["params"]["seed"] == 1 and trial["params"]["learning_rate"] == 0.2:
            trial.update(status="diverged", epochs=[])

    spoilt = changed(trials, changed_trial, batch_size=256)
    cells, learnt, timed = halves(plan, spoilt)
    found = times_of(cells, learnt, timed)
    for cell in cells:
        place = found.labels.index(cell.label)
        params = cell.batch_size, cell.learning_rate, cell.num_gpus
        seconds = seconds_untried(learnt, timed, *params, across_nodes=False)
        time = time_untried(learnt, timed, *params, across_nodes=False)
        assert seconds == time.value == pytest.approx(np.exp(found.mean[place])), cell.label
        assert time.logs == pytest.approx(found.draws[:, place]), cell.label
        assert learnt.beside(*params).logs == pytest.approx(found.learnt_of([place])[:, 0]), cell.label


def test_timings_in_doubt_stand_for_their_own_cells_alone(known, usual):
    """Beside sound ones they are no repeats, and where there are no others the law does not draw them near."""
    plan, trials = known

    def disturbed(trial):
        slow_down(trial, factor=2.0)
        trial["flags"] = ["shared_node"]

    beside = times(plan, changed(trials, disturbed, num_gpus=1, batch_size=256, seed=1))
    assert beside == pytest.approx(usual, rel=0.02)
    alone = times(plan, changed(trials, disturbed, num_gpus=1, batch_size=256))
    for label, seconds in usual.items():
        slow = 2.0 if label.startswith("workers=1 batch=256") else 1.0
        assert alone[label] == pytest.approx(slow * seconds, rel=0.03), label
    every = times(plan, changed(trials, disturbed))
    assert every == pytest.approx({label: 2 * seconds for label, seconds in usual.items()}, rel=0.01)


def test_copies_of_a_training_on_more_workers_say_no_more_of_the_last_evaluations(known):
    _, trials = known
    alone = [trial for trial in trials if trial["params"]["num_gpus"] == 1]
    shares = []
    for workers in ("[1]", "[1, 2]"):
        spec, plan, _ = study(BatchTruth(noise=0.05), **{**SIZE, "workers": workers})
        seen = trials if workers == "[1, 2]" else alone
        shares.append(Posterior(spec, gather(plan, seen, ACCURACY)).confirmed("", TARGET))
    assert shares[0] == shares[1] < 1


def test_a_training_stopped_as_its_last_evaluation_met_the_target_may_have_arrived(known):
    """It was stopped for being behind, and yet it arrived by the chance that another evaluation would confirm it."""
    plan, trials = known

    def met_last(status):
        def change(trial):
            values = [epoch["test_accuracy"] for epoch in trial["epochs"]]
            first = next(place for place, value in enumerate(values) if value >= TARGET)
            return {**stopped_after(trial, first + 1), "status": status}

        return change

    # one seed, on both numbers of workers: they made the same steps
    one = {"batch_size": 256, "learning_rate": 0.2, "seed": 1}
    stopped, finished = (times(plan, changed(trials, met_last(each), **one)) for each in ("stopped", "finished"))
    assert stopped == pytest.approx(finished)


def test_nothing_known_is_no_cell(known):
    plan, trials = known
    assert times(plan, []) == {}
    assert times(plan, changed(trials, lambda trial: trial.update(status="failed"))) == {}
    assert estimated(plan, trials, 0.999, pooled=True) is None


def _is(trial, **params):
    return all(trial["params"][key] == value for key, value in params.items())
