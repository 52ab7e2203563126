"""Stage 4: the books of the worker groups when the study is closed, and in every order of events and faults."""

import asyncio
import itertools
import random
from collections import Counter

import pytest

from scalestudy.orchestration.groups import actor
from tests.support.books_study import STALLED, Study, check, no_waiting, run, study_run, until_training

__all__ = ["no_waiting"]
pytestmark = pytest.mark.usefixtures("no_waiting")


# --- closing -----------------------------------------------------------------------------------------------------


def test_close_answers_everybody_at_once(monkeypatch):
    monkeypatch.setattr(actor, "POLL_SECONDS", 1_000)

    async def scenario():
        study = Study(slots={"a": 1})
        await study.lease("t0", 1)
        await study.ray.driver()
        (fit,) = study.ray.fits.values()
        await study.ray.step(fit.workers[0])
        rank = asyncio.ensure_future(study.groups.next_trial(fit.group_id, fit.workers[0].incarnation, 1))
        await study.groups.events("t0", 0)
        running = asyncio.ensure_future(study.groups.events("t0", 1))
        await study.groups.lease({"trial_id": "t1", "num_workers": 1})
        waiting = asyncio.ensure_future(study.groups.events("t1", 0))
        driver = asyncio.ensure_future(study.groups.next_orders())
        await driver  # how long the start took
        driver = asyncio.ensure_future(study.groups.next_orders())
        await asyncio.sleep(0.01)
        assert not any(task.done() for task in (rank, running, waiting, driver))
        await study.groups.close()
        for task in (running, waiting):
            (ended,) = await asyncio.wait_for(task, 5)
            assert (ended["type"], ended["error"]["kind"]) == ("ended", "stopped")
        assert await asyncio.wait_for(rank, 5) == {"stop": True}
        assert await asyncio.wait_for(driver, 5) is None

    run(scenario)


def test_nothing_is_recorded_after_the_end_that_close_gave():
    async def prepare(study):
        await study.lease("t0", 1)
        await until_training(study, "t0")
        (worker,) = study.ray.history
        await study.groups.close()
        for _ in range(10):
            await study.ray.step(worker)
            if worker.order is None:
                break

    study = study_run(prepare, slots={"a": 1})
    assert [event["type"] for event in study.events["t0"]] == ["running", "ended"]


def test_a_trial_that_comes_after_close_is_refused_and_no_group_starts():
    async def prepare(study):
        await study.groups.close()
        await study.lease("t0", 1)
        await study.groups.prepare(1)

    study = study_run(prepare, slots={"a": 1})
    assert study.ended("t0")["error"]["kind"] == "stopped"
    assert not study.ray.history


# --- every order of events ---------------------------------------------------------------------------------------

FATES = ["finished"] * 6 + ["diverged", "exception", "out_of_memory"]


def check_end(study):
    """What must hold of every trial and of every group's ranks."""
    assert not study.open, f"never ended: {study.open}"
    for trial_id, events in study.events.items():
        kinds = [event["type"] for event in events]
        assert kinds.count("ended") == (trial_id not in study.released), f"{trial_id}: {kinds}"
        assert trial_id in study.released or kinds[-1] == "ended"
        epochs = [event["epoch"]["epoch"] for event in events if event["type"] == "epoch"]
        assert len(epochs) == len(set(epochs))
        assert [event["attempt"] for event in events if event["type"] == "retry"] == list(
            range(1, 1 + kinds.count("retry"))
        )
        lost = Counter(event["error"]["kind"] for event in events if event["type"] == "retry")
        assert max((lost[kind] for kind in lost if kind != "preempted"), default=0) <= study.failures
    for _, workers in itertools.groupby(study.ray.history, key=lambda worker: worker.incarnation):
        taken = sorted((worker.taken for worker in workers), key=len)
        assert all(shorter == taken[-1][: len(shorter)] for shorter in taken)


async def fault(study, chance):
    """Something that goes wrong, or that somebody does."""
    nodes, fits = list(study.ray.slots), list(study.ray.fits.values())
    kinds = ["worker", "worker", "release", "come back", "stop", "tune process", "controller", "node", "drain"]
    kind = chance.choice(kinds)
    if kind == "worker":
        study.ray.harm(chance)
    elif kind == "release" and study.open:
        await study.release(chance.choice(study.open))
    elif kind == "come back" and study.open:
        trial_id = chance.choice(study.open)
        size = study.sizes[trial_id]
        await study.release(trial_id)
        study.released.discard(trial_id)
        await study.lease(trial_id, size)
    elif kind == "stop" and study.open:
        await stop_after_what_was_seen(study, chance.choice(study.open))
    elif kind == "tune process" and study.open:
        await study.follow_anew(chance.choice(study.open))
    elif kind == "controller" and fits:
        await study.ray.give_up(chance.choice(fits), "ActorDiedError", "controller_lost")
    elif kind == "node" and len(nodes) > 1 and chance.random() < 0.2:
        await study.ray.lose_node(chance.choice(nodes))
    elif kind == "drain" and len(nodes) > 1 and chance.random() < 0.4:
        await study.ray.drain_node(chance.choice(nodes))


