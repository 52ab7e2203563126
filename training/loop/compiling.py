"""`train.compile`: the trial's model through `torch.compile`."""

from __future__ import annotations

from contextlib import nullcontext

from torch import nn


def compile_model(model: nn.Module) -> None:
    """Compile the model in place, so that names, references and copies stay those of the model as it was.

    PyTorch does not trace the frames of its own modules. `Module.compile` therefore compiled nothing of a model without
    a forward of its own, such as a plain nn.Sequential; `wrap_top_frame` gives it a frame to begin with. Rejected:
    `torch.compile(model)`, which begins there too, but wraps the model and changes its parameters' names.
    """
    import torch._dynamo.config

    torch.compiler.reset()  # earlier trials' graphs count towards a limit, beyond which nothing is compiled
    is_pytorchs = type(model).forward.__module__.startswith("torch.")
    with torch._dynamo.config.patch(wrap_top_frame=True) if is_pytorchs else nullcontext():
        model.compile()
