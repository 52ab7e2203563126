"""Pool, host and sweep of one study together."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from scalestudy.experiments.analysis.measures.units import plural
from scalestudy.experiments.plan.plan import TrialPlan
from scalestudy.experiments.spec.sections import Limits
from scalestudy.experiments.spec.study_spec import StudySpec
from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.orchestration.cluster.nodes import Growth, alive_nodes
from scalestudy.orchestration.cluster.sharing import LeastUsed, reservations
from scalestudy.orchestration.groups.actor import GroupPoolActor
from scalestudy.orchestration.groups.host import GroupHost, GroupResources, LoopGroups, room_beside_others
from scalestudy.orchestration.groups.model import GroupLimits, TrialOrder
from scalestudy.orchestration.groups.pool import PoolSettings
from scalestudy.orchestration.study.callables import modules_of
from scalestudy.orchestration.study.concurrency import Placed, Room, concurrency, spare_cpus
from scalestudy.orchestration.sweep.search import Search
from scalestudy.orchestration.sweep.sweep import HEAD_SHARE, Record, Sweep

SHUTDOWN_SECONDS = 10.0
DAY = 86_400.0
POOL_CONCURRENCY = 10_000
"""Long polls that may wait at the same time."""


def pool_actor() -> Any:
    """Return Ray's actor class of `GroupPoolActor`. It lives on the head, as Tune's trials do."""
    import ray

    room = {name: share for name, share in HEAD_SHARE.items() if name != "CPU"}
    options = {"num_cpus": HEAD_SHARE["CPU"], "resources": room, "max_concurrency": POOL_CONCURRENCY}
    return ray.remote(GroupPoolActor).options(**options)


def collective_seconds(limits: Limits) -> float:
    """Return how long a rank waits for another: one may load, compile or write for as long as a trial may last.

    The pool finds a rank that hangs, and ends it, long before.
    """
    return min(max(60 * limits.trial_minutes, limits.stalled_seconds), DAY)


class Engine:
    """All parts of a study that run on the cluster."""

    def __init__(
        self,
        spec: StudySpec,
        sizes: Sequence[int],
        placed: Placed,
        folder: StudyFolder,
        *,
        growth: Growth | None,
        fresh_workers: bool,
        say: Callable[[str], None],
    ) -> None:
        """Start the engine that a spec asks for, for trials of these sizes.

        growth: of the cluster's autoscaler; None: it has none. fresh_workers: whether every trial gets workers that
        have trained nothing. say: takes what trials wait for, from another thread.
        """
        wanted, workload, device, nodes = spec.resources, spec.workload, placed.device, placed.nodes
        resources = GroupResources(
            device=device,
            cpus_per_worker=wanted.cpus_per_worker,
            gpus_per_worker=wanted.gpus_per_worker if device == "cuda" else 0,
            timeout_seconds=collective_seconds(spec.limits),
            spare_cpus=spare_cpus(workload),
        )
        per_group = 1 if fresh_workers or workload.loop else spec.limits.trials_per_group
        limits = GroupLimits(
            trial_seconds=60 * spec.limits.trial_minutes,
            stalled_seconds=spec.limits.stalled_seconds,
            failures_per_trial=spec.limits.failures_per_trial,
            trials_per_group=per_group,
        )
        self.times_apart = placed.rule == "packed, then timed"  # its trials are timed by separate runs, after them
        self._room = Room(nodes=nodes, exclusive=placed.rule == "exclusive")
        self._sizes, self._logs, self._started = sizes, folder.logs, False
        cpus, gpus = wanted.cpus_per_worker, wanted.gpus_per_worker
        self._grown = growth.most(device=device, cpus_per_worker=cpus, gpus_per_worker=gpus) if growth else None
        settings = PoolSettings(
            limits=limits,
            exclusive=self._room.exclusive,
            placement=wanted.placement,
            logs=str(folder.driver_log),
            grows=growth is not None,
        )
        free = room_beside_others(alive_nodes(), resources, LeastUsed(), reservations())
        self.pool = pool_actor().remote(free, settings)
        shared = folder.place_of(folder.logs) if len(nodes) > 1 or growth else str(folder.logs)
        most = math.inf if self._grown is None else self._grown.largest_group
        modules = modules_of(spec)
        loop = None
        if workload.loop:
            loop = LoopGroups(storage=str(folder.place_of(folder.path / "checkpoints")), datasets=workload.datasets)
        self.host = GroupHost(self.pool, resources, folder.logs, shared, modules=modules, loop=loop, say=say, most=most)

    def run(
        self,
        search: Search,
        order_of: Callable[[TrialPlan], TrialOrder],
        record: Record,
        should_stop: Callable[[], bool],
        sizes: Sequence[int] = (),
        *,
        exclusive: bool = False,
    ) -> None:
        """Run every trial of a search; return when all have ended, `should_stop` says so, or the pool is lost.

        May be called again: groups stay warm in between. order_of, record: see `Sweep`. sizes: of the trials to come,
        in their order, as far as they are known: groups may be started ahead of need. exclusive: one trial at a time on
        a machine from now on, whatever the spec says.
        """
        import ray

        if exclusive:
            self._room = replace(self._room, exclusive=True)
            with suppress(ray.exceptions.RayError):  # the sweep will notice that the pool is gone
                ray.get(self.pool.set_exclusive.remote())
        if not self._started:
            self._started = True
            self.pool.watch.remote()
            self.host.start()
        if self.host.loop is None:  # a group of a user's loop serves one trial, which asks for it
            self.pool.prepare.remote(*sizes)
        Sweep(search, pool=self.pool, order_of=order_of, record=record).run(
            concurrency=concurrency(self._sizes, self._room, self._grown),
            at_a_time=self._at_a_time,
            folder=self._logs,
            should_stop=lambda: should_stop() or self.is_lost or self.cluster_ends is not None,
        )

    def _at_a_time(self) -> float:
        """Return how many trials the cluster can use now. If it may grow, one more waits than has room.

        An autoscaler adds nodes for that one. More of them would come too early for a search that learns from its
        trials.
        """
        if self._grown is None:
            return math.inf
        return concurrency(self._sizes, self._room_now) + 1

    @property
    def slots(self) -> int:
        """The number of workers that run at a time, by what the cluster is now; 1 if one trial has it to itself."""
        return 1 if self._room.exclusive else self._room_now.slots

    @property
    def _room_now(self) -> Room:
        return replace(self._room, nodes=tuple(self.host.room or self._room.nodes))

    @property
    def cluster_ends(self) -> str | None:
        """Why there will be no cluster soon; None: it stays."""
        return self.host.cluster_ends

    @property
    def is_lost(self) -> bool:
        """Whether the pool's actor has died."""
        return self.host.pool_lost

    def check_lost(self) -> bool:
        """Return `is_lost` after asking the pool itself, which may have died just now."""
        import ray

        try:
            ray.get(self.pool.ping.remote())
        except ray.exceptions.RayError:
            return True
        return self.is_lost

    def waiting(self) -> dict[str, float]:
        """Return what is being started, and for how many seconds; for the live view."""
        now = time.monotonic()
        groups = list(self.host.starting.values())
        return {f"starting {plural(group.num_workers, 'worker')}": now - group.since for group in groups}

    def cold_starts(self) -> dict[str, float]:
        """Return the seconds from each group's order to its workers being ready."""
        return dict(self.host.cold_starts)

    def stop_soon(self) -> None:
        """Answer every waiting trial, so that the sweep can end; safe in a signal handler."""
        self.pool.close.remote()

    def shut_down(self, seconds: float = SHUTDOWN_SECONDS) -> bool:
        """End the groups, wait a little for their workers, and end the pool; return whether all groups have ended.

        Ray would keep the pool for as long as this process runs, which may be a notebook.
        """
        import ray

        ended = self.host.close(seconds)
        with suppress(ray.exceptions.RayError):
            ray.kill(self.pool)
        return ended
