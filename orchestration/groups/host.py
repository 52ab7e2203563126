"""The driver's side of the pool, which runs each group's `fit()` in its own thread."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalestudy.experiments.analysis.measures.units import plural
from scalestudy.experiments.spec.addresses import child, parent_and_name
from scalestudy.orchestration.cluster import nodes as clusters
from scalestudy.orchestration.cluster import ray_private, sharing
from scalestudy.orchestration.cluster.nodes import ClusterNode, Node
from scalestudy.orchestration.cluster.sharing import WANTED, LeastUsed, Reservation
from scalestudy.orchestration.groups.failures import Cause
from scalestudy.orchestration.groups.gpus_on_cpu import training_device
from scalestudy.orchestration.groups.model import GroupStart, HostOrders, Wanted
from scalestudy.orchestration.groups.pool import STARTS_WITHOUT_SERVICE
from scalestudy.orchestration.groups.ray_train import (
    ControllerHandle,
    GroupCallback,
    NotWantedError,
    ProcessGroupConfig,
)
from scalestudy.orchestration.groups.worker import WorkerSettings, serve
from scalestudy.orchestration.storage.trial_states import forget_run
from scalestudy.training.exceptions import InputError

if TYPE_CHECKING:
    from scalestudy.orchestration.groups.trainer import GroupTrainer

logger = logging.getLogger(__name__)

NODES_SECONDS = 1.0
UNPLACED_SECONDS = 10.0
"""How long a group may wait for room that seemed to be there."""
SAY_SECONDS = 60.0
"""Time between two messages on what trials wait for. The first one comes after `UNPLACED_SECONDS`."""
USELESS_LOOKS = 3
"""Polls after which a placed reservation that we still can't use is dropped."""
AGAIN_SECONDS = 10.0
"""How long the oldest study on the cluster waits before it shows such a reservation again."""
AGE_SECONDS = 4.0
"""Extra back-off per older study, so that reservations do not overlap."""


@dataclass(frozen=True, kw_only=True)
class GroupResources:
    """The resources of each worker of a group."""

    device: str  # "cpu" or "cuda"
    cpus_per_worker: int  # Ray CPUs, and threads on a CPU worker
    gpus_per_worker: float  # Ray GPUs; 0 on CPU
    timeout_seconds: float  # longest time that a collective waits for a peer
    spare_cpus: int = 0  # of the cluster, for the tasks of Ray's data sets

    def per_worker(self, tag: int = 0) -> dict[str, float]:
        """Return Ray's resources of one worker. tag: a few bytes of memory that identify its group; 0: none."""
        gpus = {"GPU": self.gpus_per_worker} if self.device == "cuda" else {}
        memory = {"memory": tag} if tag else {}
        return {"CPU": self.cpus_per_worker, **memory, **gpus}


@dataclass(frozen=True, kw_only=True)
class LoopGroups:
    """What groups need whose workers call a user's loop."""

    storage: str  # path or URI of the folder where Ray Train keeps the checkpoints
    datasets: Mapping[str, str]  # functions that make Ray's data sets, as `package.module:function`, by name


@dataclass(frozen=True, kw_only=True)
class Starting:
    """A group whose workers are not ready."""

    num_workers: int
    since: float  # when it was ordered, by `time.monotonic`


