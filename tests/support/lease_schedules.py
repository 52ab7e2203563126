"""Random schedules of a study in miniature: who runs, what is delivered, what is lost, and when, comes from a seed.

The pool, its actor and the fold of a trial's events run unmodified. At the borders are fakes: Ray Train
(`FakeRayTrain`), the processes of Tune that follow the trials, Tune itself, and the wire between them and the pool. A
process may stand still for longer than any limit, with or without its driver. What it sends may arrive late and in
another order than it was sent, also after its death. Its death may come at any moment, and Tune then starts another
with the order of the beginning, up to a number of times.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from scalestudy.orchestration.groups.events import Ended, EpochDone, JournalEvent, Retried, Running
from scalestudy.orchestration.groups.trial_record import TrialRecord
from tests.support.pool_study import Study, order_of

TRIALS, EPOCHS = 3, 2
STARTS = 6  # processes of Tune that may follow a trial, one after another
STEPS = 400
FROZEN_SECONDS = (1.0, 5.0, 120.0)

Answer = Any
Call = Callable[[], Any]


@dataclass(eq=False)
class Follower:
    """A process of Tune that follows a trial, as `sweep.follow_trial` does."""

    trial_id: str
    lease: int | None = None
    seen: int = 0
    asked: bool = False  # a call of it is under way
    alive: bool = True
    over: bool = False  # it has returned
    frozen_until: float = 0.0


@dataclass
class Journal:
    """What the study knows of each trial: the driver's fold."""

    records: dict[str, TrialRecord] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    attempts: dict[str, list[int]] = field(default_factory=dict)

    def deliver(self, trial_id: str, event: JournalEvent) -> bool:
        """As `Recorder.take`: what is no news goes no further. Returns whether it was any."""
        record = self.records.setdefault(trial_id, TrialRecord())
        if not record.is_news(event):
            return False
        record.apply(event, 0.0)
        if isinstance(event, Running):
            self.attempts.setdefault(trial_id, []).append(event.attempt)
        if isinstance(event, Ended):
            self.ends[trial_id] = self.ends.get(trial_id, 0) + 1
        return True


