"""What each rank measured in a period, reduced to one record, and the table of all metrics.

A period is the steps from one evaluation to the next, by default an epoch; `epoch` in names and keys means it.

No torch here: the driver reads the same table and functions.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from scalestudy.training.config import PHASES

USAGE = ("cpu_cores", "starved_share", "resident_bytes", "gpu_share")
"""What a record says of the machine. MLflow shows names that begin with `system/` in a separate tab."""
OPTIONAL = (
    *("samples_per_second", "peak_memory_bytes", "sync_bytes", "tokens"),
    *("grad_sq_norm", "grad_trace_cov", "straggler_ratio", *USAGE),
)
"""Fields of a record that are None where they were not measured. Others are NaN."""
SYSTEM = "system/"
AT_TARGET = "at_{:g}_seconds"
"""The time to the hardest target. MLflow sorts its lists, and this name comes first."""
CELL_PLACE = "cell_place"
"""The place of a trial's cell among the study's cells, by which MLflow's lists are in order."""
RECOMMENDED = "recommended_"
"""Prefix of the metrics of a study's run that describe the recommended cell."""


@dataclass(frozen=True)
class Metric:
    """One quantity that the project writes anywhere. A name in <…> stands for any value."""

    name: str
    unit: str  # "1": a plain number or share
    reduction: str  # how the ranks' values become one
    meaning: str


METRICS = (
    Metric("steps", "1", "equal on all ranks", "optimizer updates in the epoch"),
    Metric("samples", "1", "sum", "training examples seen in the epoch"),
    Metric("train_loss", "1", "sum of losses / sum of weights", "mean loss in the epoch, before each update"),
    Metric("test_loss", "1", "sum of losses / sum of weights", "mean loss over the test set, after the epoch"),
    Metric("test_accuracy", "1", "sum of hits / sum of examples", "share of the test set that is classified rightly"),
    Metric("test_<metric>", "1", "from sums over all ranks, by the task", "a metric of the study over the test set"),
    Metric(
        "best_test_<metric>",
        "1",
        "as test_<metric>",
        "best value of the trial's epochs, by the metric's mode; in the study's run, of all trials",
    ),
    Metric("learning_rate", "1", "equal on all ranks", "effective rate of the epoch's last update"),
    Metric("train_seconds", "s", "max", "time in steps: no evaluation, checkpoint, logging, start-up; trial or epoch"),
    Metric("epoch_seconds", "s", "max", "train_seconds of one epoch"),
    Metric("eval_seconds", "s", "max", "time of the evaluation after the epoch"),
    Metric(
        "samples_per_second",
        "1/s",
        "sum of examples / max of seconds",
        "training rate of all workers together, first warm_up_steps of the trial left out",
    ),
    Metric("phase_data_seconds", "s", "rank with most data + compute", "part of epoch_seconds: batches fetched"),
    Metric(
        "phase_forward_backward_seconds",
        "s",
        "rank with most data + compute",
        "part of epoch_seconds: loss and local gradients",
    ),
    Metric(
        "phase_gradient_sync_seconds",
        "s",
        "rank with most data + compute",
        "part of epoch_seconds: exposed, from the last local gradient to the sum of all",
    ),
    Metric(
        "phase_optimizer_seconds",
        "s",
        "rank with most data + compute",
        "part of epoch_seconds: check, clip, update, gradients reset",
    ),
    Metric(
        "straggler_ratio",
        "1",
        "max / median",
        "data + compute of the slowest rank over the median rank's; 1: all are alike",
    ),
    Metric(
        "sync_bytes",
        "B",
        "max",
        "handed to collectives for gradients, by the algorithm; an allreduce of n bytes "
        "over k workers counts 2 (k - 1) / k · n",
    ),
    Metric(
        "tokens_per_second",
        "1/s",
        "samples_per_second, times tokens / samples",
        "training rate of all workers together, in what the task's tokens counts",
    ),
    Metric("tokens", "1", "sum", "trained since the last evaluation, as the task's tokens counts them"),
    Metric("grad_sq_norm", "1", "over ranks, see docs/formulas.md §3", "squared norm of the true gradient"),
    Metric("grad_trace_cov", "1", "over ranks, see docs/formulas.md §3", "trace of the per-example covariance"),
    Metric(
        "noise_scale",
        "1",
        "mean trace / mean square of the epochs",
        "gradient noise scale over the training, in examples, for its optimizer",
    ),
    Metric(
        "peak_memory_bytes",
        "B",
        "max",
        "CUDA: most memory allocated in the trial; CPU: the process's largest "
        "resident set since it started, earlier trials included",
    ),
    Metric(
        "cpu_cores",
        "1",
        "sum",
        "cores that the workers kept busy, mean over an epoch with its evaluation; in MLflow system/cpu_cores",
    ),
    Metric(
        "starved_share",
        "1",
        "max",
        "share of forward, backward and update in which a worker on a CPU was ready to run and had no core; in MLflow "
        "system/starved_share",
    ),
    Metric(
        "resident_bytes",
        "B",
        "sum",
        "memory of the workers' processes after the epoch; in MLflow system/resident_bytes",
    ),
    Metric(
        "gpu_share",
        "1",
        "mean",
        "share of time that the workers' GPUs were busy, by NVML, at the epoch's end; in MLflow system/gpu_share",
    ),
    Metric("replica_max_diff", "1", "max", "largest difference of a parameter from rank 0's; 0 unless there is a bug"),
    Metric("time_to_<metric>_<target>", "s", "as train_seconds", "training time until the metric's target is reached"),
    Metric("at_<target>_seconds", "s", "as train_seconds", "the same, by a name that stands first in MLflow's lists"),
    Metric("wall_seconds", "s", "driver", "time from the trial's start to its end; in the study's run, of the study"),
    Metric("startup_seconds", "s", "driver", "time from the trial's start to its first step"),
    Metric(
        CELL_PLACE, "1", "study", "place of the trial's cell in the study's order; 1: recommended, or the best so far"
    ),
    Metric("trials_planned", "1", "study", "trials of the study's plan"),
    Metric("trials_ended", "1", "study", "planned trials that have ended, in whatever way"),
    Metric("trials_failed", "1", "study", "trials that failed; diverging and running out of memory are results"),
    Metric(f"{RECOMMENDED}workers", "1", "study", "num_gpus of the recommended cell"),
    Metric(f"{RECOMMENDED}batch_size", "1", "study", "its batch size, all workers together"),
    Metric(f"{RECOMMENDED}learning_rate", "1", "study", "its nominal learning rate"),
    Metric(f"{RECOMMENDED}target", "1", "study", "the target that the answer is for: the hardest that a cell reaches"),
    Metric(f"{RECOMMENDED}seconds", "s", "study", "the cell's training time to that target, as estimated"),
    Metric(f"{RECOMMENDED}worker_seconds", "s", "study", "that time times its workers"),
    Metric(f"{RECOMMENDED}cost", "1", "study", "what that costs at targets.price_per_gpu_hour"),
)
"""Every metric of records, trials.jsonl and MLflow."""


