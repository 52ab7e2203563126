"""Configs, workers and comparisons that several parts share."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from scalestudy.training.config import TrainConfig
from scalestudy.training.distributed import Worker
from scalestudy.training.loop.hooks import Hook
from scalestudy.training.loop.train import TrainResult, train
from scalestudy.training.models import seeded_model
from tests.gpu.report import Settings

PIXELS, SMALL_PIXELS = 28, 14  # sides of the images; LeNet needs a tenth of the work for small ones
GREY_CLASSES = (10, 1)  # classes and channels of all data here
TAKE_SIZE = ("lenet", "mlp")  # models that are told the side of the images


def alone(settings: Settings) -> Worker:
    """The only worker."""
    device = torch.device("cuda", 0) if settings.device == "cuda" else torch.device("cpu")
    return Worker(0, 1, device, threads=1 if settings.small else torch.get_num_threads())


def pixels(settings: Settings) -> int:
    """The side of the images."""
    return SMALL_PIXELS if settings.small else PIXELS


def config_of(settings: Settings, **changes: Any) -> TrainConfig:
    """LeNet on the package's digits, unless said otherwise; two epochs. Images have `pixels`."""
    values: dict[str, Any] = {
        "model": "lenet",
        "data": "digits",
        "batch_size": 64,
        "learning_rate": 0.1,
        "epochs": 2,
        "warm_up_steps": 3,
    }
    values |= changes
    size = {"image_size": pixels(settings)}
    values["data_args"] = {**values.get("data_args", {}), **size}
    if values["model"] in TAKE_SIZE:
        values["model_args"] = {**values.get("model_args", {}), **size}
    return TrainConfig(**values)


def some_steps(settings: Settings, steps: int, **changes: Any) -> TrainConfig:
    """The same for some steps, with one evaluation."""
    return config_of(settings, **{"epochs": None, "steps": steps, "eval_every": {"steps": steps}} | changes)


def images(settings: Settings, train_samples: int, test_samples: int | None = None) -> dict[str, Any]:
    """Keys of the first images of Fashion-MNIST; without its folder, of as many synthetic ones of the same shape."""
    counts = {"train_samples": train_samples} | ({"test_samples": test_samples} if test_samples else {})
    if settings.data_root is None:
        return {"data": "synthetic", "data_args": counts}
    return {"data": "fashion_mnist", "data_root": settings.data_root, "data_args": counts}


def run(settings: Settings, config: TrainConfig, hooks: Sequence[Hook] = ()) -> TrainResult:
    """Train alone."""
    return train(config, alone(settings), hooks=hooks)


def parameters_of(model: nn.Module) -> torch.Tensor:
    """All parameters in one row, in float64 on the CPU."""
    return torch.cat([each.detach().to("cpu", torch.float64).flatten() for each in model.parameters()])


def state_of(model: nn.Module) -> torch.Tensor:
    """The same with the buffers."""
    return torch.cat([each.detach().to("cpu", torch.float64).flatten() for each in model.state_dict().values()])


def initial_parameters(config: TrainConfig) -> torch.Tensor:
    """Those before the first step."""
    return parameters_of(seeded_model(config, GREY_CLASSES))


def relative(first: torch.Tensor, second: torch.Tensor) -> float:
    """|first - second| / |second|, L2 norms."""
    return ((first - second).norm() / second.norm()).item()


def be_deterministic() -> None:
    """Deterministic kernels from now on, where PyTorch has them; it warns where it has none. Call it first."""
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # which cuBLAS's deterministic kernels need, and figures do not
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False


def can_compile(settings: Settings) -> bool:
    """Whether torch.compile finds what it calls."""
    has_compiler = any(shutil.which(name) for name in ("c++", "g++", "clang++", "gcc", "cc"))
    return has_compiler and (settings.device == "cpu" or importlib.util.find_spec("triton") is not None)
