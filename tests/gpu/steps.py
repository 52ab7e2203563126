"""Parts about single steps: captured or eager, compiled, timed, and never waiting for the device."""

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
from scalestudy.training.device import has_precision
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
    initial_parameters,
    parameters_of,
    relative,
    run,
    said,
    says,
    some_steps,
    state_of,
)

STEPS = 20
EXACT_RATE = 0.125  # a graph's rate is a float32; one that is not exact there moves a deep network far from eager steps
BF16 = "MLP, bf16"
MOST_OF_BF16 = 0.05  # of the change; float32's last digit makes 0.003 of it in 20 steps, weights cast once for all 0.5
STEADY = range(8, 20)  # steps of the first epoch; before them are warm-up and capture, after them its end
READS = ("_local_scalar_dense", "nonzero")  # operations that hand a number or a size to the CPU


# --- graphs against eager -----------------------------------------------------------------------------------------


def graphs_against_eager(settings: Settings, report: Report) -> None:
    """After 20 steps of float32, captured steps have made the parameters of eager ones. On a CPU `auto` is eager."""
    be_deterministic()
    deep: dict[str, Any] = {"model": "resnet18"}
    if settings.small:
        deep = {"model": "tests.gpu.models:resnet9", "model_args": {"width": 4}}
    cases: dict[str, dict[str, Any]] = {
        "LeNet, SGD": {},
        "LeNet, two micro-batches": {"accumulation": 2},
        "LeNet, a task with weights": {"task": "tests.gpu.models:Weighed", "metric": "accuracy"},
        "LeNet, momentum, clipping, one-cycle": {
            "optimizer": OptimizerConfig(momentum=0.9),
            "gradient_clip": 1.0,
            "schedule": "one_cycle",
        },
        "LeNet, AdamW": {"optimizer": OptimizerConfig(name="adamw"), "learning_rate": 1e-3},
        "ResNet, SGD": {**deep, "learning_rate": EXACT_RATE / 16},
    }
    if has_precision("bf16", alone(settings).device):
        cases[BF16] = {"model": "mlp", "precision": "bf16", "learning_rate": EXACT_RATE}
    else:
        report.lacks.append(f"needs a {settings.device} with bfloat16: captured steps in bf16")
    for name, changes in cases.items():
        config = some_steps(settings, STEPS, **changes, cuda_graph=False)
        eager = run(settings, config)
        captured = run(settings, some_steps(settings, STEPS, **changes, cuda_graph=_graph(settings)))
        report.equal(f"{name}: its details", said(captured, says(settings)), says(settings))
        first, second, start = state_of(captured.model), state_of(eager.model), initial_parameters(config)
        moved = relative(parameters_of(eager.model), start)
        limit = 1e-6 if name != BF16 else MOST_OF_BF16 * moved
        limit = limit if settings.device == "cuda" else 0.0
        report.at_most(f"{name}: relative difference after {STEPS} steps", relative(first, second), limit)
        report.at_least(f"{name}: and they moved by", moved, 1e-3)
    _dropout(settings, report)
    if settings.device == "cpu":
        report.equal("cuda_graph: true on a CPU is refused in one line", _is_refused(settings), True)
        report.need_cuda("captured steps")


def _graph(settings: Settings) -> bool | str:
    """The key `cuda_graph` of a trial that has to be captured, or to be eager on a CPU."""
    return True if settings.device == "cuda" else "auto"


class Losses(Hook):
    """The sum of the losses up to each step, where it lies."""

    def __init__(self) -> None:
        self._sums: list[torch.Tensor] = []

    def step_ends(self, trial: Trial, step: int) -> None:
        self._sums.append(trial.progress.tally.loss_sum.clone())

    def different(self) -> int:
        """How many different losses the steps have, to five digits."""
        return len({f"{loss:.4e}" for loss in torch.stack(self._sums).double().diff().tolist()}) + 1