@dataclass(frozen=True)
class RankMeasurements:
    """One rank's share of a period, all plain numbers so that a collective can carry it."""

    train_loss_sum: float  # over this rank's training examples
    train_weight_sum: float  # what that sum is divided by, over all ranks: examples, or what the task counts
    samples: float  # training examples of this rank
    train_seconds: float
    timed_samples: float  # trained in the steps after the warm-up
    timed_seconds: float  # of the steps after the warm-up
    data_seconds: float  # phases of the epoch, scaled up from sampled steps
    forward_backward_seconds: float
    gradient_sync_seconds: float
    optimizer_seconds: float
    eval_seconds: float  # NaN where the epoch was not evaluated
    peak_memory_bytes: float
    replica_difference: float  # from rank 0
    sync_bytes: float
    cpu_cores: float = math.nan  # kept busy by this process; NaN: not measured
    starved_share: float = math.nan  # NaN: on a GPU, or the system does not count it
    resident_bytes: float = math.nan
    gpu_share: float = math.nan  # of its GPU's time; NaN: no GPU, or no NVML
    tokens: float = math.nan  # of this rank's training examples; NaN: the task does not count them
    enough_timed: float = 1.0  # whether enough steps were timed for a rate (else it is None)

    def to_row(self) -> tuple[float, ...]:
        """Return the numbers in the order of the fields."""
        return dataclasses.astuple(self)

    @property
    def compute_seconds(self) -> float:
        """Data, forward, backward and update: what this rank did alone."""
        return self.data_seconds + self.forward_backward_seconds + self.optimizer_seconds