@dataclass(eq=False)
class Schedule:
    """One schedule.

    calls: under way to the pool, each with its sender. late: those of dead senders that arrive much later. results:
    what followers have told Tune and the driver has not read.
    """

    study: Study
    chance: random.Random
    journal: Journal = field(default_factory=Journal)
    followers: dict[str, Follower] = field(default_factory=dict)  # whom Tune waits for, by trial
    starts: dict[str, int] = field(default_factory=dict)
    calls: list[tuple[Follower, Call]] = field(default_factory=list)
    late: list[Call] = field(default_factory=list)
    results: list[tuple[Follower, JournalEvent]] = field(default_factory=list)
    driver_frozen_until: float = 0.0
    trained: dict[str, set[tuple[str, int]]] = field(default_factory=dict)  # trainings that were begun, by trial
    deaths: int = 0  # of processes of Tune
    workers_lost: int = 0
    put_off: int = 0
    most_workers_lost: int = 0
    stop_at: dict[str, int] = field(default_factory=dict)  # the epoch after which a scheduler stops a trial

    # --- a process of Tune ----------------------------------------------------------------------------------------

    def step(self, follower: Follower) -> None:
        """The follower's next call, if it waits for no answer."""
        if follower.asked or follower.over or not follower.alive or follower.frozen_until > self.study.clock.now:
            return
        actor, trial_id = self.study.actor, follower.trial_id
        follower.asked = True
        if follower.lease is None:
            self._send(follower, lambda: actor.request(self.study.orders[trial_id]), self._has_lease)
        else:
            lease, seen = follower.lease, follower.seen
            self._send(follower, lambda: actor.events(trial_id, lease, seen), self._has_events)

    def _send(self, follower: Follower, call: Call, then: Callable[[Follower, Answer], None]) -> None:
        async def arrives() -> None:
            answer = await call()
            if follower.alive:  # else nobody is there to hear it
                follower.asked = False
                then(follower, answer)

        self.calls.append((follower, arrives))

    def _has_lease(self, follower: Follower, lease: int) -> None:
        follower.lease = lease

    def _has_events(self, follower: Follower, events: list[JournalEvent] | None) -> None:
        if events is None:
            self.dies(follower)  # LeaseOverError
            return
        follower.seen += len(events)
        self.results.extend((follower, event) for event in events)
        if events and isinstance(events[-1], Ended):
            follower.over = True
        elif events and isinstance(events[-1], Retried):
            follower.asked = True
            actor, trial_id, lease = self.study.actor, follower.trial_id, follower.lease
            assert lease is not None
            self._send(follower, lambda: actor.follows(trial_id, lease), self._follows)

    def _follows(self, follower: Follower, follows: bool) -> None:
        follower.over = not follows

    def dies(self, follower: Follower) -> None:
        """The process ends without a word. What it has sent is under way, or hangs somewhere."""
        follower.alive = False
        if self.chance.random() < 0.5:
            self.late += [call for sender, call in self.calls if sender is follower]
            self.calls = [(sender, call) for sender, call in self.calls if sender is not follower]

    # --- Tune, in the driver --------------------------------------------------------------------------------------

    async def tune(self) -> None:
        """Reads one result, or finds one dead process and starts another in its place."""
        if self.driver_frozen_until > self.study.clock.now:
            return
        if self.results:
            follower, event = self.results.pop(0)
            if self.followers.get(follower.trial_id) is follower:
                await self._deliver(follower, event)
            return
        for trial_id, follower in list(self.followers.items()):
            if follower.over and self.journal.ends.get(trial_id):
                del self.followers[trial_id]
                await self.study.actor.release(trial_id)  # on_trial_complete
            elif follower.over:  # it was put off, and comes again
                self.put_off += 1
                self.followers[trial_id] = Follower(trial_id)
            elif not follower.alive:
                self.starts[trial_id] += 1
                if self.starts[trial_id] > STARTS:
                    raise AssertionError(f"{trial_id}: Tune has given it up")
                self.followers[trial_id] = Follower(trial_id)
            else:
                continue
            return

    async def _deliver(self, follower: Follower, event: JournalEvent) -> None:
        """As `Sweep.deliver`: the journal first, then the scheduler, which may stop the trial."""
        trial_id = follower.trial_id
        if not self.journal.deliver(trial_id, event) or not isinstance(event, EpochDone):
            return
        if event.record.epoch == self.stop_at.get(trial_id):
            ended = await self.study.actor.stop(trial_id, event.record.epoch)
            assert ended is not None, f"{trial_id} is stopped, and the pool does not know it"
            self.journal.deliver(trial_id, ended)
            follower.alive = False
            del self.followers[trial_id]
            await self.study.actor.release(trial_id)  # on_trial_complete

    # --- the schedule ---------------------------------------------------------------------------------------------

    async def run(self, *, faults: float) -> None:
        """Some hundred steps with faults, then what it takes to end without any."""
        for _ in range(STEPS):
            await self._act()
            if self.chance.random() < faults:
                self._fault()
            if not self.followers:
                break
        for _ in range(20 * STEPS):
            if not self.followers:
                break
            await self._act()
        assert not self.followers, f"never ended: {sorted(self.followers)}"

    async def _act(self) -> None:
        roll, chance, now = self.chance.random(), self.chance, self.study.clock.now
        stands = any(each.frozen_until > now for each in self.followers.values()) or self.driver_frozen_until > now
        self.study.clock.now += 0.25 if stands else 0.01
        if roll < 0.35:
            actions = self.study.ray.actions()
            if self.driver_frozen_until > self.study.clock.now:
                actions = actions[1:]  # the driver's own comes first
            if actions:
                await chance.choice(actions)()
                self._note_trainings()
                for trial_id, groups in self.study.ray.training().items():
                    assert len(groups) == 1, f"{trial_id} is trained by {sorted(groups)}"
        elif roll < 0.6:
            if self.calls:
                _, call = self.calls.pop(chance.randrange(len(self.calls)))
                await call()
        elif roll < 0.605:
            if self.late:
                await self.late.pop(chance.randrange(len(self.late)))()
        elif roll < 0.8 and self.followers:
            self.step(chance.choice(list(self.followers.values())))
        elif roll < 0.98:
            await self.tune()
        else:
            await self.study.tick()

    def _fault(self) -> None:
        alive = [each for each in self.followers.values() if each.alive and not each.over]
        kind = self.chance.choice(["dies", "frozen", "driver", "all", "worker"])
        until = self.study.clock.now + self.chance.choice(FROZEN_SECONDS)
        if kind == "dies" and alive and self.deaths < STARTS - 2:
            self.deaths += 1
            # a request that is under way may arrive after the trial's end: the rarest and worst of late calls
            self.dies(self.chance.choice([each for each in alive if each.asked and each.lease is None] or alive))
        elif kind == "worker" and self.workers_lost < self.most_workers_lost:
            workers = [worker for fit in self.study.ray.fits.values() for worker in fit.workers if worker.alive]
            if workers:
                self.workers_lost += 1
                self.chance.choice(workers).alive = False
        elif kind == "frozen" and alive:
            self.chance.choice(alive).frozen_until = until
        elif kind in ("driver", "all"):
            self.driver_frozen_until = until
            for each in alive if kind == "all" else ():
                each.frozen_until = until

    def _note_trainings(self) -> None:
        for worker in self.study.ray.history:
            for sequence, trial_id, _ in worker.taken:
                if worker.rank == 0:
                    self.trained.setdefault(trial_id, set()).add((worker.incarnation, sequence))

    def check(self) -> None:
        """Every trial ended once, was trained once and again for each lost worker; its attempts count 1, 2, 3.

        An attempt whose workers could not be started is lost without having begun.
        """
        for trial_id in self.study.orders:
            record = self.journal.records.get(trial_id, TrialRecord())
            assert self.journal.ends.get(trial_id) == 1, f"{trial_id} has {self.journal.ends.get(trial_id, 0)} ends"
            assert record.ended is not None
            stop_at = self.stop_at.get(trial_id, EPOCHS + 1)
            expected = {"finished", "stopped"} if stop_at == EPOCHS else {"stopped" if stop_at < EPOCHS else "finished"}
            assert record.ended.status in expected, f"{trial_id}: {record.ended}"
            trained = self.trained.get(trial_id, set())
            assert len(trained) <= 1 + self.workers_lost, f"{trial_id} was trained by {sorted(trained)}"
            begun = self.journal.attempts[trial_id]
            lost = {failure.attempt: failure.kind for failure in record.failures}
            without_workers = [attempt for attempt, kind in lost.items() if kind == "group_start"]
            said = f"{trial_id}: attempts {begun}, lost {lost}"
            assert len(lost) == len(record.failures), said
            assert list(lost) == list(range(1, begun[-1])), said
            assert begun == [attempt for attempt in lost if attempt not in without_workers] + [begun[-1]], said
            told = [event.epoch for event in record.ended.epochs]
            assert told == list(range(1, min(stop_at, EPOCHS) + 1)), f"{trial_id}: epochs {told}"
        assert not self.study.pool.requests, f"leases are left: {sorted(self.study.pool.requests)}"