def _dropout(settings: Settings, report: Report) -> None:
    """A graph draws anew in each replay, the same for the same seed; what it trains learns.

    That it draws what eager steps draw, PyTorch does not promise: the difference is in the details.
    """
    name, mlp = "MLP with dropout", {"model": "mlp", "model_args": {"dropout": 0.5}}
    config = config_of(settings, **mlp, epochs=4, cuda_graph=_graph(settings))
    first, second = (run(settings, config) for _ in range(2))
    report.equal(f"{name}: its details", said(first, says(settings)), says(settings))
    apart = relative(state_of(first.model), state_of(second.model))
    report.at_most(f"{name}: relative difference of two trainings of one seed", apart, 1e-6)
    fallen = first.records[-1].train_loss / first.records[0].train_loss
    report.at_most(f"{name}: loss of the last epoch, of the first's", fallen, 0.8)
    eager = run(settings, config.replace(cuda_graph=False))
    apart = relative(state_of(first.model), state_of(eager.model))
    report.details[f"{name}: relative difference from eager steps"] = apart
    losses = Losses()
    still: dict[str, Any] = {"batch_size": 1, "learning_rate": 1e-12, **images(settings, 1, 16)}
    run(settings, some_steps(settings, STEPS, **mlp, **still, cuda_graph=_graph(settings)), [losses])
    report.at_least(f"{name}: different losses of {STEPS} steps with one image", losses.different(), STEPS - 4)


def _is_refused(settings: Settings) -> bool:
    try:
        run(settings, some_steps(settings, 2, warm_up_steps=0, cuda_graph=True))
    except ValueError as error:
        return "cuda_graph" in str(error) and "\n" not in str(error)
    return False


def failed_capture(settings: Settings, report: Report) -> None:
    """A forward that reads a tensor can't be captured: the trial is eager, says why, and asks for new processes."""
    be_deterministic()
    reason = says(settings, "the step can't be captured: ")
    config = some_steps(settings, STEPS, model="tests.gpu.models:Deciding")
    result = run(settings, config.replace(cuda_graph="auto"))
    report.details["cuda_graph"] = dict(result.details)
    report.equal("its details", said(result, reason), reason)
    apart = relative(parameters_of(result.model), parameters_of(run(settings, config).model))
    report.at_most("relative difference from eager steps", apart, 1e-6)
    if settings.device == "cuda":
        report.equal("it is the last of its process", result.spent, True)
    else:
        report.need_cuda("a capture that fails")


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
        for captured in (False, True) if settings.device == "cuda" else (False,):
            config = some_steps(settings, STEADY.stop + 10, **changes, cuda_graph=captured)
            what = f"{name}{', captured' if captured else ''}"
            if settings.device == "cuda":
                _under_sync_check(settings, report, what, config)
            else:
                reads = Reads()
                around = Around(reads.__enter__, partial(reads.__exit__, None, None, None))
                run(settings, config, [around])
                report.equal(f"{what}: reads in {len(STEADY)} steps", dict(reads.counted), {})
                report.equal(f"{what}: the steps were watched", around.has_watched, True)
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
    """A compiled model makes nearly the same parameters, and its first epoch's rate knows nothing of compilations."""
    if not can_compile(settings):
        raise LacksError("needs a C++ compiler and, on a GPU, Triton, which torch.compile calls")
    be_deterministic()
    model: dict[str, Any] = {"model": "lenet"}
    if settings.small:
        model = {"model": "mlp"}
    eager = run(settings, some_steps(settings, 10, **model))
    result = run(settings, some_steps(settings, 10, **model, compile=True))
    report.at_least("graphs that were compiled", counters["stats"]["unique_graphs"], 1)
    apart = relative(parameters_of(result.model), parameters_of(eager.model))
    report.at_most("relative difference after 10 steps", apart, 1e-4)
    del result
    records = run(settings, config_of(settings, **model, compile=True, epochs=3)).records  # the last batch is shorter
    rates = [record.samples_per_second or 0.0 for record in records]
    report.at_least("the first epoch's rate, of the third's", rates[0] / rates[2], 0.1)  # 0.01 with compilations
    report.details["seconds of the epochs"] = [record.train_seconds for record in records]