@dataclass(frozen=True)
class EpochRecord:
    """One entry of "epochs" in trials.jsonl. None or NaN: not measured."""

    epoch: int  # number of the evaluation, or of a Ray Train loop's report, from 1
    at: str  # UTC, ISO 8601 with milliseconds and Z
    steps: int  # 0: a loop that tells none
    train_loss: float
    test_loss: float
    metric: str  # short name of the target metric
    test_metric: float  # its value over the test set; written as test_<metric>
    train_seconds: float  # of a loop: all that it did since the report before, evaluation and set-up included
    eval_seconds: float
    samples: int  # 0: a loop that tells none
    samples_per_second: float | None
    phases: Mapping[str, float]  # PHASES -> seconds in the epoch; empty: a loop's are not measured
    peak_memory_bytes: int | None
    replica_max_diff: float
    sync_bytes: int | None
    learning_rate: float
    grad_sq_norm: float | None = None
    grad_trace_cov: float | None = None
    straggler_ratio: float | None = None  # None: the phases were not measured
    cpu_cores: float | None = None  # all workers together
    starved_share: float | None = None  # of the worker with the most; None, and left out: on GPUs, or not counted
    resident_bytes: float | None = None  # all workers together
    gpu_share: float | None = None  # mean over the workers; None: no GPU, or no NVML
    tokens: int | None = None  # of the training examples; None, and left out of the data: the task does not count them
    more: Mapping[str, float] = field(default_factory=dict)  # the task's other metrics; each written as test_<name>

    @property
    def tokens_per_second(self) -> float | None:
        """The rate in tokens, by the period's mean of an example; None: the task counts none, or no rate is known."""
        if self.tokens is None or self.samples_per_second is None or not self.samples:
            return None
        return self.samples_per_second * self.tokens / self.samples

    def to_dict(self) -> dict[str, Any]:
        """Return data that JSON can hold: NaN and infinities are None."""
        plain = {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self)}
        plain["tokens_per_second"] = self.tokens_per_second
        plain["phases"] = {name: _finite_or_none(value) for name, value in self.phases.items()}
        named = {f"test_{self.metric}" if name == "test_metric" else name: value for name, value in plain.items()}
        named |= {f"test_{name}": value for name, value in named.pop("more").items()}
        for name in ("tokens", "tokens_per_second", "starved_share"):
            if named[name] is None:
                del named[name]
        return {name: _finite_or_none(value) for name, value in named.items()}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> EpochRecord:
        """Return the record behind `to_dict`'s data; what was not finite is NaN now."""
        names = {"test_metric": f"test_{plain['metric']}"}
        values = {entry.name: plain.get(names.get(entry.name, entry.name)) for entry in dataclasses.fields(cls)}
        given: dict[str, Any] = {
            name: math.nan if value is None and name not in OPTIONAL else value for name, value in values.items()
        }
        others = [name for name in plain if name.startswith("test_") and name not in ("test_loss", *names.values())]
        more = {name.removeprefix("test_"): math.nan if plain[name] is None else plain[name] for name in others}
        return cls(**{**given, "more": more})


@dataclass(frozen=True, kw_only=True)
class EpochFacts:
    """What every rank knows of a period, the same on all."""

    epoch: int  # number of the evaluation, from 1
    steps: int
    metric: str  # short name of the target metric
    test_loss: float  # NaN: not evaluated
    tested: Mapping[str, float]  # the task's metrics by name; empty: not evaluated
    learning_rate: float  # effective, of the last update
    measured: Mapping[str, float | None]  # what hooks add to the record, by the names of its fields


def reduce_over_ranks(rows: Sequence[Sequence[float]], facts: EpochFacts) -> EpochRecord:
    """Reduce the measurements of all ranks (RankMeasurements.to_row, by rank) to one record, here and nowhere else."""
    ranks = [RankMeasurements(*row) for row in rows]
    slowest = max(ranks, key=lambda rank: rank.compute_seconds)
    samples = _total(ranks, "samples")
    timed_seconds = _largest(ranks, "timed_seconds")
    return EpochRecord(
        epoch=facts.epoch,
        at=utc_now(),
        steps=facts.steps,
        train_loss=_total(ranks, "train_loss_sum") / _total(ranks, "train_weight_sum"),
        test_loss=facts.test_loss,
        metric=facts.metric,
        test_metric=facts.tested.get(facts.metric, math.nan),
        train_seconds=_largest(ranks, "train_seconds"),
        eval_seconds=_largest(ranks, "eval_seconds"),
        samples=int(samples),
        samples_per_second=_total(ranks, "timed_samples") / timed_seconds
        if all(rank.enough_timed for rank in ranks) and timed_seconds
        else None,
        phases={name: getattr(slowest, f"{name}_seconds") for name in PHASES},
        peak_memory_bytes=int(_largest(ranks, "peak_memory_bytes")),
        replica_max_diff=_largest(ranks, "replica_difference"),
        sync_bytes=int(_largest(ranks, "sync_bytes")),
        learning_rate=facts.learning_rate,
        straggler_ratio=_straggler_ratio([rank.compute_seconds for rank in ranks]),
        cpu_cores=_finite_or_none(_total(ranks, "cpu_cores")),
        starved_share=_finite_or_none(_largest(ranks, "starved_share")),
        resident_bytes=_finite_or_none(_total(ranks, "resident_bytes")),
        gpu_share=_finite_or_none(_total(ranks, "gpu_share") / len(ranks)),
        tokens=None if math.isnan(tokens := _total(ranks, "tokens")) else int(tokens),
        more={name: value for name, value in facts.tested.items() if name != facts.metric},
        **facts.measured,
    )