async def explore(seed: int, *, study: Callable[..., Study] = Study) -> None:
    """Runs the schedule of a seed. Raises AssertionError where a trial is lost, doubled or miscounted."""
    chance = random.Random(seed)
    world = study(slots={"a": chance.randint(1, 2)}, failures=STARTS)
    world.ray.cause = chance.choice(["worker_lost", "node_lost"])
    schedule = Schedule(world, chance, most_workers_lost=chance.randint(0, 3))
    for number in range(TRIALS):
        trial_id = f"t{number}"
        world.orders[trial_id] = replace(order_of(trial_id), so_far=TrialRecord())
        world.ray.fates[trial_id] = "finished"
        schedule.followers[trial_id] = Follower(trial_id)
        schedule.starts[trial_id] = 1
        if (stop_at := chance.choice([None, None, 1, 2])) is not None:
            schedule.stop_at[trial_id] = stop_at
    await schedule.run(faults=chance.choice([0.02, 0.05, 0.1]))
    for call in [*(call for _, call in schedule.calls), *schedule.late]:
        await call()
    schedule.check()


def broken(seeds: range, **how: Any) -> dict[int, str]:
    """The seeds whose schedules break something, each with what it breaks."""
    found = {}
    for seed in seeds:
        try:
            asyncio.run(asyncio.wait_for(explore(seed, **how), 60))
        except AssertionError as error:
            found[seed] = str(error)
    return found
