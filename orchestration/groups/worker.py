"""What runs in every Ray Train worker, from its start until its group is told to end."""

from __future__ import annotations

import logging
import math
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from concurrent.futures import Future

    from scalestudy.orchestration.groups.model import Way
    from scalestudy.training.checkpoint.hook import Checkpoints
    from scalestudy.training.distributed import Worker
    from scalestudy.training.loop.hooks import Hook
    from scalestudy.training.loop.train import TrainResult
    from scalestudy.training.loop.trial import Trial
    from scalestudy.training.records import EpochRecord


PROGRESS_SECONDS = 2.0


def serve(settings: dict[str, Any]) -> None:
    """Takes trials from the group's books one after another and trains them, until it is told to end.

    Args:
        settings: `groups` (the actor that keeps the books), `group_id`, `threads`, `device` ("cpu" or "cuda") and
            `logs` (the folder where the traceback of a trial's exception is written).

    Without its books a group has nothing to do: it ends as if it had been told to.

    Raises:
        Exception: whatever a trial raised, after it was reported; Ray Train then restarts the group's workers.
    """
    from ray.exceptions import ActorDiedError

    from scalestudy.orchestration.groups.ray_train import incarnation

    worker = _this_worker(settings)
    desk = Desk(settings["groups"], settings["group_id"], incarnation(), worker.rank, Path(settings["logs"]))
    try:
        _serve(desk, worker)
    except ActorDiedError as error:
        _log(f"the books of {desk.group_id} are gone: {error}")


def _serve(desk: Desk, worker: Worker) -> None:
    import ray

    from scalestudy.orchestration.groups.failures import kills_so_far

    desk.register(_member(worker))
    served = 0
    while True:
        order = ray.get(desk.groups.next_trial.remote(desk.group_id, desk.incarnation, served))
        if order is None:
            continue
        if order.get("stop"):
            return
        served = order["sequence"]
        if kills := kills_so_far(ray.get_runtime_context().get_node_id()):
            desk.post(served, {"type": "begun", "kernel_kills": kills})
        _train(desk, worker, order)


@dataclass
class Desk:
    """A rank's line to the books. What is sent to books that are gone is lost; asking them raises ActorDiedError."""

    groups: Any
    group_id: str
    incarnation: str
    rank: int
    logs: Path = field(default_factory=Path)
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
        if self.last is not None:
            _arrived(self.last)
        self.last = self.post(sequence, event)
        return self.last

    def listen(self, way: Way, sequence: int) -> threading.Event:
        """Is set as soon as the books ask for the trial to be left in that way, or are gone.

        One call a trial and way, which the books answer at the trial's end at the latest; a look at the event costs
        nothing.
        """
        asked = threading.Event()

        def answered(future: Future[bool]) -> None:
            if future.exception() is not None or future.result():
                asked.set()

        answer = self.groups.asks_to.remote(way, self.group_id, self.incarnation, sequence)
        answer.future().add_done_callback(answered)
        return asked


def _arrived(sent: Any) -> None:
    """Waits for a post. Books that are gone end the trial by the stop that they ask for, on all ranks in one step: a
    rank that left it alone would keep the others in a collective."""
    import ray
    from ray.exceptions import ActorDiedError

    with suppress(ActorDiedError):
        ray.get(sent)


def _this_worker(settings: dict[str, Any]) -> Worker:
    import ray.train
    import torch

    from scalestudy.training.distributed import Worker

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
    sequence = order["sequence"]
    try:
        result = _run_loop(desk, worker, order)
        if worker.rank == 0:
            _save_if_best(order, result)
            _arrived(desk.post_in_order(sequence, _ended(order, result)))
    except Exception as error:
        _arrived(desk.post(sequence, _error_event(desk, order, error)))
        raise


