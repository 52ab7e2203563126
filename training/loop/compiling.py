"""`train.compile`: the trial's model through `torch.compile`, and nothing of it left when the trial ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import nn

from scalestudy.training.config import TrainConfig


def compile_model(model: nn.Module, mode: str | None) -> None:
    """Compile the model in place: names, references and copies stay those of the model as it was.

    mode: PyTorch's; None: its default.

    PyTorch does not trace the frames of its own modules. `Module.compile` therefore compiled nothing of a model without
    a forward of its own, such as a plain nn.Sequential; `wrap_top_frame` gives it a frame to begin with. Rejected:
    `torch.compile(model)`, which begins there too, but wraps the model and changes its parameters' names.
    """
    import torch._dynamo.config

    is_pytorchs = type(model).forward.__module__.startswith("torch.")
    with torch._dynamo.config.patch(wrap_top_frame=True) if is_pytorchs else nullcontext():
        model.compile(mode=mode)


@contextmanager
def compiled_forgotten(config: TrainConfig) -> Iterator[None]:
    """Wrap a training. At its end the process forgets what it has compiled, if the training compiles its model.

    PyTorch keeps compiled graphs, with their constants and guards, beyond the model's life. They would count towards
    the next trial's memory, and towards a limit beyond which nothing is compiled. Without `compile` nothing is
    forgotten: functions that a user's module compiles by itself then last from trial to trial.
    """
    try:
        yield
    finally:
        if config.compile:
            torch.compiler.reset()
