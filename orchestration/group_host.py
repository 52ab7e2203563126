"""Stage 4, worker groups: the driver's side, which runs each group's `fit()` in a thread of its own."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestration.process_group import ProcessGroupConfig
from orchestration.worker import serve

logger = logging.getLogger(__name__)

STARTS_WITHOUT_SERVICE = 3


@dataclass(frozen=True, kw_only=True)
class GroupResources:
    """What each worker of a group is given.

    Attributes:
        device: "cpu" or "cuda".
        cpus_per_worker: Ray CPUs, and threads on a CPU worker.
        gpus_per_worker: Ray GPUs; 0 on CPU.
        timeout_seconds: longest time that a collective waits for a peer.
    """

    device: str
    cpus_per_worker: int
    gpus_per_worker: float
    timeout_seconds: float

    def per_worker(self) -> dict[str, float]:
        """Ray's resources of one worker."""
        gpus = {"GPU": self.gpus_per_worker} if self.device == "cuda" else {}
        return {"CPU": self.cpus_per_worker, **gpus}


@dataclass
class GroupHost:
    """Starts the groups that the books ask for, and reports their ends.

    `fit()` blocks for a group's whole life, so each runs in a daemon thread; Ray Train supports that, its controller
    being an actor of its own.
    """

    groups: Any
    resources: GroupResources
    folder: Path
    starting: dict[str, float] = field(default_factory=dict)  # group → when it was ordered
    cold_starts: dict[str, float] = field(default_factory=dict)  # group → seconds from its order to all ranks ready
    threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> None:
        """Begins to watch for wanted groups."""
        self._spawn(self._watch)

    def join(self, seconds: float) -> bool:
        """Waits for every group to end; says whether all did in time."""
        deadline = time.monotonic() + seconds
        for thread in list(self.threads):
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self.threads)

    def _spawn(self, target: Any, *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self.threads.append(thread)
        thread.start()

    def _watch(self) -> None:
        import ray

        try:
            while (orders := ray.get(self.groups.next_orders.remote())) is not None:
                for order in orders["start"]:
                    self.starting[order["group_id"]] = time.time()
                    self._spawn(self._run, order)
                for group_id, seconds in orders["ready"].items():
                    self.starting.pop(group_id, None)
                    self.cold_starts[group_id] = seconds
        except ray.exceptions.RayError as error:
            logger.warning("no more groups are started: %s", error)

    def _run(self, order: dict[str, Any]) -> None:
        import ray

        error: str | None = None
        try:
            self._trainer(order).fit()
        except Exception as failure:
            error = f"{type(failure).__name__}: {failure}"
            logger.warning("group %s ended: %s", order["group_id"], error)
        self.starting.pop(order["group_id"], None)
        try:
            ray.get(self.groups.group_closed.remote(order["group_id"], error))
        except ray.exceptions.RayError as gone:
            logger.info("group %s ended after its books: %s", order["group_id"], gone)

    def _trainer(self, order: dict[str, Any]) -> Any:
        from ray.train import FailureConfig, RunConfig, ScalingConfig
        from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

        on_gpu = self.resources.device == "cuda"
        places = [{"ray.io/node-id": node} for node in order["nodes"]]  # as the books count their room
        restarts = STARTS_WITHOUT_SERVICE - 1
        return DataParallelTrainer(
            serve,
            train_loop_config={
                "groups": self.groups,
                "group_id": order["group_id"],
                "threads": self.resources.cpus_per_worker,
                "device": self.resources.device,
            },
            backend_config=ProcessGroupConfig(
                backend="nccl" if on_gpu else "gloo", timeout_seconds=self.resources.timeout_seconds
            ),
            scaling_config=ScalingConfig(
                num_workers=order["num_workers"],
                use_gpu=on_gpu,
                resources_per_worker=self.resources.per_worker(),
                label_selector=places,
            ),
            run_config=RunConfig(
                name=order["group_id"],
                storage_path=str(self.folder),
                failure_config=FailureConfig(max_failures=restarts, controller_failure_limit=restarts),
            ),
        )