async def stop_after_what_was_seen(study, trial_id):
    """As a scheduler does, at the last epoch that it has heard of; before the first it has nothing to say."""
    epochs = [event["epoch"]["epoch"] for event in study.events[trial_id] if event["type"] == "epoch"]
    if epochs:
        ended = await study.stop(trial_id, epochs[-1])
        assert ended["status"] in ("stopped", "finished")
        assert [epoch["epoch"] for epoch in ended["epochs"]] == epochs


async def explore(seed):
    """A random study: its cluster, trials, faults and the order of everything come from the seed."""
    chance = random.Random(seed)
    slots = {name: chance.randint(1, 3) for name in "abc"[: chance.randint(1, 3)]}
    study = Study(
        slots=slots,
        hosts=chance.choice([{}, dict.fromkeys("ab", "one machine")]),
        exclusive=chance.random() < 0.5,
        failures=chance.randint(0, 2),
        trials_per_group=chance.choice([1, 3, 200]),
    )
    faults, at_a_time = chance.choice([0, 0.01, 0.05]), chance.randint(1, 5)
    planned = [(f"t{n}", chance.randint(1, sum(slots.values())), chance.choice(FATES)) for n in range(12)]
    if chance.random() < 0.5:
        planned.sort(key=lambda trial: trial[1])
    if chance.random() < 0.1:
        study.ray.unstartable.add(planned[0][1])
    if chance.random() < 0.5:
        await study.groups.prepare(planned[0][1])
    while planned or study.open:
        roll = chance.random()
        if planned and len(study.open) < at_a_time and roll < 0.2:
            await study.lease(*planned.pop(0), checkpoints={"every_epochs": chance.randint(0, 1)})
        elif study.open and roll < 0.4:
            await study.follow(chance.choice(study.open))
        elif roll > 1 - 3 * faults:
            await fault(study, chance)
        elif chance.random() < 0.002:
            study.clock.now += STALLED + 1
            await study.tick()
        else:
            await chance.choice(study.ray.actions())()
        study.clock.now += 0.001
        check(study)
        if not planned and chance.random() < 0.01:
            break
    if faults:
        study.clock.now += STALLED + 1  # what is frozen is found
        await study.tick()
    await study.settle()
    check_end(study)
    await study.groups.close()
    for _ in range(20):
        for action in study.ray.actions():
            await action()
        study.clock.now += STALLED / 4
        await study.tick()
    assert study.ray.closed
    assert not study.ray.fits, "a group did not end"


@pytest.mark.parametrize("block", range(8))
def test_any_order_of_events(block):
    for seed in range(25 * block, 25 * (block + 1)):
        try:
            run(lambda seed=seed: explore(seed))
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error


@pytest.mark.parametrize("exclusive", [False, True])
def test_a_large_trial_is_not_starved_by_small_ones_that_keep_coming(exclusive):
    async def scenario():
        study = Study(slots={"a": 2, "b": 2}, exclusive=exclusive)
        for number in range(4):
            await study.lease(f"small{number}", 1)
        await study.lease("large", 4)
        for number in range(4, 200):
            while len(study.open) < 5:
                await study.lease(f"small{number}-{len(study.open)}-{len(study.events)}", 1)
            for action in study.ray.actions():
                await action()
            for trial_id in list(study.open):
                await study.follow(trial_id)
            study.clock.now += 0.1
            if "large" not in study.open:
                break
        assert study.ended("large")["status"] == "finished"

    run(scenario)


@pytest.mark.parametrize("seed", range(20))
def test_closing_at_any_moment_ends_every_trial_and_group(seed):
    async def scenario():
        chance = random.Random(seed)
        study = Study(slots={"a": 2, "b": 1}, exclusive=chance.random() < 0.5)
        for number in range(4):
            await study.lease(f"t{number}", chance.randint(1, 3))
        for _ in range(chance.randint(0, 120)):
            await chance.choice(study.ray.actions())()
            if chance.random() < 0.02:
                study.ray.harm(chance)
        await study.groups.close()
        study.clock.now += STALLED + 1
        await study.tick()
        await study.settle()
        check_end(study)

    run(scenario)
