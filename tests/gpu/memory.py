"""Parts: memory that runs out, and memory that comes back."""

from __future__ import annotations

import contextlib
import gc
import io
import json
import weakref
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

from scalestudy.training.__main__ import main as train_by_command
from scalestudy.training.config import OptimizerConfig, TrainConfig
from scalestudy.training.device import start_memory_count
from scalestudy.training.exceptions import is_out_of_memory
from tests.gpu.models import TOO_MANY
from tests.gpu.report import Report, Settings
from tests.gpu.trainings import alone, can_compile, config_of, images, run, some_steps

ROOM = 2**28  # bytes that the allocator may add where a trial is to run out of memory
KEPT = 2**28  # bytes that libraries' workspaces may keep after their first use
GREEDY = "tests.gpu.models:Greedy"


def out_of_memory(settings: Settings, report: Report) -> None:
    """The allocator's error, and one in the middle of `train`, are known as out of memory; then a trial trains."""
    device = alone(settings).device
    error = _error_of(lambda: torch.empty(TOO_MANY, device=device))
    report.equal("the allocator's error is one of memory", error.is_of_memory, True)
    report.details["allocator"] = error.text

    error = _error_of(lambda: run(settings, some_steps(settings, 4, model=GREEDY)))
    report.equal("an error inside train() is one of memory", error.is_of_memory, True)
    report.details["in train"] = error.text

    said = io.StringIO()
    arguments = ["--model", GREEDY, "--data", "digits", "--batch-size", "64", "--learning-rate", "0.1"]
    with contextlib.redirect_stdout(said):
        code = train_by_command([*arguments, "--device", settings.device])
    told = json.loads(said.getvalue().strip().splitlines()[-1])
    report.equal("python -m scalestudy.training tells it", (told["status"], code), ("out_of_memory", 0))

    if settings.device == "cuda":
        start_memory_count(device)
        with _room(ROOM):
            error = _error_of(lambda: run(settings, _large(settings)))
        report.equal("so is that of a batch too large for the device", error.is_of_memory, True)
        report.details["batch"] = error.text
        start_memory_count(device)
        report.at_most("bytes that it leaves behind", torch.cuda.memory_allocated(device), KEPT + _bytes_of_images())
    else:
        report.need_cuda("a batch too large for the device, with most of its memory taken")
    report.equal("the next trial of this process", run(settings, config_of(settings, epochs=1)).status, "finished")


def _large(settings: Settings) -> TrainConfig:
    """ResNet-18 whose activations take gigabytes."""
    return some_steps(settings, 2, model="resnet18", batch_size=1024, warm_up_steps=0, **images(settings, 1024, 64))


def _bytes_of_images() -> int:
    """Of `_large`'s data set, which stays on the device for the next trial."""
    return (1024 + 64) * (28 * 28 * 4 + 8)


@contextlib.contextmanager
def _room(more_bytes: int) -> Iterator[None]:
    """Let the allocator take so many bytes more, and no others."""
    _, total = torch.cuda.mem_get_info()
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + more_bytes) / total)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


class Raised(NamedTuple):
    """What is known of an exception where it is caught. Its frames, which are gone later, keep the tensors alive."""

    is_of_memory: bool
    text: str  # type and first line


def _error_of(action: Callable[[], object]) -> Raised:
    """What the action raised."""
    try:
        action()
    except Exception as error:
        return Raised(is_out_of_memory(error), f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
    raise AssertionError("it raised nothing")


def returned(settings: Settings, report: Report) -> None:
    """After each kind of trial its model is gone; the second round of all kinds leaves as many bytes as the first."""
    device = alone(settings).device
    kinds = {
        "fp32": some_steps(settings, 6),
        "momentum": some_steps(settings, 6, optimizer=OptimizerConfig(momentum=0.9)),
        "batch normalisation, bf16": some_steps(
            settings,
            6,
            model="tests.gpu.models:resnet9",
            model_args={"width": 4},
            precision="bf16" if settings.device == "cuda" else "fp32",
        ),
        "adam, two micro-batches": some_steps(settings, 6, optimizer=OptimizerConfig(name="adam"), accumulation=2),
    }
    if settings.device == "cuda" and can_compile(settings):
        kinds["compiled"] = some_steps(settings, 6, compile=True)
        kinds["reduce-overhead"] = some_steps(settings, 6, compile="reduce-overhead")
    left: list[dict[str, int]] = []
    for _ in range(2):
        left.append({})
        for name, config in kinds.items():
            result = run(settings, config)
            model = weakref.ref(result.model)
            del result
            start_memory_count(device)  # as the next trial does
            gc.collect()
            report.equal(f"{name}: its model is gone", model() is None, True)
            left[-1][name] = torch.cuda.memory_allocated(device) if settings.device == "cuda" else 0
    if settings.device == "cpu":
        report.need_cuda("the allocator's count of bytes, and compiled models")
        return
    report.details["bytes left"] = left
    report.at_most("bytes more after the second round", max(left[1].values()) - max(left[0].values()), 0)
    report.at_most("bytes left after the second round", max(left[1].values()), KEPT)