@dataclass
class GroupHost:
    """The runner of the groups that the pool orders. It reports their ends, and tells the pool the cluster's room.

    `fit()` blocks for a group's whole life, so each runs in a daemon thread. Ray Train supports that, since its
    controller is a separate actor.
    """

    pool: Any  # handle of the pool's actor
    resources: GroupResources
    folder: Path
    shared: str = ""  # path or URI by which Ray Train checks that all nodes share storage; empty: `folder`
    starting: dict[str, Starting] = field(default_factory=dict)  # by group
    cold_starts: dict[str, float] = field(default_factory=dict)  # group → seconds from its order to all ranks ready
    threads: list[threading.Thread] = field(default_factory=list)
    pool_lost: bool = False  # whether the pool's actor has died
    cluster_ends: str | None = None  # why there will be no cluster soon
    modules: tuple[str, ...] = ()  # as in `WorkerSettings`
    loop: LoopGroups | None = None  # None: our loop trains
    say: Callable[[str], None] = logger.info  # takes, every minute, what trials wait for
    most: float = math.inf
    """Workers of one trial that the cluster may have room for with all that its autoscaler may add; infinity:
    unknown."""
    _ended: threading.Event = field(default_factory=threading.Event)  # no more groups are wanted
    _tags: dict[float, str] = field(default_factory=dict)  # tag → group

    def __post_init__(self) -> None:
        self._used, self._wish = LeastUsed(), _Wish(self.resources, self.say, self.most)
        self.room: list[Node] = []  # as the pool has it
        self._runs: set[str] = set()  # folders of Ray Train's runs of users' loops that are over
        self._unplaced: dict[str, float] = {}  # placement group → since when it waits, by `time.monotonic`

    def start(self) -> None:
        """Begin to watch for wanted groups and for changes of the cluster."""
        self._spawn(self._watch_orders)
        self._spawn(self._watch_nodes)

    def close(self, seconds: float) -> bool:
        """End every group, at once those that take longer than `seconds`; return whether all have ended.

        All threads must have left Ray before Ray shuts down. Ray kills the process otherwise.
        """
        self.pool.close.remote()
        if self.join(seconds):
            return True
        self.pool.abandon.remote()
        return self.join(seconds)

    def join(self, seconds: float) -> bool:
        """Wait for every group to end; return whether all did in time."""
        deadline = time.monotonic() + seconds
        for thread in self.threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self.threads)

    def _spawn(self, target: Any, *args: Any, name: str | None = None) -> None:
        thread = threading.Thread(target=target, args=args, name=name, daemon=True)
        self.threads.append(thread)
        thread.start()

    def _watch_orders(self) -> None:
        import ray

        orders: HostOrders | None
        try:
            while (orders := ray.get(self.pool.next_orders.remote())) is not None:
                for start in orders.start:
                    self._tags[start.tag] = start.group_id
                    self._wish.drop()
                    self.starting[start.group_id] = Starting(num_workers=start.num_workers, since=time.monotonic())
                    self._spawn(self._run, start, name=start.group_id)
                for group_id, seconds in orders.ready.items():
                    self.starting.pop(group_id, None)
                    self.cold_starts[group_id] = seconds
        except ray.exceptions.RayError as error:
            self.pool_lost = True
            logger.warning("the pool is lost, so no more groups start: %s", error)
        self._ended.set()

    def _watch_nodes(self) -> None:
        """Tell the pool what the cluster has room for, until no more groups are wanted."""
        import ray

        while not self._ended.wait(NODES_SECONDS) and ray.is_initialized():
            self._tell_room()
        if ray.is_initialized():
            self._wish.drop()

    def _tell_room(self) -> None:
        """Tell the pool the room on each living node, and what others wait for; ask what waits here."""
        import ray

        try:
            nodes = clusters.alive_nodes()
            if self.cluster_ends is None and clusters.head_drains(nodes):
                self.cluster_ends = clusters.HEAD_DRAINS
                self.pool.close.remote()  # answers every trial that waits, so that the sweep can end
            reservations = sharing.reservations()
            room = room_beside_others(nodes, self.resources, self._used, reservations, self._is_ours)
            if room != self.room:
                ray.get(self.pool.set_nodes.remote(room))
                self.room = room
            job = ray_private.job_number(ray.get_runtime_context().get_job_id())
            demand = sharing.demand_of_others(reservations, job)
            wanted = ray.get(self.pool.share.remote(demand, self._long_unplaced(reservations)))
            self._wish.show(wanted, reservations, sharing.older_studies(reservations, job))
        except Exception as error:  # the cluster or the pool is gone: others notice that
            logger.info("can't tell the pool the cluster's room: %s", error)

    def _is_ours(self, reservation: Reservation) -> bool:
        return reservation.memory in self._tags or reservation.key == self._wish.key

    def _long_unplaced(self, reservations: Sequence[Reservation]) -> list[str]:
        """Return the groups whose placement group has waited for too long."""
        now = time.monotonic()
        waiting = {each.key: each for each in reservations if each.waits and each.memory in self._tags}
        self._unplaced = {key: self._unplaced.get(key, now) for key in waiting}
        late = [key for key, since in self._unplaced.items() if now - since > UNPLACED_SECONDS]
        return [self._tags[waiting[key].memory or 0.0] for key in late]

    def _run(self, start: GroupStart) -> None:
        """Run a group for its whole life, then tell the pool that it is over."""
        import ray

        error, cause = self._fit(start)
        self.starting.pop(start.group_id, None)
        if self._ended.is_set():  # no caller is left; Ray may be gone, and would end a process that still calls it
            return
        try:
            ray.get(self.pool.group_closed.remote(start.group_id, error, cause))
            if self.loop:
                self._runs.add(child(self.loop.storage, run_name(start)))
                self._forget_runs(ray.get(self.pool.kept_checkpoints.remote()))
        except ray.exceptions.RayError as gone:
            logger.info("group %s ended after its pool: %s", start.group_id, gone)

    def _forget_runs(self, kept: Sequence[str]) -> None:
        """Delete the folders of Ray Train's runs that are over, but for those from which a trial may go on.

        kept: the addresses of checkpoints.
        """
        needed = {parent_and_name(address)[0] for address in kept}
        for run in self._runs - needed:
            forget_run(run)
            self._runs.discard(run)

    def _fit(self, start: GroupStart) -> tuple[str | None, Cause]:
        """Run a group's `fit()`; return what ended it early, and that cause as a `Cause`."""
        from ray.exceptions import RayActorError

        try:
            self._trainer(start).fit()
        except SystemExit:  # Ray has been shut down under it
            return None, "worker_lost"
        except Exception as failure:
            error = why_ended(failure)
            not_wanted = isinstance(getattr(failure, "controller_failure", None), NotWantedError)
            logger.log(logging.INFO if not_wanted else logging.WARNING, "group %s ended: %s", start.group_id, error)
            return error, "controller_lost" if isinstance(failure, RayActorError) else "worker_lost"
        return None, "worker_lost"

    def _trainer(self, start: GroupStart) -> GroupTrainer:
        """Return the trainer of a group: its workers serve the pool, by our loop or by a user's."""
        from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig

        trains_on = training_device(self.resources.device)
        settings = WorkerSettings(
            pool=self.pool,
            group_id=start.group_id,
            threads=self.resources.cpus_per_worker,
            device=trains_on,
            logs=self.folder,
            modules=self.modules,
        )
        scaling = ScalingConfig(
            num_workers=start.num_workers,
            use_gpu=self.resources.device == "cuda",
            resources_per_worker=self.resources.per_worker(start.tag),
            label_selector=[{"ray.io/node-id": node} for node in start.nodes],  # as the pool counts its room
        )
        restarts = STARTS_WITHOUT_SERVICE - 1
        failures = FailureConfig(max_failures=restarts, controller_failure_limit=restarts)
        callbacks = [GroupCallback(self.pool, start.group_id), ControllerHandle(self.pool, start.group_id)]
        backend = "nccl" if trains_on == "cuda" else "gloo"
        if self.loop is None:
            from scalestudy.orchestration.groups.trainer import GroupTrainer

            return GroupTrainer(
                serve,
                train_loop_config={"settings": settings},
                backend_config=ProcessGroupConfig(backend=backend, timeout_seconds=self.resources.timeout_seconds),
                scaling_config=scaling,
                run_config=RunConfig(
                    name=start.group_id,
                    storage_path=self.shared or str(self.folder),
                    failure_config=failures,
                    callbacks=callbacks,
                ),
            )
        from scalestudy.orchestration.groups.loop_trainer import LoopBackendConfig, LoopTrainer
        from scalestudy.orchestration.groups.user_loop import LoopEnd, LoopReports, OwnDataset

        return LoopTrainer(
            serve,
            train_loop_config={"settings": settings},
            backend_config=LoopBackendConfig(backend=backend, timeout_s=int(self.resources.timeout_seconds)),
            scaling_config=scaling,
            run_config=RunConfig(
                name=run_name(start),
                storage_path=self.loop.storage,
                failure_config=failures,
                # the last one may be gone when the pool still names the one before
                checkpoint_config=CheckpointConfig(num_to_keep=2),
                callbacks=[
                    *callbacks,
                    LoopReports(self.pool, start.group_id),
                    LoopEnd(self.pool, start.group_id),
                ],
            ),
            datasets={
                name: OwnDataset(self.pool, start.group_id, function) for name, function in self.loop.datasets.items()
            },
        )


