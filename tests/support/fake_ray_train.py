"""Ray Train as the pool sees it: groups that start, ranks that train, fail and start again.

No process, no network: every step of every rank is one call, made when the test says so, so that a seeded random
scheduler can try any order of events. The pool and its actor run unmodified.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from scalestudy.orchestration.cluster.nodes import Node
from scalestudy.orchestration.groups.actor import GroupPoolActor
from scalestudy.orchestration.groups.events import (
    Beat,
    EpochDone,
    FaultKind,
    GivenBack,
    Left,
    Member,
    RankFailed,
    Started,
    TrainingEnded,
    TrainingStatus,
    WorkerPost,
)
from scalestudy.orchestration.groups.failures import Cause, Loss
from scalestudy.orchestration.groups.model import EndGroup, ExitMode, NextTrial, Turn
from tests.support.epochs import epoch_of

RESTARTS = 2  # as in scalestudy.orchestration.groups.host: starts beyond the first before `fit()` gives up


@dataclass
class FakeClock:
    """Seconds that pass when the test says so."""

    now: float = 1_000.0

    def __call__(self) -> float:
        return self.now


@dataclass(eq=False)
class FakeWorker:
    """One rank in one life of its group; the object is its own actor handle."""

    fit: FakeFit
    incarnation: str
    rank: int
    node: str
    alive: bool = True
    frozen: bool = False
    registered: bool = False
    ended: bool = False
    served: int = 0
    given: NextTrial | None = None
    stop: asyncio.Future[bool] | None = None  # rank 0's question whether it is to end its trial
    leave: asyncio.Future[bool] | None = None  # the same, with a checkpoint
    taken: list[tuple[int, str, int]] = field(default_factory=list)  # (sequence, trial, attempt)
    all_given: list[NextTrial] = field(default_factory=list)

    @property
    def trains(self) -> str | None:
        """The trial that this rank is in the middle of."""
        return self.given.order.trial_id if self.given and self.alive else None


@dataclass(eq=False)
class FakeFit:
    """One group's `fit()`: its workers, and how often they have failed; the object is its controller's handle."""

    group_id: str
    num_workers: int
    nodes: list[str]
    tag: int = 0
    workers: list[FakeWorker] = field(default_factory=list)
    lives: int = 0
    failures: int = 0
    alive: bool = True

    @property
    def first_start(self) -> bool:
        """Whether it is being started, not restarted."""
        return self.lives <= 1 and not all(worker.registered for worker in self.workers)

    def on(self, node: str) -> int:
        """Workers on a node; a dead one's place stays its group's until that starts again."""
        return sum(worker.node == node for worker in self.workers)


class FakeRayTrain:
    """Starts the groups that the pool orders and moves their ranks, one action at a time."""

    def __init__(self, actor: GroupPoolActor, slots: Mapping[str, int], hosts: Mapping[str, str]) -> None:
        """slots: room by node. hosts: the machine of each node."""
        self.actor = actor
        self.fates: dict[str, str] = {}  # what becomes of each trial's training
        self.slots, self.hosts = dict(slots), dict(hosts)
        self.draining: dict[str, dict[str, str]] = {}  # node → the trial of each group when it began to drain; "": none
        self.epochs = 2
        self.fits: dict[str, FakeFit] = {}
        self.history: list[FakeWorker] = []  # every worker that ever was
        self.progress: dict[tuple[str, int], int] = {}  # (incarnation, sequence) → what rank 0 has posted
        self.steps: dict[tuple[str, int], int] = {}  # likewise → steps of a training that hangs on
        self.overbooked: list[str] = []
        self.cold_starts: dict[str, float] = {}
        self.asked: list[asyncio.Future[bool]] = []  # every rank 0's questions
        self.closed = False
        self.unstartable: set[int] = set()  # sizes whose groups never start
        self.cause: Cause = "worker_lost"  # as which it tells of dead workers

    @staticmethod
    def kill(handle: FakeWorker | FakeFit) -> None:
        """What `ray.kill` does."""
        handle.alive = False

    def free(self, node: str) -> int:
        """Room on a node."""
        return self.slots[node] - sum(fit.on(node) for fit in self.fits.values() if fit.alive)

    async def driver(self) -> None:
        """Takes the pool's orders, as `GroupHost` does."""
        orders = await self.actor.next_orders()
        if orders is None:
            self.closed = True
            return
        self.cold_starts.update(orders.ready)
        for start in orders.start:
            fit = FakeFit(start.group_id, start.num_workers, list(start.nodes), start.tag)
            self.fits[fit.group_id] = fit
            await self.actor.controller_started(fit.group_id, fit)
            self._live(fit)

    def _live(self, fit: FakeFit) -> None:
        """A new life of a group, on the nodes that the pool named, one a worker."""
        fit.lives += 1
        name = f"{fit.group_id}-life-{fit.lives}"
        fit.workers = [FakeWorker(fit, name, rank, node) for rank, node in enumerate(fit.nodes)]
        self.overbooked.extend(f"{fit.group_id} on {node}" for node in set(fit.nodes) if self.free(node) < 0)
        self.overbooked.extend(f"{fit.group_id} on {node}, which drains" for node in fit.nodes if node in self.draining)
        self.history.extend(fit.workers)

    # --- a rank ------------------------------------------------------------------------------------------------

    def actions(self) -> list[Callable[[], Awaitable[None]]]:
        """Everything that could happen next, but for faults."""
        found: list[Callable[[], Awaitable[None]]] = [self.driver]
        for fit in self.fits.values():
            if not fit.alive:
                found.append(lambda fit=fit: self.give_up(fit, "ActorDiedError", "controller_lost"))
            elif fit.num_workers in self.unstartable:
                found.append(lambda fit=fit: self.give_up(fit, "RuntimeError: no workers"))
            elif any(not worker.alive for worker in fit.workers):
                found.append(lambda fit=fit: self.restart(fit))
            else:
                ready = [worker for worker in fit.workers if not worker.frozen and not worker.ended]
                found.extend(lambda worker=worker: self.step(worker) for worker in ready)
        return found

    async def step(self, worker: FakeWorker) -> None:
        """A rank's next step: announce itself, take a trial, or train a little."""
        if not worker.registered:
            worker.registered = True
            await self.actor.register(worker.fit.group_id, worker.incarnation, self.member(worker), worker)
        elif worker.given is None:
            await self._take(worker)
        else:
            await self._train(worker, worker.given)

    async def _take(self, worker: FakeWorker) -> None:
        given = await self.actor.next_trial(worker.fit.group_id, worker.incarnation, worker.served)
        if given is None or not worker.alive:
            return
        if isinstance(given, EndGroup):
            worker.ended = True
            if all(peer.ended for peer in worker.fit.workers):
                await self.give_up(worker.fit, None)
            return
        worker.given, worker.served = given, given.sequence
        before = [trials for node, trials in self.draining.items() if node in worker.fit.nodes]
        trial_id = given.order.trial_id
        if any(trials.get(worker.fit.group_id) != trial_id for trials in before):
            self.overbooked.append(f"{trial_id} was given to {worker.fit.group_id}, whose node drains")
        worker.all_given.append(given)
        worker.taken.append((given.sequence, trial_id, given.attempt))

    async def _train(self, worker: FakeWorker, given: NextTrial) -> None:
        sequence, fate = given.sequence, self.fates.get(given.order.trial_id, "finished")
        key = (worker.incarnation, sequence)
        together = all(peer.served >= sequence for peer in worker.fit.workers)
        last_rank = worker.fit.num_workers - 1
        if not together:
            return  # the first collective waits for the others
        if fate in ("exception", "out_of_memory") and worker.rank == last_rank:
            await self.fail(worker, "exception" if fate == "exception" else "out_of_memory", f"ValueError: {fate}")
        elif fate == "loses_its_gpu" and given.attempt == 1 and worker.rank == last_rank:
            await self.fail(worker, "device_lost", "AcceleratorError: CUDA error: unspecified launch failure")
        elif worker.rank == 0:
            await self._lead(worker, key, fate)
        elif self.progress.get(key, 0) > self.epochs + 1:
            worker.given = None
        else:
            await self.beat(worker)

    async def _lead(self, worker: FakeWorker, key: tuple[str, int], fate: str) -> None:
        done = self.progress.get(key, 0)
        if fate == "needs_fresh_workers" and len(worker.taken) > 1:
            await self.report(worker, GivenBack(why="the model was trained by an earlier trial"))
            worker.given, done = None, self.epochs + 1
        elif done == 0:
            worker.stop, worker.leave = self._ask("stop", worker), self._ask("leave", worker)
            await self.report(worker, Started(resumed=False))
        elif _says_yes(worker.stop):
            await self._leave(worker, "stopped")
            done = self.epochs + 1
        elif _says_yes(worker.leave):
            await self.report(worker, Left(message=f"{done - 1} epochs"))
            worker.given, done = None, self.epochs + 1
        elif done <= self.epochs:
            await self.report(worker, EpochDone(record=epoch_of(done)))
        elif fate == "hangs":
            self.steps[key] = self.steps.get(key, 0) + 1
            await self.beat(worker)
            return
        else:
            status: TrainingStatus = fate if fate in ("diverged", "at_target") else "finished"
            await self._leave(worker, status)
        self.progress[key] = done + 1

    def _ask(self, mode: ExitMode, worker: FakeWorker) -> asyncio.Future[bool]:
        """Rank 0's open question."""
        question = asyncio.ensure_future(self.actor.wait_for_exit(mode, turn_of(worker)))
        self.asked.append(question)
        return question

    async def _leave(self, worker: FakeWorker, status: TrainingStatus) -> None:
        await self.report(worker, TrainingEnded(status=status, score=0.5, lost_seconds=0.0, message=None))
        worker.given = None

    async def report(self, worker: FakeWorker, post: WorkerPost) -> None:
        """A rank tells the pool how its trial goes."""
        await self.actor.report(turn_of(worker), worker.rank, post)

    async def beat(self, worker: FakeWorker, **beat: Any) -> None:
        """A rank's thread says that it lives, and how far the ranks' training is."""
        key = (worker.incarnation, worker.served)
        facts = {"activity": "training", "stage": self.progress.get(key, 0), "seconds": 1.0}
        await self.report(worker, Beat(**{**facts, "count": self.steps.get(key, 0), **beat}))

    async def fail(self, worker: FakeWorker, kind: FaultKind, message: str) -> None:
        """A rank reports an exception and dies of it."""
        await self.report(worker, RankFailed(kind=kind, message=message))
        worker.alive = False

    # --- Ray Train ---------------------------------------------------------------------------------------------

    async def restart(self, fit: FakeFit) -> None:
        """A worker has died: its peers' collectives break, then all start again, or `fit()` raises."""
        for worker in fit.workers:
            if worker.alive and worker.given and not worker.frozen:
                await self.fail(worker, "collective", "RuntimeError: Connection closed by peer")
        fit.failures += 1
        life = fit.workers[0].incarnation
        loss = Loss(incarnation=life, cause=self.cause, out_of_memory={})
        if not await self.actor.workers_lost(fit.group_id, loss):
            await self.give_up(fit, "ControllerError: not wanted")
        elif fit.failures > RESTARTS:
            await self.give_up(fit, "WorkerGroupError: a worker died")
        else:
            self._live(fit)

    async def give_up(self, fit: FakeFit, error: str | None, cause: Cause = "worker_lost") -> None:
        """`fit()` returns, or raises `error`."""
        del self.fits[fit.group_id]
        for worker in fit.workers:
            worker.alive = False
        await self.actor.group_closed(fit.group_id, error, cause)

    async def lose_node(self, node: str) -> None:
        """A node goes with all that is on it; the pool hears of it, and Ray Train finds no place for a new start."""
        del self.slots[node]
        lost = [fit for fit in self.fits.values() if node in fit.nodes]
        for fit in lost:
            for worker in fit.workers:
                worker.alive = worker.alive and worker.node != node
        self.draining.pop(node, None)
        await self.actor.set_nodes(self.nodes())
        kept = [worker for fit in lost for worker in fit.workers if worker.alive and worker.registered]
        self.overbooked.extend(f"{worker.fit.group_id} is still on {worker.node}" for worker in kept)
        self.overbooked.extend(f"{fit.group_id} waits for {node}" for fit in lost if fit.alive)
        for fit in lost:
            await self.give_up(fit, "ActorDiedError", "controller_lost")

    async def drain_node(self, node: str) -> None:
        """Ray is to take a node away: what runs there runs on, and nothing new is to start there."""
        self.draining[node] = {group.group_id: group.trial_id for group in self.actor._pool.groups.values()}
        await self.actor.set_nodes(self.nodes())
        for fit in [fit for fit in self.fits.values() if not fit.alive]:
            await self.give_up(fit, "ActorDiedError", "controller_lost")

    def nodes(self) -> list[Node]:
        """The cluster's nodes as `GroupHost` tells of them."""
        return [
            Node(node_id=name, slots=0 if drains else count, host=self.hosts[name], draining=drains)
            for name, count, drains in ((name, count, name in self.draining) for name, count in self.slots.items())
        ]

    def harm(self, chance: random.Random) -> None:
        """Kills a random worker, or freezes one that trains."""
        workers = [worker for fit in self.fits.values() for worker in fit.workers if worker.alive]
        if not workers:
            return
        worker = chance.choice(workers)
        if worker.given and chance.random() < 0.3:
            worker.frozen = True
        else:
            worker.alive = False

    # --- what is true now --------------------------------------------------------------------------------------

    def training(self) -> dict[str, set[str]]:
        """Running trials → groups that train them, those with a dead worker left out: they only wait for its end."""
        found: dict[str, set[str]] = {}
        for fit in self.fits.values():
            for worker in fit.workers if all(worker.alive for worker in fit.workers) else ():
                if worker.trains and not self._is_over(worker):
                    found.setdefault(worker.trains, set()).add(fit.group_id)
        return found

    def _is_over(self, worker: FakeWorker) -> bool:
        """Whether rank 0 has ended the trial that this rank has not yet put down."""
        return self.progress.get((worker.incarnation, worker.served), 0) > self.epochs + 1

    def busy(self, host: str) -> set[str]:
        """Trials that train on a machine."""
        workers = [worker for fit in self.fits.values() for worker in fit.workers if self.hosts[worker.node] == host]
        return {worker.trains for worker in workers if worker.trains and not self._is_over(worker)}

    def starting(self, host: str) -> set[str]:
        """Groups that are being started for the first time on a machine."""
        new = [fit for fit in self.fits.values() if fit.first_start]
        return {fit.group_id for fit in new if any(self.hosts[node] == host for node in fit.nodes)}

    def member(self, worker: FakeWorker) -> Member:
        """What a rank says of itself when it registers."""
        host = self.hosts[worker.node]
        return Member(rank=worker.rank, node=worker.node, host=host, pid=1, cores=8, device="cpu", threads=1)


def turn_of(worker: FakeWorker) -> Turn:
    """The trial in a rank's hands."""
    assert worker.given is not None
    return Turn(group_id=worker.fit.group_id, incarnation=worker.incarnation, sequence=worker.given.sequence)


def _says_yes(asked: asyncio.Future[bool] | None) -> bool:
    return asked is not None and asked.done() and asked.result()
