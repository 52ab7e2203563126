"""The pool's limits: what is broken off for taking too long, and what is left alone."""

import pytest

from tests.support.pool_study import (
    STALLED,
    Study,
    no_waiting,
    run,
    until_training,
)

__all__ = ["no_waiting"]
pytestmark = pytest.mark.usefixtures("no_waiting")

TICK = 0.5


async def hanging(size=1, **settings):
    """A study whose only trial trains for as long as it is let."""
    study = Study(slots={"a": size}, longest_tick=2 * TICK, **settings)
    await study.request("t0", size, fate="hangs")
    await until_training(study, "t0")
    (fit,) = study.ray.fits.values()
    return study, fit.workers


async def passes(study, seconds, *, steps=()):
    """Time passes, with looks at the limits in time; the ranks of `steps` train meanwhile."""
    for _ in range(round(seconds / TICK)):
        study.clock.now += TICK
        for worker in steps:
            await study.ray.step(worker)
        await study.follow("t0")
        await study.tick()


# --- two clocks ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [3600.0, -3600.0])
def test_a_step_of_the_wall_clock_breaks_nothing_off_and_hides_nothing(step):
    async def story():
        study, workers = await hanging(2)
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

    run(story)


@pytest.mark.parametrize("late", [STALLED + 1, 3600.0])
def test_a_late_look_breaks_nothing_off(late):
    """The pool did not run for a while: it was starved, stopped or suspended, and hears nothing before it looks."""

    async def story():
        study, workers = await hanging(1)
        await passes(study, STALLED / 2, steps=workers)
        study.clock.now += late
        await study.tick()
        await passes(study, STALLED / 2, steps=workers)
        assert workers[0].alive
        assert not lost_so_far(study)
        await passes(study, STALLED + 2)
        assert not workers[0].alive

    run(story)


def test_a_late_look_releases_no_trial_whose_follower_was_as_late():
    async def story():
        study, workers = await hanging(1)
        study.clock.now += 470.0
        await study.tick()
        assert "t0" in study.pool.requests
        await passes(study, 10, steps=workers)
        assert workers[0].alive

    run(story)


def lost_so_far(study):
    """The attempts that the trial has lost."""
    request = study.pool.requests["t0"]
    return [failure.kind for failure in request.record.failures]
