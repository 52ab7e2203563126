"""`train.compile`: the trial's model through `torch.compile`, and nothing of it left when the trial ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

from torch import nn

from scalestudy.training.config import TrainConfig

MOST_FORMS = 32  # of a batch, in each of which a model is compiled; PyTorch's 8 are soon taken by numbers of examples


def compile_model(model: nn.Module, mode: str | None) -> None:
    """Compile the model in place: names, references and copies stay as they were.

    `mode`: PyTorch's; None: its default.

    PyTorch does not trace frames of PyTorch's modules. `Module.compile` therefore compiled nothing of a model without a
    user-written forward, such as a plain nn.Sequential; `wrap_top_frame` gives it a frame to begin with. Rejected:
    `torch.compile(model)`, which begins there too, but wraps the model and changes its parameters' names.
    """
    import torch._dynamo.config

    is_pytorchs = type(model).forward.__module__.startswith("torch.")
    with torch._dynamo.config.patch(wrap_top_frame=True) if is_pytorchs else nullcontext():
        model.compile(mode=mode)


def keep_gradients(parameters: Sequence[nn.Parameter]) -> None:
    """Move gradients out of memory that the next backward of a compiled model may write again.

    With CUDA graphs (`compile: reduce-overhead` and `max-autotune`) PyTorch gives them where the graph has its results.
    """
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad = parameter.grad.clone()


@contextmanager
def compiled_forgotten(config: TrainConfig) -> Iterator[None]:
    """Wrap a training that compiles its model: at its end the process forgets what it has compiled.

    PyTorch keeps compiled graphs, with their constants and guards, beyond the model's life. They would count towards
    the next trial's memory, and towards a limit beyond which nothing is compiled. Without `compile` nothing is
    forgotten: functions that a user's module compiles by itself then last from trial to trial.
    """
    if not config.compile:
        yield
        return
    import torch._dynamo.config

    try:
        with torch._dynamo.config.patch(recompile_limit=MOST_FORMS):
            yield
    finally:
        torch.compiler.reset()
