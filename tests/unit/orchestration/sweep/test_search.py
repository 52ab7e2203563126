"""Planned trials and suggested points, and where a search stands after an interrupted run."""

import json
import logging
from dataclasses import replace

import pytest

from scalestudy.experiments.plan.plan import make_plan
from scalestudy.experiments.study.journal import Entry
from scalestudy.orchestration.groups.events import (
    Ended,
    Reopened,
    Retried,
    Running,
    Suggested,
    TrialError,
    from_plain,
    to_plain,
)
from scalestudy.orchestration.sweep.methods import search_for
from scalestudy.orchestration.tracking.entries import Recorded
from scalestudy.orchestration.tracking.recorder import History
from tests.support.searches import TPE, at_once, ended_event, epoch_event, suggestions
from tests.support.synthetic_studies import spec_of

GRID = "name: x\nsweep: {num_gpus: [1, 2], learning_rate: [0.1, 0.2], seed: [0, 1]}"


def test_a_plan_s_trials_come_in_its_order_without_those_that_have_ended():
    plan = make_plan(spec_of(GRID))
    ids = [trial.trial_id for trial in plan.trials]
    past = [(ids[2], ended_event([0.5])), (ids[0], Running(attempt=1))]
    search = search_for(spec_of(GRID), plan, past)
    given = [search.next() for _ in range(7)]
    assert [each.trial.trial_id for each in given] == [ids[n] for n in (0, 1, 3, 4, 5, 6, 7)]
    assert {each.point for each in given} == {None}
    assert search.next() is None


def test_a_trial_that_was_ended_because_the_study_stopped_is_given_again():
    plan = make_plan(spec_of(GRID))
    first = plan.trials[0].trial_id
    failed = ended_event([0.5], "failed")
    stopped = replace(failed, error=TrialError(kind="stopped", message=""))
    assert search_for(spec_of(GRID), plan, [(first, stopped)]).next().trial.trial_id == first
    lost = replace(failed, error=TrialError(kind="tune_trial", message=""))
    assert search_for(spec_of(GRID), plan, [(first, lost)]).next().trial.trial_id != first


def test_tpe_gives_each_point_all_its_seeds_and_then_the_next():
    journal = at_once(spec_of(TPE))
    suggested = suggestions(journal)
    params = [event.trial.params for event in suggested]
    points = [event.point for event in suggested]
    assert points == sorted(points)
    assert len(suggested) == 2 * len(set(points))
    for first, second in zip(params[::2], params[1::2], strict=True):
        assert (first["seed"], second["seed"]) == (0, 1)
        assert {**first, "seed": 1} == second
    assert len({json.dumps(each) for each in params}) == len(params), "no trial twice"
    assert all(0.001 <= each["learning_rate"] <= 1 for each in params)


def test_tpe_finds_the_better_half_more_often_than_chance():
    """The accuracy peaks at a rate of 0.1; what is learnt after the random start must show."""
    journal = at_once(spec_of(TPE, "search.samples=40"))
    rates = [event.trial.learning_rate for event in suggestions(journal)][::2]
    near = [0.03 < rate < 0.3 for rate in rates]
    assert sum(near[-15:]) >= 11, rates  # by chance a third of them: P(11 of 15 or more) < 0.002


@pytest.mark.parametrize("seed", [0, 1])
def test_a_search_cut_off_anywhere_goes_on_as_if_it_had_not_been(seed):
    """What is in the journal at the cut is all that the next run knows. Cut every fourth event: a trial has five."""
    spec = spec_of(TPE, f"search.seed={seed}")
    undisturbed = at_once(spec)
    assert len(undisturbed) > 60
    for cut in range(seed, len(undisturbed) + 1, 4):
        past = [(trial_id, again(event)) for trial_id, event in undisturbed[:cut]]
        resumed = at_once(spec, past)
        assert suggestions([*past, *resumed]) == suggestions(undisturbed), cut


def again(event):
    """An event as it comes out of the journal."""
    return from_plain(json.loads(json.dumps(to_plain(event))))


def test_another_seed_is_another_search():
    one, two = (at_once(spec_of(TPE, f"search.seed={seed}")) for seed in (0, 1))
    assert suggested(one) != suggested(two)


def suggested(journal):
    return [event.trial.trial_id for event in suggestions(journal)]


def test_a_trial_that_was_running_is_given_first_and_not_suggested_again():
    spec = spec_of(TPE)
    journal = at_once(spec)
    third = [n for n, (_, event) in enumerate(journal) if isinstance(event, Suggested)][2]
    search = search_for(spec, make_plan(spec), journal[: third + 1])
    given = search.next()
    assert (given.trial.trial_id, given.point) == (journal[third][0], None)
    assert search.next().point == 2, "its other seed was not told before the cut"


