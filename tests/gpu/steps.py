"""Parts about single steps: never waiting for the device, timed, and compiled."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch._dynamo.utils import counters
from torch.utils._python_dispatch import TorchDispatchMode

from scalestudy.training.config import OptimizerConfig, TrainConfig
from scalestudy.training.loop.hooks import Hook
from scalestudy.training.loop.pace import MOST_BETWEEN
from scalestudy.training.loop.trial import Trial
from scalestudy.training.records import EpochRecord
from tests.gpu.report import LacksError, Report, Settings
from tests.gpu.trainings import (
    alone,
    be_deterministic,
    can_compile,
    config_of,
    images,
    parameters_of,
    relative,
    run,
    some_steps,
)

STEADY = range(8, 20)  # steps of the first epoch; before them is the warm-up, after them its end
READS = ("_local_scalar_dense", "nonzero")  # operations that hand a number or a size to the CPU


# --- no step waits ------------------------------------------------------------------------------------------------


class Reads(TorchDispatchMode):
    """Counts operations that hand a number to the CPU; of the CPU's own too, which it needs no waiting for."""

    def __init__(self) -> None:
        super().__init__()
        self.counted: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in READS:
            self.counted[name] += 1
        return func(*args, **(kwargs or {}))


class Around(Hook):
    """Calls `begin` before the steps of STEADY, and `end` after them."""

    def __init__(self, begin: Callable[[], object], end: Callable[[], object]) -> None:
        self._left = [(STEADY.start - 1, begin), (STEADY.stop - 1, end)]

    @property
    def has_watched(self) -> bool:
        """Whether both were called."""
        return not self._left

    def step_ends(self, trial: Trial, step: int) -> None:
        if self._left and step >= self._left[0][0]:
            trial.guard._pace.looked(MOST_BETWEEN)  # as after many fast steps: no look falls into these
            self._left.pop(0)[1]()


def steady(settings: Settings, report: Report) -> None:
    """On a GPU PyTorch's synchronisation check raises in steady steps; on a CPU operations that read are counted."""
    ways: Mapping[str, dict[str, Any]] = {
        "fp32": {},
        "momentum, clipping": {"optimizer": OptimizerConfig(momentum=0.9), "gradient_clip": 1.0},
        "adamw, warm-up, cosine": {
            "optimizer": OptimizerConfig(name="adamw"),
            "learning_rate": 1e-3,
            "warmup_steps": 5,
            "schedule": "cosine",
        },
        "two micro-batches": {"accumulation": 2},
    }
    for name, changes in ways.items():
        config = some_steps(settings, STEADY.stop + 10, **changes)
        if settings.device == "cuda":
            _under_sync_check(settings, report, name, config)
        else:
            reads = Reads()
            around = Around(reads.__enter__, partial(reads.__exit__, None, None, None))
            run(settings, config, [around])
            report.equal(f"{name}: reads in {len(STEADY)} steps", dict(reads.counted), {})
            report.equal(f"{name}: the steps were watched", around.has_watched, True)
    if settings.device == "cpu":
        report.need_cuda("torch.cuda.set_sync_debug_mode")


def _under_sync_check(settings: Settings, report: Report, what: str, config: TrainConfig) -> None:
    """A synchronising call raises RuntimeError in the steady steps."""
    around = Around(lambda: torch.cuda.set_sync_debug_mode("error"), lambda: torch.cuda.set_sync_debug_mode("default"))
    said = "none"
    try:
        run(settings, config, [around])
    except RuntimeError as error:
        said = str(error).partition("\n")[0]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    report.equal(f"{what}: synchronising calls in {len(STEADY)} steps", said, "none")
    report.equal(f"{what}: the steps were watched", around.has_watched, True)


# --- timing -------------------------------------------------------------------------------------------------------


class Clock(Hook):
    """Seconds of each period's steps but the first's, by CUDA's events; on a CPU by its clock."""

    def __init__(self, device: torch.device) -> None:
        self._on_cuda = device.type == "cuda"
        self._marks: list[Any] = []

    def epoch_measured(self, trial: Trial) -> Mapping[str, float | None]:
        """The steps of a period are made."""
        self._marks.append(self._mark())
        return {}

    def epoch_ends(self, trial: Trial, record: EpochRecord) -> None:
        """The next period's steps follow."""
        self._marks.append(self._mark())

    def seconds(self) -> list[float]:
        """Of the second period and those after it."""
        begins, ends = self._marks[1:-1:2], self._marks[2::2]
        if self._on_cuda:
            torch.cuda.synchronize()
            return [begin.elapsed_time(end) / 1000 for begin, end in zip(begins, ends, strict=True)]
        return [end - begin for begin, end in zip(begins, ends, strict=True)]

    def _mark(self) -> Any:
        if not self._on_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def timing(settings: Settings, report: Report) -> None:
    """`train_seconds` of an epoch is within 2 % of the time between two events around its steps, and 5 ms."""
    samples = 1024 if settings.small else 60_000
    clock = Clock(alone(settings).device)
    config = config_of(settings, batch_size=64 if settings.small else 256, epochs=4, **images(settings, samples, 256))
    records = run(settings, config, [clock]).records[1:]
    for record, seconds in zip(records, clock.seconds(), strict=True):
        apart = abs(record.train_seconds - seconds)
        report.at_most(f"epoch {record.epoch}: seconds apart, of {seconds:.4f}", apart, 0.02 * seconds + 0.005)
        phases = sum(record.phases.values())
        report.at_most(f"epoch {record.epoch}: its phases, of its seconds", phases / record.train_seconds, 1.001)
    if settings.device == "cpu":
        report.need_cuda("events; a clock took their place")


# --- compile ------------------------------------------------------------------------------------------------------


def compiled(settings: Settings, report: Report) -> None:
    """A compiled model makes nearly the same parameters, and its first epoch's rate counts no compilation."""
    if not can_compile(settings):
        raise LacksError("needs a C++ compiler and, on a GPU, Triton, which torch.compile calls")
    be_deterministic()
    model: dict[str, Any] = {"model": "lenet"}
    if settings.small:
        model = {"model": "mlp"}
    eager = parameters_of(run(settings, some_steps(settings, 10, **model)).model)
    ways: Mapping[str, dict[str, Any]] = {
        "true": {"compile": True},
        "reduce-overhead": {"compile": "reduce-overhead"},
        "reduce-overhead, two micro-batches": {"compile": "reduce-overhead", "accumulation": 2},
    }
    for way, keys in ways.items():
        before = counters["stats"]["unique_graphs"]
        trained = parameters_of(run(settings, some_steps(settings, 10, **model, **keys)).model)
        report.at_least(f"{way}: graphs that were compiled", counters["stats"]["unique_graphs"] - before, 1)
        report.at_most(f"{way}: relative difference after 10 steps", relative(trained, eager), 1e-4)
    records = run(settings, config_of(settings, **model, compile=True, epochs=3)).records  # the last batch is shorter
    rates = [record.samples_per_second or 0.0 for record in records]
    report.at_least("the first epoch's rate, of the third's", rates[0] / rates[2], 0.1)  # 0.01 with compilations
    report.details["seconds of the epochs"] = [record.train_seconds for record in records]
