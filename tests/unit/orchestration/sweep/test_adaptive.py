"""The looks of an adaptive search as the sweep gets them, and where it stands after an interrupted run."""

import json
from dataclasses import replace

import pytest

from scalestudy.experiments.analysis.answers.next_look import Over, Room, needs_quiet
from scalestudy.experiments.plan.plan import make_plan
from scalestudy.orchestration.groups.events import (
    Ended,
    EpochDone,
    Reopened,
    Retried,
    Running,
    Suggested,
    TrialError,
    from_plain,
    to_plain,
)
from scalestudy.orchestration.sweep import adaptive
from scalestudy.orchestration.sweep.methods import search_for
from tests.support.looks import TEXT, end_of
from tests.support.searches import epoch_event
from tests.support.synthetic_studies import spec_of

SPEC = spec_of(TEXT, "budget.trials=17")
ONE, THREE = Room(workers=1, start_seconds=3.0), Room(workers=3, start_seconds=3.0)


class Played:
    """A search whose looks end as `end_of` says, with the journal of it. past: of earlier runs."""

    def __init__(self, past=(), room=ONE, spec=SPEC):
        self.journal, self.over = list(past), []
        self.search = search_for(spec, make_plan(spec), past, room=lambda: room, over=self.over.append)

    def begin(self):
        """Begin the next look; None: there is none now."""
        suggestion = self.search.next()
        if suggestion is None:
            return None
        trial, point = suggestion
        if point is not None:
            self.take(trial, Suggested(trial=trial, point=point))
        self.take(trial, Running(attempt=1))
        return trial

    def end(self, trial, status=None):
        """Train a look to its end."""
        ended = end_of(trial, status)
        for record in ended.epochs:
            self.take(trial, EpochDone(record=record))
        self.take(trial, ended)

    def take(self, trial, event):
        self.journal.append((trial.trial_id, from_plain(json.loads(json.dumps(to_plain(event))))))
        self.search.take(*self.journal[-1])
        return self.search.stops(*self.journal[-1])

    def run(self):
        """Run one look after another to the end."""
        while (trial := self.begin()) is not None:
            self.end(trial)
        assert self.search.is_over
        return self


def suggested(journal):
    return [event for _, event in journal if isinstance(event, Suggested)]


def ends(journal):
    return [trial_id for trial_id, event in journal if isinstance(event, Ended)]


@pytest.fixture(scope="module")
def whole():
    """A search that ran to its end."""
    return Played().run()


def until_training(whole, count):
    """The journal up to where the search has trained so often, with nothing running."""
    trained = [each.trial.trial_id for each in suggested(whole.journal) if each.trial.look.kind == "training"][count]
    return whole.journal[: next(n for n, (trial_id, _) in enumerate(whole.journal) if trial_id == trained)]


# --- one run ------------------------------------------------------------------------------------------------------
def test_each_look_comes_with_its_number_and_why_looking_ended_is_told_once(whole):
    asked = suggested(whole.journal)
    assert [event.point for event in asked] == [event.trial.look.number for event in asked]
    assert [event.point for event in asked] == list(range(1, len(asked) + 1))
    assert whole.over == [Over(why="budget")]
    assert ends(whole.journal) == [event.trial.trial_id for event in asked], "each once"


def test_nothing_comes_beside_a_look_whose_seconds_count():
    played = Played(room=THREE)
    timing = played.begin()
    assert needs_quiet(timing)
    assert played.begin() is None
    assert not played.search.is_over


def test_trainings_come_side_by_side(whole):
    played = Played(until_training(whole, 1), room=THREE)
    begun = [played.begin() for _ in range(3)]
    assert all(begun)
    assert played.begin() is None


def test_a_look_is_decided_once_for_the_same_ends_and_the_same_workers(whole, monkeypatch):
    decisions, decide = [], adaptive.decide
    monkeypatch.setattr(adaptive, "decide", lambda *given: decisions.append(given) or decide(*given))
    room = [ONE]
    played = Played(until_training(whole, 1))
    played.search._source._room = lambda: room[0]
    played.begin()
    for _ in range(5):
        assert played.begin() is None
    assert len(decisions) == 2, "one for the look, one to wait"
    room[0] = THREE
    assert played.begin() is not None


# --- later runs ---------------------------------------------------------------------------------------------------
def test_a_search_cut_off_anywhere_goes_on_with_the_same_look(whole):
    """Between a decision and its trial, in the middle of the trial, and between its end and the next decision."""
    cuts = [n for n, (_, event) in enumerate(whole.journal) if isinstance(event, Suggested | Running | Ended)]
    for cut in [*cuts[::4], 1, 2, len(whole.journal) - 1]:
        past = whole.journal[:cut]
        played = Played(past)
        trial = played.begin()
        known = {event.trial.trial_id for event in suggested(past)}
        unfinished = known - set(ends(past))
        assert len(suggested(played.journal)) == len(known) + (not unfinished), "what was decided is not decided again"
        asked = suggested(whole.journal)
        assert trial == asked[len(ends(past))].trial, cut


def test_a_search_cut_off_twice_comes_to_the_same_end_with_nothing_lost_and_nothing_twice(whole):
    third = len(whole.journal) // 3
    first = Played(whole.journal[:third])
    first.end(first.begin())
    again = Played(first.journal[:-1]).run()
    assert suggested(again.journal) == suggested(whole.journal)
    assert ends(again.journal) == ends(whole.journal)
    assert again.over == whole.over


def test_looks_that_ran_side_by_side_are_given_again_and_then_the_same_one_follows(whole):
    played = Played(until_training(whole, 1), room=THREE)
    running = [played.begin() for _ in range(3)]
    resumed = Played(played.journal, room=THREE)
    assert [resumed.begin() for _ in range(3)] == running
    assert resumed.begin() is None
    for each in (played, resumed):
        each.end(running[1])
    assert resumed.begin() == played.begin()


