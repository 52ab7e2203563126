"""Stages 3 and 4, put together: the worker groups' books, their host in the driver, and the sweep."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments.plan import Plan
from experiments.spec import StudySpec
from experiments.study_folder import StudyFolder
from orchestration import cluster as clusters
from orchestration.books import GroupLimits
from orchestration.group_host import GroupHost, GroupResources
from orchestration.sweep import OnEvent, run_sweep
from orchestration.trials import order
from orchestration.worker_groups import WorkerGroups

SHUTDOWN_SECONDS = 10.0
BOOKS_CONCURRENCY = 10_000  # long polls that may wait at a time


class Engine:
    """Everything of a study that runs on the cluster."""

    def __init__(
        self,
        plan: Plan,
        orders: dict[str, dict[str, Any]],
        cluster: clusters.Cluster,
        room: list[clusters.Node],
        resources: GroupResources,
        limits: GroupLimits,
        folder: StudyFolder,
        *,
        exclusive: bool,
    ) -> None:
        """orders: what to train, by trial id. room: the workers that each node has room for."""
        import ray

        self.plan, self.cluster, self.room, self.folder = plan, cluster, room, folder
        self._orders = orders
        self.resources = resources
        self.exclusive = exclusive
        actor = ray.remote(WorkerGroups).options(num_cpus=0, max_concurrency=BOOKS_CONCURRENCY)
        self.groups = actor.remote(room, limits, exclusive=exclusive)
        self.host = GroupHost(self.groups, resources, folder.logs)

    @classmethod
    def for_study(
        cls, spec: StudySpec, plan: Plan, cluster: clusters.Cluster, folder: StudyFolder, data_root: Path
    ) -> Engine:
        """The engine that a spec asks for. Raises RequestError when the cluster can never run its largest trial."""
        wanted = spec.resources
        device, room = clusters.place(wanted, [trial.num_gpus for trial in plan.trials], cluster.nodes)
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
        orders = {trial.trial_id: order(trial, data_root, folder.checkpoints(trial.trial_id)) for trial in plan.trials}
        exclusive = device == "cpu" if wanted.exclusive == "auto" else bool(wanted.exclusive)
        return cls(plan, orders, cluster, room, resources, limits, folder, exclusive=exclusive)

    def check_storage(self) -> None:
        """Raises UnreachableError when a node can't read the study's folder."""
        clusters.check_shared_storage(self.folder.path, self.cluster.nodes)

    def concurrency(self) -> int:
        """Trials at a time: one a machine when they have it to themselves, else as many as the smallest ones fit."""
        usable = [node for node in self.room if node.slots]
        if self.exclusive:
            return len({node.machine for node in usable})
        smallest = min(trial.num_gpus for trial in self.plan.trials)
        return max(1, sum(node.slots for node in usable) // smallest)

    def run(self, on_event: OnEvent, should_stop: Callable[[], bool]) -> None:
        """Runs every trial; returns when all have ended or `should_stop` says so."""
        self.groups.watch.remote()
        self.groups.prepare.remote(self.plan.trials[0].num_gpus)
        self.host.start()
        run_sweep(
            self.plan,
            groups=self.groups,
            orders=self._orders,
            concurrency=self.concurrency(),
            folder=self.folder.logs,
            on_event=on_event,
            should_stop=should_stop,
        )

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

    def shut_down(self) -> None:
        """Ends the groups and waits a little for their workers."""
        self.groups.close.remote()
        self.host.join(SHUTDOWN_SECONDS)

    def config_of(self, trial_id: str) -> dict[str, Any]:
        """A trial's training configuration."""
        return dict(self._orders[trial_id]["config"])
