"""The worker groups' books, their host in the driver, and the sweep."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from scalestudy.experiments.plan.plan import TrialPlan
from scalestudy.experiments.spec.study_spec import StudySpec
from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.orchestration.cluster import connection
from scalestudy.orchestration.cluster import nodes as nodes_module
from scalestudy.orchestration.groups.actor import WorkerGroups
from scalestudy.orchestration.groups.host import GroupHost, GroupResources
from scalestudy.orchestration.groups.model import GroupLimits
from scalestudy.orchestration.study import schedule
from scalestudy.orchestration.sweep.sweep import HEAD_SHARE, OnEvent, run_sweep

SHUTDOWN_SECONDS = 10.0
BOOKS_CONCURRENCY = 10_000  # long polls that may wait at a time


def books_actor() -> Any:
    """`WorkerGroups` as an actor class. It lives on the head, as Tune's trials do: no other node's loss takes it."""
    import ray

    room = {name: share for name, share in HEAD_SHARE.items() if name != "CPU"}
    options = {"num_cpus": HEAD_SHARE["CPU"], "resources": room, "max_concurrency": BOOKS_CONCURRENCY}
    return ray.remote(WorkerGroups).options(**options)


class Engine:
    """Everything of a study that runs on the cluster.

    times_apart: whether its trials are to be timed by runs of their own, after them.
    """

    def __init__(self, spec: StudySpec, sizes: Sequence[int], cluster: connection.Cluster, folder: StudyFolder) -> None:
        """The engine that a spec asks for, for trials of these sizes.

        Raises RequestError when the cluster can never run the largest.
        """

        wanted = spec.resources
        device, nodes = nodes_module.place(wanted, sizes, cluster.nodes)
        resources = GroupResources(
            device=device,
            cpus_per_worker=wanted.cpus_per_worker,
            gpus_per_worker=wanted.gpus_per_worker if device == "cuda" else 0,
            timeout_seconds=spec.limits.stalled_seconds,
        )
        limits = GroupLimits(
            trial_seconds=60 * spec.limits.trial_minutes,
            stalled_seconds=spec.limits.stalled_seconds,
            failures_per_trial=spec.limits.failures_per_trial,
            trials_per_group=spec.limits.trials_per_group,
        )
        factorised = spec.search.method == "factorised"
        rule = schedule.trainings_rule(wanted, device, factorised=factorised)
        self.times_apart = rule == "packed, then timed"
        per_group = spec.limits.trials_per_group
        self._room = schedule.Room(nodes=tuple(nodes), exclusive=rule == "exclusive", trials_per_group=per_group)
        self._sizes, self._logs, self._started = sizes, folder.logs, False
        logs = str(folder.driver_log)
        self.groups = books_actor().remote(nodes, limits, exclusive=self._room.exclusive, logs=logs)
        shared = folder.place_of(folder.logs) if len(nodes) > 1 else str(folder.logs)
        self.host = GroupHost(self.groups, resources, folder.logs, shared)

    def run(
        self,
        search: Any,
        order_of: Callable[[TrialPlan], dict[str, Any]],
        on_event: OnEvent,
        should_stop: Callable[[], bool],
        sizes: Sequence[int] = (),
        *,
        exclusive: bool = False,
    ) -> None:
        """Runs every trial of a search; returns when all have ended, `should_stop` says so, or the books are lost.

        May be called again: groups stay warm in between. sizes: of the trials to come, in their order, as far as they
        are known: groups may be started ahead of need. exclusive: one trial at a time on a machine from now on,
        whatever the spec says.
        """
        if exclusive:
            self._make_exclusive()
        self.groups.prepare.remote(*sizes)
        if not self._started:
            self._started = True
            self.groups.watch.remote()
            self.host.start()
        run_sweep(
            search,
            groups=self.groups,
            order_of=order_of,
            concurrency=schedule.concurrency(self._sizes, self._room),
            folder=self._logs,
            on_event=on_event,
            should_stop=lambda: should_stop() or self.is_lost,
        )

    def _make_exclusive(self) -> None:
        import ray

        self._room = replace(self._room, exclusive=True)
        with suppress(ray.exceptions.RayError):  # books that are gone are found out by the sweep
            ray.get(self.groups.set_exclusive.remote())

    @property
    def is_lost(self) -> bool:
        """Whether the actor that keeps the books has died."""
        return self.host.books_lost

    def check_lost(self) -> bool:
        """As `is_lost`, asking the books themselves: they may have died just now."""
        import ray

        try:
            ray.get(self.groups.snapshot.remote())
        except ray.exceptions.RayError:
            return True
        return self.is_lost

    def books(self, seconds: float = 1.0) -> dict[str, Any] | None:
        """`WorkerGroups.snapshot`; None where the books are gone or do not answer."""
        import ray

        try:
            found: dict[str, Any] = ray.get(self.groups.snapshot.remote(), timeout=seconds)
        except ray.exceptions.RayError:
            return None
        return found

    def waiting(self) -> dict[str, float]:
        """What is being started, and for how many seconds; for the live view."""
        now = time.time()
        orders = dict(self.host.starting)
        return {f"starting {group.rpartition('-')[2]} worker(s)": now - since for group, since in orders.items()}

    def cold_starts(self) -> dict[str, float]:
        """Seconds from each group's order to its workers being ready."""
        return dict(self.host.cold_starts)

    def stop_soon(self) -> None:
        """Answers every waiting trial, so that the sweep can end; safe in a signal handler."""
        self.groups.close.remote()

    def shut_down(self, seconds: float = SHUTDOWN_SECONDS) -> None:
        """Ends the groups, and waits a little for their workers."""
        self.host.close(seconds)