def test_a_row_of_looks_that_was_begun_goes_on_in_a_later_run(whole):
    past = until_training(whole, 1)
    last = next(n for n in reversed(range(len(past))) if isinstance(past[n][1], Suggested))
    begun = past[last][1].trial
    row = replace(begun, look=replace(begun.look, row=3))
    past = [*past[:last], (row.trial_id, Suggested(trial=row, point=row.look.number)), *past[last + 1 :]]
    played = Played(past)
    for left in (2, 1):
        trial = played.begin()
        assert (trial.batch_size, trial.learning_rate) == (begun.batch_size, begun.learning_rate)
        assert trial.look.row == left
        played.end(trial)
        played = Played(played.journal)


def test_a_search_that_is_over_asks_for_nothing_more(whole):
    played = Played(whole.journal)
    assert played.begin() is None
    assert played.search.is_over
    assert played.over == [Over(why="budget")]


def test_a_failed_look_that_is_reopened_comes_first_and_once(whole):
    before = until_training(whole, 1)
    played = Played(before)
    failed = played.begin()
    played.end(failed, "failed")
    following = played.begin()
    played.end(following)
    reopened = [*(each for each in played.journal if not _is_epoch_of(each, failed)), (failed.trial_id, Reopened())]
    again = Played(reopened)
    assert again.begin() == failed
    assert again.begin() is None, "it runs"
    again.end(failed)
    assert again.begin().look.number == following.look.number + 1


def _is_epoch_of(entry, trial):
    return entry[0] == trial.trial_id and isinstance(entry[1], EpochDone | Running)


def test_a_reopened_timing_and_a_reopened_training_do_not_run_side_by_side(whole):
    played = Played(room=THREE)
    timing = played.begin()
    played.end(timing, "failed")
    while (trial := played.begin()).kind == "timing":
        played.end(trial)
    played.end(trial, "failed")
    for first, second in ((timing, trial), (trial, timing)):
        past = [*played.journal, (first.trial_id, Reopened()), (second.trial_id, Reopened())]
        again = Played(past, room=THREE)
        assert again.begin() == first
        assert again.begin() is None
        again.end(first)
        assert again.begin() == second


# --- looks that are put off ---------------------------------------------------------------------------------------
def put_off(played, trial):
    error = TrialError(kind="node_lost", message="a node was lost")
    played.take(trial, Retried(attempt=1, error=error))
    played.search.put_off(trial.trial_id)


def test_a_timing_that_is_put_off_comes_again_before_anything_else():
    played = Played(room=THREE)
    timing = played.begin()
    put_off(played, timing)
    assert played.begin() == timing
    assert played.begin() is None
    assert len(suggested(played.journal)) == 1


def test_a_training_that_is_put_off_comes_again_and_the_search_ends_as_it_would(whole):
    played = Played(until_training(whole, 1))
    trial = played.begin()
    put_off(played, trial)
    assert played.begin() == trial, "one worker: nothing fits beside it"
    played.end(trial)
    following = played.begin()
    assert following == suggested(whole.journal)[trial.look.number].trial


def test_a_search_gives_up_on_a_look_that_is_put_off_three_times():
    played = Played(room=THREE)
    for _ in range(3):
        timing = played.begin()
        put_off(played, timing)
    assert played.begin() is None
    assert played.search.is_over
    assert "each of 1 trial left was put off 3 times" in played.search.gave_up
    assert played.over == [], "looking has not ended: a later run goes on"
    assert Played(played.journal).begin() == timing


# --- limits -------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def limited(whole):
    """A look with a limit, and the journal up to it."""
    played = Played(spec=spec_of(TEXT))
    while (trial := played.begin()).look.evaluations is None:
        played.end(trial)
    return trial, played.journal


def at_its_limit(limited, values):
    trial, journal = limited
    played = Played(journal, spec=spec_of(TEXT))
    assert played.begin() == trial
    first = trial.look.evaluations - len(values) + 1
    told = [played.take(trial, epoch_event(number, 0.5)) for number in range(1, first)]
    return played, told + [played.take(trial, epoch_event(n, value)) for n, value in enumerate(values, start=first)]


def test_a_training_stops_at_its_limit_and_not_before(limited):
    trial, _ = limited
    played, stops = at_its_limit(limited, [0.79])
    assert stops == [False] * (trial.look.evaluations - 1) + [True]
    assert played.search.cut_short() == {trial.trial_id: trial.look.evaluations}
    played.take(trial, end_of(trial, "failed"))
    assert played.search.cut_short() == {}


def test_a_training_that_has_reached_its_target_by_its_limit_ends_by_itself(limited):
    _, stops = at_its_limit(limited, [0.81, 0.82])
    assert stops[-1] is False


def test_a_training_that_met_the_target_only_at_its_limit_stops_there(limited):
    _, stops = at_its_limit(limited, [0.79, 0.81])
    assert stops[-1] is True


def test_a_training_that_was_to_stop_as_the_study_was_cut_off_is_stopped_in_the_next_run(limited):
    trial, _ = limited
    played, _ = at_its_limit(limited, [0.79])
    resumed = Played(played.journal, spec=spec_of(TEXT))
    assert resumed.search.cut_short() == {trial.trial_id: trial.look.evaluations}


def test_a_training_without_a_limit_goes_to_its_end(whole):
    first = next(event.trial for event in suggested(whole.journal) if event.trial.look.kind == "first")
    rule = adaptive.LookLimits(SPEC)
    assert not any(rule.stops(first, epoch_event(number, 0.1).record) for number in range(1, 21))