def _straggler_ratio(seconds: Sequence[float]) -> float | None:
    """Return the largest over the median; None where they were not measured."""
    median = statistics.median(seconds)
    return max(seconds) / median if median > 0 else None


def epoch_metrics(record: EpochRecord) -> dict[str, float]:
    """Return the MLflow metrics of an epoch, by their names in METRICS; leave out what is not finite.

    Those of the test set come first: a run's page in MLflow lists metrics in the order in which they were logged.
    """
    same = (
        "train_loss",
        "eval_seconds",
        "samples_per_second",
        "grad_sq_norm",
        "grad_trace_cov",
        "peak_memory_bytes",
        "replica_max_diff",
        "sync_bytes",
        "learning_rate",
        "straggler_ratio",
        "tokens",
        "tokens_per_second",
    )
    values = {f"test_{name}": value for name, value in {record.metric: record.test_metric, **record.more}.items()}
    values.setdefault("test_loss", record.test_loss)
    values |= {name: getattr(record, name) for name in same}
    values["epoch_seconds"] = record.train_seconds
    values |= {f"{SYSTEM}{name}": getattr(record, name) for name in USAGE}
    values |= {f"phase_{name}_seconds": seconds for name, seconds in record.phases.items()}
    return {name: float(value) for name, value in values.items() if _finite_or_none(value) is not None}


def noise_scale(mean_sq_norm: float, mean_trace_cov: float) -> float | None:
    """Return B_noise in examples, from means over steps: their ratio, not the mean of ratios (McCandlish et al. 2018,
    arXiv 1812.06162). None if |G|² is not above 0: the mean is of unbiased estimates, which may be negative."""
    return mean_trace_cov / mean_sq_norm if mean_sq_norm > 0 else None


def noise_scale_of(epochs: Iterable[Mapping[str, Any]]) -> float | None:
    """Return `noise_scale` over a training, from the epochs of its line of trials.jsonl in which it was measured."""
    pairs = [(epoch.get("grad_sq_norm"), epoch.get("grad_trace_cov")) for epoch in epochs]
    measured = [(square, trace) for square, trace in pairs if square is not None and trace is not None]
    if not measured:
        return None
    squares, traces = zip(*measured, strict=True)
    return noise_scale(math.fsum(squares) / len(squares), math.fsum(traces) / len(traces))


def find_metric(name: str) -> Metric:
    """Return the table's entry for a metric's name. Raises KeyError, with the remedy, for a name that is not in it."""
    for metric in METRICS:
        if name == f"{SYSTEM}{metric.name}" and metric.name in USAGE:
            return metric
        stem = metric.name.partition("<")[0]
        if name == metric.name or (stem != metric.name and name.startswith(stem) and name != stem):
            return metric
    raise KeyError(f"metric {name!r} is not in scalestudy.training.records.METRICS; add it there")


def utc_now() -> str:
    """Return the present moment, as records state it: 2026-01-31T12:00:00.000Z."""
    return utc_text(time.time())


def utc_text(seconds: float) -> str:
    """Return a moment, in seconds since 1970, as records state it: ISO 8601 in UTC, with milliseconds and a Z."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _total(ranks: Sequence[RankMeasurements], name: str) -> float:
    return math.fsum(getattr(rank, name) for rank in ranks)


def _largest(ranks: Sequence[RankMeasurements], name: str) -> float:
    """Return the largest value; NaN if any is NaN, which `max` alone would sometimes hide."""
    values = [getattr(rank, name) for rank in ranks]
    return math.nan if any(math.isnan(value) for value in values) else max(values)


def _finite_or_none(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