def test_a_point_that_is_suggested_again_is_not_run_again():
    text = "name: x\nsweep: {learning_rate: [0.01, 0.1, 1], seed: [0]}\nsearch: {method: tpe, samples: 12}"
    journal = at_once(spec_of(text))
    given = suggested(journal)
    assert len(given) == len(set(given)) <= 3
    assert suggestions(journal)[0].point == 1
    for cut in range(len(journal) + 1):
        assert suggested(journal[:cut]) + suggested(at_once(spec_of(text), journal[:cut])) == given


def test_more_samples_go_on_with_the_same_sequence():
    short, long = (at_once(spec_of(TPE, f"search.samples={samples}")) for samples in (12, 16))
    extended = at_once(spec_of(TPE, "search.samples=16"), short)
    assert suggested(short) + suggested(extended) == suggested(long)


def test_points_of_an_earlier_run_that_the_search_would_not_suggest_are_taken_in(caplog):
    """As after an update of Optuna: the study goes on, told of both."""
    other = at_once(spec_of(TPE, "search.seed=9"))
    cut = [n for n, (_, event) in enumerate(other) if isinstance(event, Suggested)][8]
    past = other[: cut + 1]
    with caplog.at_level(logging.WARNING):
        rest = at_once(spec_of(TPE), past)
    assert "another Optuna" in caplog.text
    ended = [trial_id for trial_id, event in [*past, *rest] if isinstance(event, Ended)]
    assert len(ended) == len(set(ended)) == 2 * 14
    assert set(suggested(past)) < set(ended)


def folded(journal):
    """A journal's past as a later run of the study has it."""
    plain = [(trial_id, to_plain(event)) for trial_id, event in journal]
    entries = [Entry(number=n, at=100.0 + n, trial_id=each, event=event) for n, (each, event) in enumerate(plain, 1)]
    return History.of(map(Recorded.of, entries)).past


def test_failed_trials_run_again_and_the_search_goes_on_as_it_would_have(caplog):
    """The failed score counts where it came: else every later point would seem to be another search's."""
    spec = spec_of(TPE, "search.samples=20")
    before = at_once(spec, status_of=lambda trial: "failed" if trial.learning_rate > 0.3 else "finished")
    cut = [n for n, (_, event) in enumerate(before) if isinstance(event, Suggested)][32]
    before = before[:cut]
    failed = [each for each, event in before if isinstance(event, Ended) and event.status == "failed"]
    assert len(failed) >= 3
    reopened = [*before, *((trial_id, Reopened()) for trial_id in failed)]
    with caplog.at_level(logging.WARNING):
        rest = at_once(spec, folded(reopened))
    assert "another Optuna" not in caplog.text
    ended = [trial_id for trial_id, event in rest if isinstance(event, Ended)]
    assert ended[: len(failed)] == failed, "they come first, and once"
    assert len(ended) == len(set(ended))
    assert not set(ended[len(failed) :]) & set(suggested(before))
    assert len({*suggested(before), *ended}) == 2 * 20
    for cut in range(0, len(rest) + 1, 7):
        cut_off = [*reopened, *rest[:cut]]
        assert suggestions([*cut_off, *at_once(spec, folded(cut_off))]) == suggestions([*before, *rest]), cut


def test_a_planned_trial_that_is_reopened_comes_in_the_plan_s_order():
    plan = make_plan(spec_of(GRID))
    ids = [trial.trial_id for trial in plan.trials]
    past = [(ids[n], ended_event([0.5], "failed")) for n in (0, 2, 1)] + [(ids[n], Reopened()) for n in (2, 0)]
    search = search_for(spec_of(GRID), plan, past)
    assert given(search, 7) == [ids[0], *ids[2:]]


@pytest.mark.parametrize("status", ["diverged", "out_of_memory", "failed"])
def test_tpe_avoids_where_trials_give_no_result(status):
    """By chance half of the last fifteen points have two workers; left out of the model, fourteen or more would."""
    spec = spec_of(TPE, "search.samples=40")
    journal = at_once(spec, status_of=lambda trial: status if trial.num_gpus == 2 else "finished")
    sizes = [event.trial.num_gpus for event in suggestions(journal)][::2]
    assert len(sizes) > 35, "a point that is suggested again is not run again"
    assert sizes[:10].count(2) >= 3
    assert sizes[-15:].count(2) <= 5, sizes


