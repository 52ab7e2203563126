"""Whose fault an exception is: the part of a training that it came from, read off the frames that it passed.

Each part is called from a few places of this package. So the innermost frame of ours tells which part was being called,
however late its code runs: a data set that is read only when a batch is made is still the data. Rejected: a note made
around every call, which would stand in the training step. This file loads no torch.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Literal

Part = Literal[
    "workload",
    "workload.data",
    "workload.model",
    "workload.task",
    "workload.loss",
    "workload.metric",
    "train.optimizer.name",
    "train.schedule",
]
"""The key of a spec that names the part; `workload`: of the model or the loss, in their backward."""

PACKAGE = "scalestudy.training"
CALLERS: Mapping[str, Part] = {
    "data": "workload.data",
    "models": "workload.model",
    "task:make_task": "workload.task",
    "task:predict": "workload.task",  # of a user's task; the default one's `forward` lies within
    "task:checked_loss": "workload.task",
    "task:tokens_of": "workload.task",
    "task:forward": "workload.model",
    "task:loss": "workload.loss",
    "task:evaluate": "workload.metric",
    "losses:make_loss": "workload.loss",
    "losses:make_metric": "workload.metric",
    "loop.evaluation": "workload.task",
    "loop.exactness:_outputs": "workload.task",
    "loop.trial:make_optimizer": "train.optimizer.name",
    "loop.memory_fit:optimizer_bytes": "train.optimizer.name",
    "loop.step:forward_and_backward": "workload",
    "loop.step:update_parameters": "train.optimizer.name",
    "loop.learning_rate": "train.schedule",
}
"""What calls a part: a module or room below the package, or one function of it."""
CALLS_A_FORWARD = ("task:predict", "loop.exactness:_outputs")
"""What calls a task's `forward`, which calls the model."""
MODULE_CALL = "torch.nn.modules.module"


@dataclass(frozen=True)
class Fault:
    """Where an exception comes from."""

    part: Part | None  # None: none of the user's parts was being called
    place: str  # file, line and function that raised it, of the user's own if there is one: `mine.py:12, in load`


def fault_of(error: BaseException) -> Fault:
    """The part that an exception came from, by its traceback."""
    frames: list[tuple[FrameType, int]] = []
    trace = error.__traceback__
    while trace:
        frames.append((trace.tb_frame, trace.tb_lineno))
        trace = trace.tb_next
    part: Part | None = None
    for index in range(len(frames) - 1, -1, -1):
        caller = _caller(frames[index][0])
        if caller is None:
            continue
        part = CALLERS[caller]
        within = (frame for frame, _ in frames[index + 1 :])
        if caller in CALLS_A_FORWARD and any(_module(frame) == MODULE_CALL for frame in within):
            part = "workload.model"
        break
    return Fault(part, _place(frames))


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _caller(frame: FrameType) -> str | None:
    """The frame's entry of CALLERS; None: it has none."""
    module = _module(frame)
    if not module.startswith(f"{PACKAGE}."):
        return None
    name = module.removeprefix(f"{PACKAGE}.")
    for key in (f"{name}:{frame.f_code.co_name}", name, name.partition(".")[0]):
        if key in CALLERS:
            return key
    return None


def _place(frames: list[tuple[FrameType, int]]) -> str:
    """The innermost frame that belongs to no installed library and not to this package; "": there is none."""
    own = Path(sysconfig.get_path("stdlib"))
    for frame, line in reversed(frames):
        name = frame.f_code.co_filename
        file = Path(name)
        installed = file.is_relative_to(own) or {"site-packages", "dist-packages"} & {*file.parts}
        ours = str(frame.f_globals.get("__package__")).startswith("scalestudy")  # also of a module that was run
        if not (installed or ours or name.startswith("<")):
            return f"{file.name}:{line}, in {frame.f_code.co_name}"
    return ""
