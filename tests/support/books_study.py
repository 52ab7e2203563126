"""A study in miniature around the worker groups' books: their clock, a fake Ray Train, trials that follow their events.

The books wait in long polls and tick by the second; tests set `worker_groups.POLL_SECONDS` and `TICK_SECONDS` to 0
(the fixture `no_waiting`), so that every call answers at once.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from scalestudy.orchestration.cluster.nodes import Node
from scalestudy.orchestration.groups import actor
from scalestudy.orchestration.groups.actor import WorkerGroups
from scalestudy.orchestration.groups.model import GroupLimits
from tests.support.fake_ray_train import FakeClock, FakeRayTrain

STALLED, TRIAL_SECONDS = 100.0, 1_000.0


@pytest.fixture
def no_waiting(monkeypatch):
    """Long polls answer at once; the watch looks each time that it is its turn."""
    monkeypatch.setattr(actor, "POLL_SECONDS", 0)
    monkeypatch.setattr(actor, "TICK_SECONDS", 0)


@dataclass
class Study:
    """The books, their clock, a fake Ray Train, and trials that follow their events as the Tune trainable does."""

    slots: dict[str, int]
    hosts: dict[str, str] = field(default_factory=dict)  # of raylets that share a machine
    exclusive: bool = False
    failures: int = 2
    trials_per_group: int = 200
    clock: FakeClock = field(default_factory=FakeClock)
    events: dict[str, list[dict]] = field(default_factory=dict)  # of every trial that was leased
    released: set[str] = field(default_factory=set)  # before their end
    open: list[str] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)
    vacated: list[int] = field(default_factory=list)  # marks of groups whose workers the books have ended

    def __post_init__(self):
        limits = GroupLimits(
            trial_seconds=TRIAL_SECONDS,
            stalled_seconds=STALLED,
            failures_per_trial=self.failures,
            trials_per_group=self.trials_per_group,
        )
        self.hosts |= {node: self.hosts.get(node, node) for node in self.slots}
        self.groups = WorkerGroups(
            self.nodes(**self.slots),
            limits,
            exclusive=self.exclusive,
            kill=FakeRayTrain.kill,
            vacate=self.vacated.append,
            clock=self.clock,
        )
        self.ray = FakeRayTrain(self.groups, self.slots, self.hosts)
        self.watching = asyncio.ensure_future(self.groups.watch())

    def nodes(self, **slots):
        """A cluster's nodes with their room."""
        return [Node(node_id=node, slots=count, host=self.hosts[node]) for node, count in slots.items()]

    async def lease(self, trial_id, num_workers, fate="finished", **order):
        self.events[trial_id] = []
        self.sizes[trial_id] = num_workers
        self.open.append(trial_id)
        await self.groups.lease({"trial_id": trial_id, "num_workers": num_workers, "fate": fate, **order})

    async def follow(self, trial_id):
        seen = self.events[trial_id]
        seen.extend(await self.groups.events(trial_id, len(seen)))
        if seen and seen[-1]["type"] == "ended":
            self.open.remove(trial_id)
            await self.groups.release(trial_id)

    async def release(self, trial_id):
        """The trial's Tune process goes before its time."""
        self.open.remove(trial_id)
        self.released.add(trial_id)
        await self.groups.release(trial_id)

    async def stop(self, trial_id, epoch):
        """A scheduler ends the trial after an epoch."""
        self.open.remove(trial_id)
        ended = await self.groups.stop(trial_id, epoch)
        told = [event for event in self.events[trial_id] if event["type"] != "ended"]
        self.events[trial_id] = [*told, ended]
        await self.groups.release(trial_id)
        return ended

    async def follow_anew(self, trial_id):
        """The trial's Tune process has died, and another takes its place."""
        self.events[trial_id] = []
        await self.groups.lease({"trial_id": trial_id, "num_workers": 1})

    async def tick(self):
        for _ in range(3):
            await asyncio.sleep(0)

    async def settle(self, rounds=400):
        """Everything that can happen without a fault, fairly, until every trial has ended."""
        for _ in range(rounds):
            if not self.open:
                return
            for action in self.ray.actions():
                await action()
            for trial_id in list(self.open):
                await self.follow(trial_id)
            self.clock.now += 0.5
            await self.tick()

    def ended(self, trial_id):
        (event,) = [event for event in self.events[trial_id] if event["type"] == "ended"]
        return event


def run(scenario):
    """Runs an async scenario to its end."""

    async def main():
        try:
            return await asyncio.wait_for(scenario(), timeout=60)
        finally:
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

    return asyncio.run(main())


def study_run(prepare=None, then=None, **settings):
    """A study that is filled with trials by `prepare`, settles, and is looked at by `then`."""

    async def scenario():
        study = Study(**settings)
        await prepare(study)
        await study.settle()
        if then:
            await then(study)
        return study

    return run(scenario)


def trials(*sizes, fate="finished"):
    async def prepare(study):
        for number, size in enumerate(sizes):
            await study.lease(f"t{number}", size, fate)

    return prepare


async def until_training(study, trial_id):
    while study.ray.training().get(trial_id) is None:
        for action in study.ray.actions():
            await action()


async def until_epoch(study, trial_id, number):
    """Follows a trial until it has told an epoch."""
    while not any(e["type"] == "epoch" and e["epoch"]["epoch"] == number for e in study.events[trial_id]):
        for action in study.ray.actions():
            await action()
        await study.follow(trial_id)


def lost(ended):
    """Attempt and kind of every lost attempt."""
    return [(failure["attempt"], failure["kind"]) for failure in ended.get("failures", [])]


def check(study):
    """What must hold at every moment."""
    assert not study.ray.overbooked, study.ray.overbooked
    for trial_id, groups in study.ray.training().items():
        assert len(groups) == 1, f"{trial_id} is in {groups}"
    if study.exclusive:
        for host in study.hosts.values():
            busy, starting = study.ray.busy(host), study.ray.starting(host)
            assert len(busy) + len(starting) <= 1, f"on {host}: {busy} beside {starting}"
