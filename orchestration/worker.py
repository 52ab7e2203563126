"""Stage 4, worker groups: what runs in every Ray Train worker, from its start until its group is told to end."""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from training.checkpoint.hook import Checkpoints
    from training.distributed import Worker
    from training.hooks import Hook
    from training.loop import TrainResult
    from training.records import EpochRecord

PROGRESS_SECONDS = 2.0


def serve(settings: dict[str, Any]) -> None:
    """Takes trials from the group's books one after another and trains them.

    Args:
        settings: `groups` (the actor that keeps the books), `group_id`, `threads` and `device` ("cpu" or "cuda").

    Raises:
        Exception: whatever a trial raised, after it was reported; Ray Train then restarts the group's workers.
    """
    import ray

    from orchestration.process_group import incarnation

    worker = _this_worker(settings)
    desk = Desk(settings["groups"], settings["group_id"], incarnation(), worker.rank)
    desk.register(_member(worker))
    served = 0
    while True:
        order = ray.get(desk.groups.next_trial.remote(desk.group_id, desk.incarnation, served))
        if order is None:
            continue
        if order.get("stop"):
            return
        served = order["sequence"]
        _train(desk, worker, order)


@dataclass
class Desk:
    """A rank's line to the books."""

    groups: Any
    group_id: str
    incarnation: str
    rank: int
    last: Any = None  # the post that the next one must not overtake

    def register(self, member: dict[str, Any]) -> None:
        import ray

        handle = ray.get_runtime_context().current_actor
        ray.get(self.groups.register.remote(self.group_id, self.incarnation, self.rank, member, handle))

    def post(self, sequence: int, event: dict[str, Any]) -> Any:
        """Sends an event and does not wait."""
        return self.groups.post.remote(self.group_id, self.incarnation, self.rank, sequence, event)

    def post_in_order(self, sequence: int, event: dict[str, Any]) -> Any:
        """Sends an event once the one before has arrived: calls of an asynchronous actor may overtake each other."""
        import ray

        if self.last is not None:
            ray.get(self.last)
        self.last = self.post(sequence, event)
        return self.last


def _this_worker(settings: dict[str, Any]) -> Worker:
    import ray.train
    import torch

    from training.distributed import Worker

    context = ray.train.get_context()
    device = torch.device("cuda", 0) if settings["device"] == "cuda" else torch.device("cpu")
    return Worker(
        rank=context.get_world_rank(),
        world_size=context.get_world_size(),
        device=device,
        threads=settings["threads"],
    )


def _member(worker: Worker) -> dict[str, Any]:
    """What the books keep of this worker."""
    import os
    import socket

    import ray

    return {
        "node": ray.get_runtime_context().get_node_id(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "cores": os.cpu_count() or 1,
        "device": str(worker.device),
        "threads": worker.threads,
    }


def _train(desk: Desk, worker: Worker, order: dict[str, Any]) -> None:
    """Trains one trial and reports it; an exception is reported and raised again."""
    import ray

    from orchestration.failures import classify, describe

    sequence = order["sequence"]
    try:
        result = _run_loop(desk, worker, order)
        if worker.rank == 0:
            _save_if_best(order, result)
            ray.get(desk.post_in_order(sequence, _ended(order, result)))
    except Exception as error:
        ray.get(desk.post(sequence, {"type": "error", "kind": classify(error), "message": describe(error)}))
        raise


def _run_loop(desk: Desk, worker: Worker, order: dict[str, Any]) -> TrainResult:
    from training.config import TrainConfig
    from training.loop import train
    from training.noise_scale import NoiseScale

    def report(record: EpochRecord) -> None:
        desk.post_in_order(order["sequence"], {"type": "epoch", "epoch": record.to_dict()})

    config = TrainConfig.from_dict(order["trial"]["config"])
    checkpoints = _checkpoints(order)
    picked = checkpoints.find(config, worker) if checkpoints else None
    hooks: list[Hook] = [*([checkpoints] if checkpoints else []), NoiseScale()]
    if worker.rank == 0:
        resumed = checkpoints is not None and checkpoints.resumed
        hooks.append(progress_hook(desk, order["sequence"], resumed=resumed))
    return train(config, worker, hooks=hooks, on_epoch=report, picked=picked)


def _checkpoints(order: dict[str, Any]) -> Checkpoints | None:
    """The trial's checkpoints in the study's storage, if it is to have any; an earlier attempt may have left some."""
    from orchestration.byte_store import open_byte_store
    from training.checkpoint.hook import Checkpoints

    wanted = order["trial"].get("checkpoints")
    if not wanted or not wanted["every_epochs"]:
        return None
    return Checkpoints(open_byte_store(wanted["store"]), every_epochs=wanted["every_epochs"], say=_log)


def _log(message: str) -> None:
    logging.getLogger(__name__).warning(message)


def progress_hook(desk: Desk, sequence: int, *, resumed: bool) -> Any:
    """A hook that tells the books that training has begun, and every two seconds that steps are being finished."""
    from training.hooks import Hook

    class Progress(Hook):
        last = 0.0

        def train_starts(self, *_: Any) -> None:
            desk.post(sequence, {"type": "started", "resumed": resumed})

        def step_ends(self, *_: Any) -> None:
            now = time.monotonic()
            if now - self.last > PROGRESS_SECONDS:
                self.last = now
                desk.post(sequence, {"type": "progress"})

    return Progress()


def _ended(order: dict[str, Any], result: TrainResult) -> dict[str, Any]:
    recorded = sum(record.train_seconds for record in result.records)
    return {
        "type": "ended",
        "status": result.status,
        "score": _score(order, result),
        "lost_seconds": result.train_seconds - recorded,
        "message": result.message,
        "details": dict(result.details),
    }


def _score(order: dict[str, Any], result: TrainResult) -> float | None:
    """The metric after the last epoch, turned so that more is better; None where it is not there or not finite."""
    value = result.records[-1].test_metric if result.records else math.nan
    if not math.isfinite(value):
        return None
    return -value if order["trial"]["metric_mode"] == "min" else value


def _save_if_best(order: dict[str, Any], result: TrainResult) -> None:
    """Keeps the model of a finished trial that beats every one before it, so that one at a time lies in storage."""
    from training.state import save_state

    score, path = _score(order, result), order["trial"].get("model_path")
    beats = score is not None and (order["best"] is None or score > order["best"])
    if path is not None and result.status == "finished" and beats:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        save_state(result.model, path)
