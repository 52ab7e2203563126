"""A study in miniature around the pool's actor: its clock, a fake Ray Train, trials that follow their events.

The actor waits in long polls and ticks by the second; tests set `actor.POLL_SECONDS` and `TICK_SECONDS` to 0 (the
fixture `no_waiting`), so that every call answers at once.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import math
from dataclasses import dataclass, field, replace

import pytest

from scalestudy.orchestration.cluster.nodes import Node
from scalestudy.orchestration.groups import actor
from scalestudy.orchestration.groups.actor import GroupPoolActor
from scalestudy.orchestration.groups.clock import PoolClock
from scalestudy.orchestration.groups.events import (
    Ended,
    EpochDone,
    Failure,
    JournalEvent,
    Retried,
    World,
)
from scalestudy.orchestration.groups.model import GroupLimits, TrialOrder
from scalestudy.orchestration.groups.placement import Placement
from scalestudy.orchestration.groups.pool import PoolSettings
from scalestudy.orchestration.groups.trial_record import TrialRecord
from scalestudy.orchestration.sweep.search import HITS
from scalestudy.training.config import TrainConfig
from tests.support.epochs import epoch_of
from tests.support.fake_ray_train import FakeClock, FakeRayTrain

STALLED, TRIAL_SECONDS = 100.0, 1_000.0
UPTIME = (
    1e6  # of the fakes' machine: a limit that took the wall clock, or a record that took this one, would be far off
)
HISTORY = TrialRecord(
    epochs={1: epoch_of(1)},
    attempts=2,
    started_at=500.0,
    earlier_seconds=40.0,
    startup_seconds=7.5,
    flags={"shared_node"},
    failures=[Failure(attempt=1, kind="worker_lost", message="m")],
    world=World(device="cpu", nodes=1),
)


@pytest.fixture
def no_waiting(monkeypatch):
    """Long polls answer at once; the watch looks each time that it is its turn."""
    monkeypatch.setattr(actor, "POLL_SECONDS", 0)
    monkeypatch.setattr(actor, "TICK_SECONDS", 0)


def order_of(trial_id, num_workers=1, *, epochs=10, checkpoints=None, so_far=None):
    """An order whose config says nothing but its epochs: the fake ranks train two, whatever it says."""
    config = TrainConfig(model="mlp", data="digits", batch_size=32, learning_rate=0.1, epochs=epochs)
    return TrialOrder(
        trial_id=trial_id,
        num_workers=num_workers,
        config=config,
        checkpoints=checkpoints,
        so_far=so_far or TrialRecord(),
    )


class FakeHands:
    """What Ray would do: it kills fakes, and notes the tags of groups whose workers were removed."""

    def __init__(self):
        self.removed: list[int] = []

    def kill(self, actor):
        FakeRayTrain.kill(actor)

    def remove_workers(self, tag):
        self.removed.append(tag)


@dataclass
class Study:
    """The pool's actor, its clock, a fake Ray Train, and trials that follow their events as the Tune trainable does."""

    slots: dict[str, int]
    hosts: dict[str, str] = field(default_factory=dict)  # of raylets that share a machine
    types: dict[str, str] = field(default_factory=dict)  # of the GPUs of nodes that say it
    exclusive: bool = False
    placement: Placement = "pack"
    failures: int = 2
    trials_per_group: int = 200
    logs: str = ""
    clock: FakeClock = field(default_factory=FakeClock)
    wall_step: float = 0.0  # by how much the wall clock was set forward
    longest_tick: float = math.inf  # as in `PoolClock`; tests jump to the moment that they look at
    hands: FakeHands = field(default_factory=FakeHands)
    events: dict[str, list[JournalEvent]] = field(default_factory=dict)  # of every trial that was requested
    released: set[str] = field(default_factory=set)  # before their end
    open: list[str] = field(default_factory=list)
    orders: dict[str, TrialOrder] = field(default_factory=dict)
    leases: dict[str, int] = field(default_factory=dict)  # of the Tune process that follows each trial now
    hits: dict[str, int] = field(default_factory=dict)  # by trial: times that it was put off since a trial ended
    given_up: list[str] = field(default_factory=list)
    grows: bool = False

    def __post_init__(self):
        limits = GroupLimits(
            trial_seconds=TRIAL_SECONDS,
            stalled_seconds=STALLED,
            failures_per_trial=self.failures,
            trials_per_group=self.trials_per_group,
        )
        self.hosts |= {node: self.hosts.get(node, node) for node in self.slots}
        settings = PoolSettings(
            limits=limits, exclusive=self.exclusive, placement=self.placement, logs=self.logs, grows=self.grows
        )
        clock = PoolClock(
            wall=lambda: self.clock.now + self.wall_step,
            monotonic=lambda: self.clock.now + UPTIME,
            longest_tick=self.longest_tick,
        )
        self.actor = GroupPoolActor(self.nodes(**self.slots), settings, hands=self.hands, clock=clock)
        self.pool = self.actor._pool
        self.ray = FakeRayTrain(self.actor, self.slots, self.hosts)

    def nodes(self, **slots):
        """A cluster's nodes with their room."""
        return [
            Node(node_id=node, slots=count, host=self.hosts[node], accelerator=self.types.get(node, ""))
            for node, count in slots.items()
        ]

    async def request(self, trial_id, num_workers=1, fate="finished", **order):
        """A trial asks for workers. fate: what becomes of its training, see `FakeRayTrain`."""
        self.events[trial_id] = []
        self.open.append(trial_id)
        self.orders[trial_id] = order_of(trial_id, num_workers, **order)
        self.ray.fates[trial_id] = fate
        self.leases[trial_id] = await self.actor.request(self.orders[trial_id])

    async def train(self, trial_id, num_workers=1, fate="finished", **order):
        """A trial asks for workers, and all of them train it. Returns the only group's `fit`."""
        await self.request(trial_id, num_workers, fate, **order)
        await until_training(self, trial_id)
        return next(iter(self.ray.fits.values()))

    async def follow(self, trial_id):
        seen = self.events[trial_id]
        seen.extend(await self.actor.events(trial_id, self.leases[trial_id], len(seen)) or [])
        if seen and isinstance(seen[-1], Ended):
            self.open.remove(trial_id)
            self.hits.clear()
            await self.actor.release(trial_id)
        elif seen and isinstance(seen[-1], Retried) and not await self.actor.follows(trial_id, self.leases[trial_id]):
            await self.put_off(trial_id)

    async def put_off(self, trial_id):
        """The study asks for a trial anew, after the others, as `Search` does; it gives it up after some times."""
        self.hits[trial_id] = self.hits.get(trial_id, 0) + 1
        if self.hits[trial_id] < HITS:
            await self.follow_anew(trial_id)
        else:
            self.open.remove(trial_id)
            self.given_up.append(trial_id)

    async def release(self, trial_id):
        """The trial's Tune process goes before its time."""
        self.open.remove(trial_id)
        self.released.add(trial_id)
        await self.actor.release(trial_id)

    async def stop(self, trial_id, epoch):
        """A scheduler ends the trial after an epoch."""
        self.open.remove(trial_id)
        ended = await self.actor.stop(trial_id, epoch)
        before = [event for event in self.events[trial_id] if not isinstance(event, Ended)]
        self.events[trial_id] = [*before, ended]
        await self.actor.release(trial_id)
        return ended

    async def follow_anew(self, trial_id):
        """The trial's Tune process has died, and another takes its place."""
        self.events[trial_id] = []
        self.leases[trial_id] = await self.actor.request(replace(self.orders[trial_id], so_far=TrialRecord()))

    async def tick(self):
        """The pool looks at its limits. It does so in every turn of the loop while it watches, so only now."""
        watching = asyncio.ensure_future(self.actor.watch())
        for _ in range(3):
            await asyncio.sleep(0)
        watching.cancel()

    async def later(self, seconds):
        """Time passes, and the pool looks at its limits."""
        self.clock.now += seconds
        await self.tick()

    async def join(self, node, slots):
        """A node joins the cluster."""
        self.ray.slots[node], self.ray.hosts[node], self.hosts[node] = slots, node, node
        await self.actor.set_nodes(self.ray.nodes())

    async def act(self):
        """Everything that can happen next happens."""
        for action in self.ray.actions():
            await action()

    async def settle(self, rounds=2000):
        """Everything that can happen without a fault, fairly, until every trial has ended."""
        for _ in range(rounds):
            if not self.open:
                return
            await self.act()
            for trial_id in list(self.open):
                await self.follow(trial_id)
            await self.later(0.5)

    @property
    def fit(self):
        """The only group's `fit`."""
        (fit,) = self.ray.fits.values()
        return fit

    async def end_of(self, trial_id):
        """Settles, and returns the trial's end."""
        await self.settle()
        return self.ended(trial_id)

    def ended(self, trial_id):
        (event,) = [event for event in self.events[trial_id] if isinstance(event, Ended)]
        return event

    def kinds(self, trial_id):
        """The names of the events that a trial's follower has heard."""
        return [type(event).__name__ for event in self.events[trial_id]]

    def of_type(self, trial_id, kind):
        return [event for event in self.events[trial_id] if isinstance(event, kind)]