def run_name(start: GroupStart) -> str:
    """Return a name for Ray Train's run of a user's loop that no other group has: Ray would go on with its run."""
    return f"{start.group_id}-{start.tag:x}"


def why_ended(failure: Exception) -> str:
    """Return why a `fit()` ended, in one line: a worker's mistake as it joined, else all that Ray says."""
    cause = getattr(getattr(failure, "controller_failure", None), "cause", None)
    if isinstance(cause, InputError):
        return str(cause)
    return " ".join(f"{type(failure).__name__}: {failure}".split())


def room_beside_others(
    nodes: Sequence[ClusterNode],
    resources: GroupResources,
    used: LeastUsed,
    reservations: Sequence[Reservation],
    ours: Callable[[Reservation], bool] = lambda _: False,
) -> list[Node]:
    """Return the room on each of these living nodes, and what others hold of it. used: takes the sample."""
    sample = sharing.used_by_others(nodes, ray_private.available_per_node(), reservations, ours)
    return clusters.slots(
        nodes,
        device=resources.device,
        cpus_per_worker=resources.cpus_per_worker,
        gpus_per_worker=resources.gpus_per_worker,
        spare_cpus=resources.spare_cpus,
        used=used.take(sample),
    )


class _Wish:
    """A placement group for what the study waits for, so that other studies and the autoscaler see it.

    It does not hold room for long: as soon as it has room, the pool has it, and a group takes its place. But a
    placement group can't express all that the pool needs. A `PACK` group may come to lie on more nodes than a trial may
    span, or on a machine on which a trial has to be alone. Such a wish would keep others from room that we can't use:
    it is dropped, and shown again some seconds later.
    """

    def __init__(self, resources: GroupResources, say: Callable[[str], None], most: float) -> None:
        self._resources, self._say, self._most = resources, say, most
        self._placement_group: Any = None
        self._wanted: Wanted | None = None
        self._since, self._said = 0.0, 0
        self._looks = 0  # polls since the wish has room
        self._not_before = 0.0
        self._lock = threading.Lock()

    @property
    def key(self) -> str | None:
        """Its placement group's id; None: there is none."""
        group = self._placement_group
        return None if group is None else group.id.hex()

    def show(self, wanted: Wanted | None, reservations: Sequence[Reservation] = (), older: int = 0) -> None:
        """Show what is wanted now, if others or an autoscaler can help; report every minute what the study waits for.

        reservations: of the cluster. older: studies on it that began before this one.
        """
        if wanted is None:
            self.drop()
            self._wanted, self._looks = None, 0
            return
        now = time.monotonic()
        if self._wanted is None or self._wanted.num_workers != wanted.num_workers:
            self.drop()
            self._since, self._said = now, 0
        self._wanted = wanted
        has_room = any(each.key == self.key and not each.waits for each in reservations)
        self._looks = self._looks + 1 if has_room else 0
        if self._looks > USELESS_LOOKS:
            self._not_before = now + AGAIN_SECONDS + AGE_SECONDS * older
        if now < self._not_before or wanted.why not in ("others", "growth"):
            self.drop()
        else:
            self._place(wanted)
        if now - self._since >= UNPLACED_SECONDS + self._said * SAY_SECONDS:
            self._said += 1
            self._say(waits_for(wanted, now - self._since, self._most))

    def drop(self) -> None:
        """Give back its room, or its place in the queue."""
        import ray

        with self._lock:
            if self._placement_group is not None:
                ray.util.remove_placement_group(self._placement_group)
            self._placement_group = None

    def _place(self, wanted: Wanted) -> None:
        import ray

        with self._lock:
            if self._placement_group is None:
                bundles = [self._resources.per_worker() for _ in range(wanted.num_workers)]
                strategy = "STRICT_PACK" if wanted.one_node else "PACK"
                self._placement_group = ray.util.placement_group(bundles, strategy, name=WANTED)


def waits_for(wanted: Wanted, seconds: float, most: float = math.inf) -> str:
    """Return what the study waits for, in words. most: as in `GroupHost`."""
    waited = f"{seconds / 60:.0f} min" if seconds >= 60 else f"{seconds:.0f} s"
    workers = plural(wanted.num_workers, "worker")
    room = f"{wanted.largest_group}" + (" on GPUs of one type" if wanted.largest_group < wanted.room else "")
    match wanted.why:
        case "others":
            why = f"other work on the cluster holds the room of {wanted.taken} of {wanted.room}"
        case "growth":
            limit = "whose limit is not known" if math.isinf(most) else f"up to {most:g}"
            why = f"the cluster has room for {room} until its autoscaler adds nodes, {limit}"
        case "shrunken":
            why = f"nodes were lost or are draining, and the cluster has room for {room}"
        case "unplaced":
            named = ", ".join(wanted.machines[:3]) + (" …" if len(wanted.machines) > 3 else "")
            free = f"although {wanted.num_workers} look free on {named}"
            why = f"Ray has found no place for a group of {workers}, {free}"
    return f"waiting for room for {workers} ({waited}): {why}"
