"""The pool as an actor: long polls that wait for an answer."""

import asyncio

import pytest

from scalestudy.orchestration.groups import actor
from scalestudy.orchestration.groups.events import Beat, Ended
from scalestudy.orchestration.groups.model import EndGroup, Turn
from tests.support.pool_study import (
    Study,
    no_waiting,
    order_of,
    run,
    story,
    until_epoch,
    until_training,
)

__all__ = ["no_waiting"]
pytestmark = pytest.mark.usefixtures("no_waiting")


def test_close_answers_everybody_at_once(monkeypatch):
    monkeypatch.setattr(actor, "POLL_SECONDS", 1_000)

    async def scenario():
        study = Study(slots={"a": 1})
        await study.request("t0")
        await study.ray.driver()
        fit = study.fit
        await study.ray.step(fit.workers[0])
        rank = asyncio.ensure_future(study.actor.next_trial(fit.group_id, fit.workers[0].incarnation, 1))
        await study.actor.events("t0", study.leases["t0"], 0)
        running = asyncio.ensure_future(study.actor.events("t0", study.leases["t0"], 1))
        lease = await study.actor.request(order_of("t1"))
        waiting = asyncio.ensure_future(study.actor.events("t1", lease, 0))
        driver = asyncio.ensure_future(study.actor.next_orders())
        await driver  # how long the start took
        driver = asyncio.ensure_future(study.actor.next_orders())
        await asyncio.sleep(0.01)
        assert not any(task.done() for task in (rank, running, waiting, driver))
        await study.actor.close()
        for task in (running, waiting):
            (ended,) = await asyncio.wait_for(task, 5)
            assert isinstance(ended, Ended)
            assert ended.error.kind == "stopped"
            assert not ended.is_final
        assert await asyncio.wait_for(rank, 5) == EndGroup()
        assert await asyncio.wait_for(driver, 5) is None

    run(scenario)


@story(slots={"a": 1})
async def test_stopping_twice_gives_the_same_end(study):
    await study.request("t0")
    await until_epoch(study, "t0", 1)
    first = await study.actor.stop("t0", 1)
    study.clock.now += 5
    assert await study.actor.stop("t0", 1) == first
    assert await study.actor.events("t0", study.leases["t0"], 99) == [first]
    await study.stop("t0", 1)
    assert await study.actor.stop("t0", 1) is None


@pytest.mark.parametrize("epoch", [1, 2])
@story(slots={"a": 1})
async def test_a_trial_that_was_put_off_is_stopped_at_once_even_after_its_last_epoch(study, epoch):
    """No workers have it, so none would bring its end."""
    await study.request("t0", epochs=2)
    await until_epoch(study, "t0", 2)
    await study.ray.lose_node("a")
    assert study.pool.requests["t0"].put_off
    ended = await asyncio.wait_for(study.actor.stop("t0", epoch), 5)
    assert (ended.status, [record.epoch for record in ended.epochs]) == ("stopped", list(range(1, epoch + 1)))
    await study.follow_anew("t0")
    assert study.pool.waiting == [], "it has ended"
    study.open.remove("t0")


@story(slots={"a": 1})
async def test_a_trial_that_loses_its_workers_while_it_is_left_to_finish_is_stopped(study):
    await study.request("t0", epochs=2)
    await until_epoch(study, "t0", 2)
    stopping = asyncio.ensure_future(study.actor.stop("t0", 2))
    await study.tick()
    assert not stopping.done(), "its workers have it"
    await study.ray.lose_node("a")
    ended = await asyncio.wait_for(stopping, 5)
    assert (ended.status, ended.attempts) == ("stopped", 2)
    study.open.remove("t0")


@story(slots={"a": 1})
async def test_a_rank_of_an_unknown_group_is_told_to_stop(study):
    assert await study.actor.next_trial("group-9-of-1", "x", 0) == EndGroup()
    await study.actor.report(
        Turn(group_id="group-9-of-1", incarnation="x", sequence=1),
        0,
        Beat(activity="training", stage=1, seconds=1.0, count=1),
    )


@story(slots={"a": 1})
async def test_no_question_is_left_open_when_trials_have_ended(study):
    for number, fate in enumerate(["finished", "diverged", "exception", "out_of_memory", "hangs"]):
        await study.request(f"t{number}", 1, fate)
    await until_training(study, "t4")
    await study.release("t4")
    await study.settle()
    for _ in range(5):
        await study.act()
    assert study.ray.asked
    assert all(question.done() for question in study.ray.asked)