def run(scenario):
    """Runs an async scenario to its end."""

    async def main():
        try:
            return await asyncio.wait_for(scenario(), timeout=60)
        finally:
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

    return asyncio.run(main())


def story(**settings):
    """Make a test of a coroutine that gets a `Study` with these settings, and the test's own parameters after it."""

    def test_of(told):
        @functools.wraps(told)
        def test(**parameters):
            async def scenario():
                await told(Study(**settings), **parameters)

            run(scenario)

        signature = inspect.signature(told)
        test.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])
        return test

    return test_of


def study_run(prepare, **settings):
    """A study that is filled with trials by `prepare` and has settled."""

    async def scenario():
        study = Study(**settings)
        await prepare(study)
        await study.settle()
        return study

    return run(scenario)


def trials(*sizes, fate="finished"):
    async def prepare(study):
        for number, size in enumerate(sizes):
            await study.request(f"t{number}", size, fate)

    return prepare


async def until_training(study, trial_id):
    while study.ray.training().get(trial_id) is None:
        await study.act()


async def until_epoch(study, trial_id, number):
    """Follows a trial until it has told an epoch."""
    while not any(event.record.epoch == number for event in study.of_type(trial_id, EpochDone)):
        await study.act()
        await study.follow(trial_id)


def numbers(ended):
    """The epochs of an end."""
    return [record.epoch for record in ended.epochs]


def lost(ended):
    """Attempt and kind of every lost attempt."""
    return [(failure.attempt, failure.kind) for failure in ended.failures]


def check(study):
    """What must hold at every moment."""
    assert not study.ray.overbooked, study.ray.overbooked
    for trial_id, groups in study.ray.training().items():
        assert len(groups) == 1, f"{trial_id} is in {groups}"
    if study.exclusive:
        for host in study.hosts.values():
            busy, starting = study.ray.busy(host), study.ray.starting(host)
            assert len(busy) + len(starting) <= 1, f"on {host}: {busy} beside {starting}"


async def everybody_acts(study):
    """Twenty rounds of everything that can happen, while nobody follows the trials."""
    for _ in range(20):
        await study.act()


async def lose_controller(study):
    (fit,) = study.ray.fits.values()
    await study.ray.give_up(fit, "ActorDiedError", "controller_lost")


def kill(rank):
    """The rank's process dies, of the newest life of the only group."""

    async def step(study):
        (fit,) = study.ray.fits.values()
        fit.workers[rank].alive = False

    return step
