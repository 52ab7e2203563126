"""The pool's limits: what is broken off for taking too long, and what is left alone."""

import pytest

from tests.support.pool_study import STALLED, TRIAL_SECONDS, no_waiting, story

__all__ = ["no_waiting"]
pytestmark = pytest.mark.usefixtures("no_waiting")

TICK = 0.5


async def hanging(study):
    """The workers of the only trial, on all slots, which trains for as long as it is let."""
    return (await study.train("t0", study.slots["a"], "hangs")).workers


async def passes(study, seconds, *, steps=()):
    """Time passes, with looks at the limits in time; the ranks of `steps` train meanwhile."""
    for _ in range(round(seconds / TICK)):
        study.clock.now += TICK
        for worker in steps:
            await study.ray.step(worker)
        if "t0" in study.open:
            await study.follow("t0")
        await study.tick()


# --- two clocks ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [3600.0, -3600.0])
@story(slots={"a": 2}, longest_tick=2 * TICK)
async def test_a_step_of_the_wall_clock_breaks_nothing_off_and_hides_nothing(study, step):
    workers = await hanging(study)
    await passes(study, 5, steps=workers)
    study.wall_step = step
    await passes(study, STALLED / 2, steps=workers)
    assert all(worker.alive for worker in workers)
    for worker in workers:
        worker.frozen = True
    await passes(study, STALLED - 5)
    assert all(worker.alive for worker in workers)
    await passes(study, 10)
    assert not any(worker.alive for worker in workers), "what is frozen is found as soon as ever"


@pytest.mark.parametrize("late", [STALLED + 1, 3600.0])
@story(slots={"a": 1}, longest_tick=2 * TICK)
async def test_a_late_look_breaks_nothing_off(study, late):
    """The pool did not run for a while: it was starved, stopped or suspended, and hears nothing before it looks."""
    workers = await hanging(study)
    await passes(study, STALLED / 2, steps=workers)
    await study.later(late)
    await passes(study, STALLED / 2, steps=workers)
    assert workers[0].alive
    assert not study.pool.requests["t0"].record.failures
    await passes(study, STALLED + 2)
    assert not workers[0].alive


# --- beats: a process that lives, a training that goes on ---------------------------------------------------------


async def beats(study, workers, seconds, count=lambda passed: 0, **beat):
    """Every rank beats every two seconds, until one dies. count: from the seconds since then."""
    for passed in range(2, round(seconds) + 1, 2):
        await passes(study, 2)
        if not all(worker.alive for worker in workers):
            return
        for worker in workers:
            await study.ray.beat(worker, seconds=float(passed), count=count(passed), **beat)


@story(slots={"a": 2}, longest_tick=2 * TICK)
async def test_an_evaluation_of_eight_times_the_limit_is_left_alone_until_its_batches_stand_still(study):
    workers = await hanging(study)
    await beats(study, workers, 8 * STALLED, lambda passed: passed // 50, activity="evaluating", stage=7)
    assert all(worker.alive for worker in workers)
    began = study.clock.now
    await beats(study, workers, 2 * STALLED, lambda passed: 37, activity="evaluating", stage=8)
    assert not any(worker.alive for worker in workers)
    assert study.clock.now - began == pytest.approx(STALLED, abs=4)
    (failure,) = study.pool.requests["t0"].record.failures
    assert failure.message == "no progress for 100 s while evaluating, after 37 batches (attempt 1)"


@story(slots={"a": 1}, longest_tick=2 * TICK)
async def test_what_has_no_counter_may_last_as_long_as_its_trial_and_the_message_names_it(study):
    workers = await hanging(study)
    await beats(study, workers, 2 * TRIAL_SECONDS, activity="compiling", stage=2)
    error = study.ended("t0").error
    assert error.kind == "time_limit"
    assert error.message.startswith(
        "the trial ran longer than limits.trial_minutes, last while compiling, for 1000 s ("
    )


@story(slots={"a": 1}, longest_tick=2 * TICK)
async def test_a_stopped_trial_that_its_ranks_do_not_leave_has_no_more_time_to_compile(study):
    workers = await hanging(study)
    study.pool.stop("t0", 0)
    await beats(study, workers, STALLED + 4, activity="compiling", stage=2)
    assert not workers[0].alive


@story(slots={"a": 1}, longest_tick=2 * TICK)
async def test_a_beat_wakes_nobody(study):
    """A beat of every rank every two seconds must not cost a decision about all groups."""
    workers = await hanging(study)
    study.pool.reconcile = None
    await study.ray.beat(workers[0])