ASHA = "name: x\ntrain: {epochs: 9}\nsweep: {learning_rate: [0.1, 0.2, 0.3, 0.4]}\nsearch: {scheduler: asha}"


def test_a_trial_that_was_to_stop_when_the_study_was_cut_off_is_ended_and_not_run():
    spec = spec_of(ASHA)
    plan = make_plan(spec)
    one, two = plan.trials[0].trial_id, plan.trials[1].trial_id
    past = [(one, epoch_event(1, 0.9)), (two, epoch_event(1, 0.1))]
    search = search_for(spec, plan, past)
    assert search.cut_short() == {two: 1}
    search.take(two, ended_event([0.1], "stopped"))
    assert search.cut_short() == {}
    assert [search.next().trial.trial_id for _ in range(3)] == [one, plan.trials[2].trial_id, plan.trials[3].trial_id]


def test_a_trial_that_was_stopped_and_ended_is_not_ended_twice():
    spec = spec_of(ASHA)
    plan = make_plan(spec)
    one, two = plan.trials[0].trial_id, plan.trials[1].trial_id
    past = [(one, epoch_event(1, 0.9)), (two, epoch_event(1, 0.1)), (two, ended_event([0.1], "stopped"))]
    assert search_for(spec, plan, past).cut_short() == {}


def test_without_a_scheduler_no_trial_stops():
    plan = make_plan(spec_of(GRID))
    search = search_for(spec_of(GRID), plan)
    for trial in plan.trials:
        search.take(trial.trial_id, epoch_event(1, 0.1))
        assert not search.stops(trial.trial_id, epoch_event(1, 0.1))


# --- trials that are put off --------------------------------------------------------------------------------------


def put_off(search, trial_id, kind="node_lost"):
    search.take(trial_id, Retried(attempt=1, error=TrialError(kind=kind, message="a node was lost")))
    search.put_off(trial_id)


def given(search, count):
    return [search.next().trial.trial_id for _ in range(count)]


def test_a_trial_that_was_put_off_comes_after_all_others():
    plan = make_plan(spec_of(GRID))
    search = search_for(spec_of(GRID), plan)
    ids = given(search, 2)
    put_off(search, ids[0])
    ids += given(search, 6)
    put_off(search, ids[3])
    assert len(set(ids)) == 8
    assert given(search, 2) == [ids[0], ids[3]]
    assert search.next() is None
    assert not search.is_over, "they run"
    for trial_id in ids:
        search.take(trial_id, ended_event([0.5]))
    assert search.next() is None
    assert search.is_over
    assert search.gave_up is None


def test_a_search_gives_up_when_each_trial_left_was_put_off_three_times_with_none_ended_in_between():
    plan = make_plan(spec_of(GRID))
    search = search_for(spec_of(GRID), plan, [(trial.trial_id, ended_event([0.5])) for trial in plan.trials[3:]])
    first, second, third = given(search, 3)
    for _ in range(2):
        for trial_id in (first, second):
            put_off(search, trial_id)
        assert given(search, 2) == [first, second]
    for trial_id in (first, second):
        put_off(search, trial_id, "group_start")
    assert search.next() is None, "they wait for an end"
    assert not search.is_over
    assert search.gave_up is None, "the third one runs, and may end"
    search.take(third, ended_event([0.5]))
    assert given(search, 2) == [first, second], "one has ended: they are counted anew"
    for _ in range(2):
        for trial_id in (first, second):
            put_off(search, trial_id)
        assert given(search, 2) == [first, second]
    put_off(search, second, "no_room")
    assert search.gave_up is None, "the first one was put off twice, and runs"
    put_off(search, first, "no_room")
    assert search.next() is None
    assert search.is_over
    assert search.gave_up == (
        "each of 2 trials left was put off 3 times, and none ended in between; the last time: no_room: a node was lost"
    )


def test_a_trial_that_was_put_off_and_ends_all_the_same_does_not_come_again():
    """As ASHA stops it, by an epoch of the lost attempt."""
    search = search_for(spec_of(GRID), make_plan(spec_of(GRID)))
    ids = given(search, 8)
    put_off(search, ids[0])
    search.take(ids[0], ended_event([0.5], "stopped"))
    assert search.next() is None


def test_tpe_goes_on_while_a_trial_is_put_off():
    search = search_for(spec_of(TPE), make_plan(spec_of(TPE)))
    first = search.next().trial.trial_id
    put_off(search, first)
    others = []
    while (suggestion := search.next()) is not None and suggestion.trial.trial_id != first:
        others.append(suggestion.trial.trial_id)
        search.take(others[-1], ended_event([0.5]))
    assert suggestion.trial.trial_id == first
    assert len(others) >= 3
