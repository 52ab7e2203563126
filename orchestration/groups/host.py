"""The driver's side, which runs each group's `fit()` in a thread of its own."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scalestudy.orchestration.cluster import nodes as clusters
from scalestudy.orchestration.cluster.nodes import Node
from scalestudy.orchestration.groups.failures import Cause
from scalestudy.orchestration.groups.pool import STARTS_WITHOUT_SERVICE
from scalestudy.orchestration.groups.ray_train import ProcessGroupConfig
from scalestudy.orchestration.groups.worker import serve

logger = logging.getLogger(__name__)

NODES_SECONDS = 1.0


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

    def per_worker(self, mark: int) -> dict[str, float]:
        """Ray's resources of one worker. mark: a few bytes of memory, by which its group is known."""
        gpus = {"GPU": self.gpus_per_worker} if self.device == "cuda" else {}
        return {"CPU": self.cpus_per_worker, "memory": mark, **gpus}


@dataclass
class GroupHost:
    """Starts the groups that the books ask for, reports their ends, and tells the books which nodes there are.

    `fit()` blocks for a group's whole life, so each runs in a daemon thread; Ray Train supports that, its controller
    being an actor of its own.
    """

    groups: Any
    resources: GroupResources
    folder: Path
    shared: str = ""  # where Ray Train finds out whether all nodes share storage, a path or a URI; as folder if empty
    starting: dict[str, float] = field(default_factory=dict)  # group → when it was ordered
    cold_starts: dict[str, float] = field(default_factory=dict)  # group → seconds from its order to all ranks ready
    threads: list[threading.Thread] = field(default_factory=list)
    books_lost: bool = False  # whether the actor that keeps the books has died
    _ended: threading.Event = field(default_factory=threading.Event)  # no more groups are wanted

    def start(self) -> None:
        """Begins to watch for wanted groups and for changes of the cluster."""
        self._spawn(self._watch)
        self._spawn(self._watch_nodes)

    def close(self, seconds: float) -> bool:
        """Ends every group; those that have not ended by then are ended at once. Says whether all have.

        No thread may be inside of Ray when Ray is shut down: it would end the process, by a signal or with status 1.
        """
        self.groups.close.remote()
        if self.join(seconds):
            return True
        self.groups.abandon.remote()
        return self.join(seconds)

    def join(self, seconds: float) -> bool:
        """Waits for every group to end; says whether all did in time."""
        deadline = time.monotonic() + seconds
        for thread in self.threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self.threads)

    def _spawn(self, target: Any, *args: Any, name: str | None = None) -> None:
        thread = threading.Thread(target=target, args=args, name=name, daemon=True)
        self.threads.append(thread)
        thread.start()

    def _watch(self) -> None:
        import ray

        try:
            while (orders := ray.get(self.groups.next_orders.remote())) is not None:
                for order in orders["start"]:
                    self.starting[order["group_id"]] = time.time()
                    self._spawn(self._run, order, name=order["group_id"])
                for group_id, seconds in orders["ready"].items():
                    self.starting.pop(group_id, None)
                    self.cold_starts[group_id] = seconds
        except ray.exceptions.RayError as error:
            self.books_lost = True
            logger.warning("no more groups are started, their books are lost: %s", error)
        self._ended.set()

    def _watch_nodes(self) -> None:
        import ray

        known: list[Node] = []
        while not self._ended.wait(NODES_SECONDS) and ray.is_initialized():
            try:
                room = self._room()
                if room != known:
                    ray.get(self.groups.nodes_changed.remote(room))
                    known = room
            except Exception as error:  # the cluster or the books are gone: others notice that
                logger.info("the cluster's nodes can't be told to the books: %s", error)

    def _room(self) -> list[Node]:
        """The room on each node that is alive."""
        given = self.resources
        return clusters.slots(
            clusters.alive_nodes(),
            device=given.device,
            cpus_per_worker=given.cpus_per_worker,
            gpus_per_worker=given.gpus_per_worker,
        )

    def _run(self, order: dict[str, Any]) -> None:
        import ray

        error, cause = self._fit(order)
        self.starting.pop(order["group_id"], None)
        if self._ended.is_set():  # nobody asks any more; Ray may be gone, and would end a process that still calls it
            return
        try:
            ray.get(self.groups.group_closed.remote(order["group_id"], error, cause))
        except ray.exceptions.RayError as gone:
            logger.info("group %s ended after its books: %s", order["group_id"], gone)

    def _fit(self, order: dict[str, Any]) -> tuple[str | None, Cause]:
        """A group's whole life; what ended it before its time, and the word for that."""
        from ray.exceptions import RayActorError

        from scalestudy.orchestration.groups.ray_train import NotWantedError

        try:
            self._trainer(order).fit()
        except SystemExit:  # Ray has been shut down under it
            return None, "worker_lost"
        except Exception as failure:
            error = f"{type(failure).__name__}: {failure}"
            told = isinstance(getattr(failure, "controller_failure", None), NotWantedError)
            logger.log(logging.INFO if told else logging.WARNING, "group %s ended: %s", order["group_id"], error)
            return error, "controller_lost" if isinstance(failure, RayActorError) else "worker_lost"
        return None, "worker_lost"

    def _trainer(self, order: dict[str, Any]) -> Any:
        from ray.train import FailureConfig, RunConfig, ScalingConfig
        from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

        from scalestudy.orchestration.groups.ray_train import ControllerHandle, GroupWatch

        watched = (self.groups, order["group_id"])
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
                "logs": str(self.folder),
            },
            backend_config=ProcessGroupConfig(
                backend="nccl" if on_gpu else "gloo", timeout_seconds=self.resources.timeout_seconds
            ),
            scaling_config=ScalingConfig(
                num_workers=order["num_workers"],
                use_gpu=on_gpu,
                resources_per_worker=self.resources.per_worker(order["mark"]),
                label_selector=places,
            ),
            run_config=RunConfig(
                name=order["group_id"],
                storage_path=self.shared or str(self.folder),
                failure_config=FailureConfig(max_failures=restarts, controller_failure_limit=restarts),
                callbacks=[GroupWatch(*watched), ControllerHandle(*watched)],
            ),
        )