def _error_event(desk: Desk, order: dict[str, Any], error: Exception) -> dict[str, Any]:
    """An exception as the books take it; its traceback goes into a file of the rank's."""
    from scalestudy.orchestration.base.environment import without_secrets
    from scalestudy.orchestration.groups.failures import classify, describe

    kind = classify(error)
    event = {"type": "error", "kind": kind, "message": describe(error)}
    if kind == "collective":  # says only that another rank is gone
        return event
    file = desk.logs / f"{order['trial']['trial_id']}-rank-{desk.rank}.log"
    try:
        desk.logs.mkdir(parents=True, exist_ok=True)
        with file.open("a", encoding="utf-8", errors="backslashreplace") as log:
            log.write(f"attempt {order['attempt']}, rank {desk.rank}:\n{without_secrets(traceback.format_exc())}\n")
    except OSError as failure:
        _log(f"{file} can't be written ({failure}):\n{traceback.format_exc()}")
        return event
    return {**event, "log": str(file)}


def _run_loop(desk: Desk, worker: Worker, order: dict[str, Any]) -> TrainResult:
    from scalestudy.training.config import TrainConfig
    from scalestudy.training.loop.noise_scale import NoiseScale
    from scalestudy.training.loop.train import train

    def report(record: EpochRecord) -> None:
        desk.post_in_order(order["sequence"], {"type": "epoch", "epoch": record.to_dict()})

    config = TrainConfig.from_dict(order["trial"]["config"])
    checkpoints = _checkpoints(order)
    choices = checkpoints.find(config, worker) if checkpoints else None
    hooks: list[Hook] = [*([checkpoints] if checkpoints else []), NoiseScale()]
    if worker.rank == 0:
        resumed = checkpoints is not None and checkpoints.resumed
        hooks.append(progress_hook(desk, order["sequence"], checkpointed=checkpoints is not None, resumed=resumed))
    return train(config, worker, hooks=hooks, on_epoch=report, choices=choices)


def _checkpoints(order: dict[str, Any]) -> Checkpoints | None:
    """The trial's checkpoints in the study's storage, if it is to have any; an earlier attempt may have left some."""
    from scalestudy.orchestration.storage.byte_store import open_byte_store
    from scalestudy.training.checkpoint.hook import Checkpoints

    wanted = order["trial"].get("checkpoints")
    if not wanted or not wanted["every_epochs"]:
        return None
    store, every_epochs = open_byte_store(wanted["store"]), wanted["every_epochs"]
    return Checkpoints(store, every_epochs=every_epochs, preemptible=True, say=_log)


def _log(message: str) -> None:
    logging.getLogger(__name__).warning(message)


def progress_hook(desk: Desk, sequence: int, *, checkpointed: bool, resumed: bool) -> Any:
    """A hook that tells the books that training has begun, and every two seconds that steps are being finished.

    It also ends the training when the books ask for that, with a checkpoint if they ask for one.
    """
    from scalestudy.training.loop.hooks import Hook

    class Progress(Hook):
        last = 0.0

        def train_starts(self, trial: Trial) -> None:
            trial.should_stop = desk.listen("stop", sequence).is_set
            if checkpointed:
                trial.should_preempt = desk.listen("leave", sequence).is_set
            desk.post(sequence, {"type": "started", "resumed": resumed})

        def step_ends(self, *_: Any) -> None:
            now = time.monotonic()
            if now - self.last > PROGRESS_SECONDS:
                self.last = now
                desk.post(sequence, {"type": "progress"})

    return Progress()


def _ended(order: dict[str, Any], result: TrainResult) -> dict[str, Any]:
    if result.status == "left":
        return {"type": "left", "message": result.message}
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
    from scalestudy.orchestration.storage.trial_states import written_to
    from scalestudy.training.state import save_state

    score, path = _score(order, result), order["trial"].get("model_path")
    beats = score is not None and (order["best"] is None or score > order["best"])
    if path is None or result.status != "finished" or not beats:
        return
    try:
        with written_to(path) as file:
            save_state(result.model, file)
    except (OSError, ValueError) as error:  # a full disk must not cost the trial
        _log(f"the model of {order['trial']['trial_id']} is not kept: {error}")
