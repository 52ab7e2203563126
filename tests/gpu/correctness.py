"""Parts: trainings learn and resume; bf16 and tf32 are what they say."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from scalestudy.training.checkpoint.byte_store import LocalByteStore
from scalestudy.training.checkpoint.hook import Checkpoints
from scalestudy.training.config import OptimizerConfig, TrainConfig
from scalestudy.training.device import has_precision, make_precision
from scalestudy.training.loop.hooks import Hook
from scalestudy.training.loop.train import train
from scalestudy.training.loop.trial import Trial
from tests.gpu.report import Report, Settings
from tests.gpu.trainings import (
    alone,
    be_deterministic,
    config_of,
    initial_parameters,
    parameters_of,
    relative,
    run,
    some_steps,
    state_of,
)

BFLOAT16_EPSILON = 2**-8  # of its 8 significant bits
STRICT = 1e-5  # relative error of a product of 1,024 float32 numbers; TensorFloat-32 makes some 3e-4


# --- training -----------------------------------------------------------------------------------------------------


def training(settings: Settings, report: Report) -> None:
    """LeNet and a network with batch normalisation come to an accuracy; their losses fall."""
    momentum = OptimizerConfig(momentum=0.9)
    if settings.data_root is None:
        data: dict[str, Any] = {"data": "digits"}
        lenet, least = config_of(settings, optimizer=momentum, learning_rate=0.05, epochs=8), 0.85
    else:
        counts = {"train_samples": 2000, "test_samples": 500} if settings.small else {}
        data = {"data": "fashion_mnist", "data_root": settings.data_root, "data_args": counts}
        lenet = config_of(settings, **data, optimizer=momentum, learning_rate=0.05, epochs=3 if settings.small else 6)
        lenet, least = (lenet, 0.55) if settings.small else (lenet.replace(batch_size=256), 0.86)
    _learns(settings, report, "LeNet", lenet, least)
    deep = config_of(
        settings,
        **data,
        model="tests.gpu.models:resnet9",
        model_args={"width": 4 if settings.small else 32},
        optimizer=momentum,
        learning_rate=0.05,
        epochs=2,
    )
    _learns(settings, report, "ResNet-9", deep, 0.5)


def _learns(settings: Settings, report: Report, name: str, config: TrainConfig, least: float) -> None:
    records = run(settings, config).records
    fallen = records[-1].train_loss / records[0].train_loss
    report.at_least(f"{name}: accuracy after {config.epochs} epochs of {config.data}", records[-1].test_metric, least)
    report.at_most(f"{name}: loss of the last epoch, of the first's", fallen, 0.8)


# --- resume -------------------------------------------------------------------------------------------------------


class _CutOffError(Exception):
    """Ends a training without a word, as a lost worker does."""


class CutAt(Hook):
    """Raises `_CutOffError` after a step of a period, both from 0 and 1."""

    def __init__(self, period: int, step: int) -> None:
        self._place = period, step

    def step_ends(self, trial: Trial, step: int) -> None:
        if (trial.progress.period, step) == self._place:
            raise _CutOffError


def resume(settings: Settings, report: Report) -> None:
    """Cut off in its second epoch, and continued from the last checkpoint, a training ends with the same bits."""
    be_deterministic()
    cases = {
        "LeNet, SGD": config_of(settings, optimizer=OptimizerConfig(momentum=0.9), learning_rate=0.05),
        "MLP with dropout, Adam": config_of(
            settings,
            model="mlp",
            model_args={"dropout": 0.3},
            optimizer=OptimizerConfig(name="adam"),
            learning_rate=1e-3,
        ),
    }
    for name, config in cases.items():
        straight = run(settings, config)
        with tempfile.TemporaryDirectory(prefix="gpu-suite-") as folder:
            store = LocalByteStore(folder)
            with contextlib.suppress(_CutOffError):
                train(config, alone(settings), hooks=[Checkpoints(store, every_steps=4), CutAt(2, 10)])
            again = Checkpoints(store)
            choices = again.find(config, alone(settings))
            report.equal(f"{name}: a checkpoint was found", again.resumed, True)
            resumed = train(config, alone(settings), hooks=[again], choices=choices)
        apart = (state_of(resumed.model) - state_of(straight.model)).abs().max().item()
        report.at_most(f"{name}: largest difference from the training that was not cut off", apart, 0.0)
        moved = (parameters_of(straight.model) - initial_parameters(config)).abs().max().item()
        report.at_least(f"{name}: and it moved by", moved, 1e-3)
        losses = [[record.train_loss for record in each.records] for each in (resumed, straight)]
        report.equal(f"{name}: losses of the epochs are the same", losses[0], losses[1])


# --- precisions ---------------------------------------------------------------------------------------------------


def bf16(settings: Settings, report: Report) -> None:
    """One step in bf16 differs from one in fp32, by some of its epsilons; parameters stay float32; it learns."""
    if not has_precision("bf16", alone(settings).device):
        report.equal("bf16 is refused in one line", _refusal(settings, "bf16"), True)
        report.lacks.append(f"needs a {settings.device} with bfloat16")
        return
    exact, rounded = (some_steps(settings, 1, precision=name, batch_size=256) for name in ("fp32", "bf16"))
    first = initial_parameters(exact)
    models = [run(settings, config).model for config in (exact, rounded)]
    moved = (parameters_of(models[0]) - first).abs().max().item()
    apart = (parameters_of(models[0]) - parameters_of(models[1])).abs().max().item() / moved
    report.at_most("one step: difference from fp32, of the largest change", apart, 16 * BFLOAT16_EPSILON)
    report.at_least("and it differs by", apart, 1e-6)
    report.equal("types of the parameters", {str(each.dtype) for each in models[1].parameters()}, {"torch.float32"})
    records = run(settings, config_of(settings, precision="bf16", epochs=4)).records
    report.at_most("loss of the fourth epoch, of the first's", records[-1].train_loss / records[0].train_loss, 0.8)


def tf32(settings: Settings, report: Report) -> None:
    """Products and convolutions in fp32 are exact to float32's rounding; in tf32 they are not, and a training differs.

    fp32 is measured after tf32 as well, since the switches hold for the whole process.
    """
    device = alone(settings).device
    names = ["fp32", "tf32", "fp32"] if has_precision("tf32", device) else ["fp32"]
    generator = torch.Generator().manual_seed(0)
    matrices = [torch.randn(1024, 1024, generator=generator) for _ in range(2)]
    pictures = torch.randn(16, 64, 16, 16, generator=generator), torch.randn(64, 64, 3, 3, generator=generator)
    operations: dict[str, tuple[Callable[..., torch.Tensor], Sequence[torch.Tensor]]] = {
        "matrix product": (torch.matmul, matrices),
        "convolution": (F.conv2d, pictures),
    }
    for name in names:
        make_precision(name, device)
        for what, (operation, operands) in operations.items():
            found = operation(*[each.to(device) for each in operands]).cpu().double()
            error = relative(found, operation(*[each.double() for each in operands]))
            if name == "fp32":
                report.at_most(f"fp32, {what}: relative error", error, STRICT)
            else:
                report.at_least(f"tf32, {what}: relative error", error, STRICT)
    if len(names) == 1:
        report.equal("tf32 is refused in one line", _refusal(settings, "tf32"), True)
        report.need_cuda("TensorFloat-32, of compute capability 8.0 or more")
        return
    exact, rounded = (
        parameters_of(run(settings, some_steps(settings, 10, precision=each)).model) for each in names[:2]
    )
    report.at_least("LeNet after ten steps: relative difference of fp32 and tf32", relative(rounded, exact), 1e-7)


def _refusal(settings: Settings, precision: str) -> bool:
    """Whether a training in a precision that the device lacks ends in one line that names it."""
    try:
        run(settings, some_steps(settings, 1, precision=precision))
    except ValueError as error:
        return str(error).startswith(f"precision: {precision} is not available") and "\n" not in str(error)
    return False
