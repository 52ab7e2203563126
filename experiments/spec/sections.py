"""The sections of a spec beside `workload` and `train`, which are the models of `scalestudy.training.config`."""

import functools
import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, WithJsonSchema, model_serializer

from scalestudy.experiments.spec.addresses import is_uri, uri_problem
from scalestudy.training.config import UNITS, Train
from scalestudy.training.section import (
    EXACT,
    LARGEST,
    Affects,
    Arguments,
    Count,
    NotNegative,
    Positive,
    Section,
    Share,
    Text,
    Whole,
    affects,
    changed,
    kind_of,
    leaves,
    wrong,
)

FOLDER_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"


def _folder_name(value: str) -> str:
    if not re.fullmatch(FOLDER_NAME, value):
        rule = "letters, digits, '.', '_' and '-', starting with a letter or digit, at most 64"
        raise wrong("can't name a folder", f"use {rule}")
    return value


FolderName = Annotated[
    str, AfterValidator(_folder_name), WithJsonSchema({"type": "string", "pattern": f"^{FOLDER_NAME}$"})
]


def _storage_place(value: str) -> str:
    if "\0" in value:
        raise wrong("is not the name of a folder", "name a folder, or a URI such as s3://bucket/runs")
    if is_uri(value) and (problem := uri_problem(value)):
        raise wrong(*problem)
    return value


StorageFolder = Annotated[Text, AfterValidator(_storage_place)]


def _tracking_uri(value: str) -> str:
    example = "use sqlite:///mlflow.db or http://host:5000"
    if value.startswith("file:") or ("://" not in value and value != "databricks"):
        raise wrong("is a file store, which MLflow has retired", example)
    return value


def _distinct(values: tuple[Any, ...]) -> tuple[Any, ...]:
    for position, value in enumerate(values):
        if value in values[:position]:
            raise wrong(f"has {value} twice", "keep one of the two")
    return values


class Search(Section):
    """Which points are run, and which trials stop early."""

    method: Annotated[Literal["grid", "random", "tpe", "adaptive"], EXACT] = "grid"
    """how points of the sweep are chosen

    grid: every point. random: some points, drawn before the study starts. tpe: points near the best ones so far.
    adaptive: each next training or timing is chosen by how much it tells of the answer, until that is sure or `budget`
    is used."""
    samples: Count = 20
    """number of points that random and tpe run, each with all seeds; of a smaller space, all"""
    seed: Whole = 0
    """of the choice: the same seed chooses the same points"""
    objective: Annotated[Literal["metric", "time_to_target", "cost_to_target"], EXACT] = "metric"
    """what tpe and adaptive look for

    The best metric of any evaluation, or the training seconds or worker-seconds until the metric reaches the hardest of
    targets.accuracy. For tpe a point counts with the median of its seeds. For adaptive, metric means
    time_to_target."""
    scheduler: Annotated[Literal["none", "asha"], EXACT] = "none"
    """which trials stop early; asha: the worst ones, at rungs of evaluations

    Each seed is a trial of its own. With a target, only trials of the same batch size are compared."""
    grace_epochs: Count = 1
    """for asha: evaluations, by default epochs, before the first rung

    The other rungs are this times reduction, its square and so on, below the last evaluation."""
    reduction: Annotated[int, Field(ge=2, le=LARGEST)] = 3
    """for asha: one trial in so many continues after a rung"""


LIMITS = ("minutes", "worker_hours", "trials")
"""Keys of `budget` of which one bounds the search."""


class Budget(Section):
    """How much an adaptive search may use: one of minutes, worker_hours and trials."""

    minutes: Positive | None = None
    """minutes of wall time, over all runs of the study, from `run` on"""
    worker_hours: Positive | None = None
    """hours of workers: each training and timing run counts its time once for each of its workers"""
    trials: Count | None = None
    """number of trainings; timing runs do not count"""
    uses: Positive | None = None
    """how often the answer will be used, in trainings to the target

    The search then also ends when another look costs more than it saves over so many uses. null: it looks until it is
    sure, or the budget is used."""

    @property
    def limits(self) -> dict[str, int | float]:
        """What bounds the search, by its key: minutes, worker_hours or trials. A valid spec has at most one."""
        listed = {key: getattr(self, key) for key in LIMITS}
        return {key: value for key, value in listed.items() if value is not None}


class Resources(Section):
    """What a worker asks of the cluster.

    Device and threads change rounding, and so the result; the other keys say what may run when and where.
    """

    device: Annotated[Literal["auto", "cpu", "cuda"], EXACT] = "auto"
    """what a worker computes on; auto: CUDA if the cluster has GPUs, else CPU processes"""
    gpus_per_worker: Share = 1.0
    """below 1, several workers share a GPU, and sum by gloo; ignored on CPUs"""
    cpus_per_worker: Count = 1
    """on a CPU also the threads of a worker"""
    exclusive: Annotated[Literal[False, True, "auto"], EXACT, Affects(step=False, result=False)] = "auto"
    """whether a trial has its nodes to itself, so that timings are undisturbed; auto: true on CPUs, but not for
    trainings of an adaptive study
    """
    placement: Annotated[Literal["pack", "spread"], EXACT, Affects(result=False)] = "pack"
    """where workers go; pack: on as few nodes as hold a trial, for which it waits; spread: evenly over all nodes"""
    oversubscribe: Annotated[bool, Affects(result=False)] = False
    """allow more threads than cores; such timings are flagged"""


class Targets(Section):
    """What to reach soonest and cheapest."""

    accuracy: Annotated[tuple[float, ...], Field(strict=False), AfterValidator(_distinct)] = ()
    """values of the metric to reach, such as [0.85, 0.9]; the key may be the metric's name

    Accuracies are above 0 and at most 1. Without any, the best value is recommended."""
    stop: Annotated[Literal[False, True, "auto"], EXACT] = "auto"
    """end a training at the hardest target; auto: if only that time counts

    auto: yes in adaptive studies and where search.objective is a time or a cost; otherwise no, so that a grid shows
    final accuracies."""
    price_per_gpu_hour: NotNegative | None = None
    """of a GPU, in any currency; null: cost is reported in worker-seconds"""
    tolerance: NotNegative = 0.1
    """how much longer than the fastest cell the recommended one may take, as a share"""
    confidence: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """how likely the recommended cell must be within the tolerance, as a share; the cheapest such cell is recommended

    From 0.5 on, noise that grows alike in all cells never makes it cheaper."""


class Limits(Section):
    """Bounds on what one study may use."""

    trial_minutes: Positive = 60.0
    """longest wall time of a trial"""
    stalled_seconds: Positive = 120.0
    """a trial that stands still, or loses touch with a worker, for so long goes on from its checkpoint

    Standing still: no step is finished and no batch evaluated. Loading, compiling and checkpointing may take longer."""
    failures_per_trial: Whole = 2
    """attempts that a trial may lose to each cause, such as a lost worker"""
    failures: Annotated[Literal["stop", "continue"], EXACT] = "stop"
    """what to do if the first trials of two cells fail with one exception in one place"""
    trials_per_group: Count = 200
    """trials after which new workers are started"""


class Judged(Section):
    """Runs that others made, of which `scalestudy judge` has made the study. It trains nothing."""

    sources: Annotated[tuple[str, ...], Field(strict=False, min_length=1)]
    """files, folders and experiments that the runs come from"""
    columns: dict[str, str]
    """what was taken as what: the source's name by role"""
    given: Arguments = Field(default_factory=dict)
    """what was said of all runs"""
    progress: Annotated[Literal["steps", "epochs", "seconds"], EXACT]
    """how far a run is at an evaluation

    steps: its updates are known. epochs: they are, up to one factor, since the size of the training set is not.
    seconds: nothing but its time, which then stands for its updates."""
    evaluations: Count
    """most evaluations of a run"""


class Tracking(Section):
    """Where MLflow records the study."""

    uri: Annotated[Text, AfterValidator(_tracking_uri)] | None = None
    """null: MLFLOW_TRACKING_URI, else sqlite:///mlflow.db in the current folder"""
    experiment: Text | None = None
    """null: the study's name"""
    offline: Annotated[Literal["refuse", "spool"], EXACT] = "refuse"
    """what to do if MLflow can't be reached at the start: refuse the study, or send the records later"""


NO_STEP = frozenset(name for name, field in Train.model_fields.items() if not affects(field).step)
"""Keys of `train` that can change neither the time nor the memory of a step."""


def result_keys(section: type[Section], plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return a section's values, as plain data, that a trial's id depends on: those that are not the defaults."""
    return changed(section, plain, lambda affected: affected.result)


def step_keys(section: type[Section], plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return a section's values, as plain data, that the time of a step depends on, without the defaults."""
    return changed(section, plain, lambda affected: affected.step)


def length_of(train: Mapping[str, Any]) -> Train:
    """Return how long a training is and when it is evaluated, from its `train` as plain data."""
    return Train(**{key: train[key] for key in (*UNITS, "eval_every") if key in train})


@functools.cache
def leaf_keys(section: type[Section] = Train, prefix: str = "train.") -> tuple[str, ...]:
    """Return the dotted paths of the plain keys of a section."""
    return tuple(f"{prefix}{'.'.join(path)}" for path, _ in leaves(section))


@functools.cache
def sweepable_keys() -> tuple[str, ...]:
    """Return the dotted paths of the keys of `train` that may be swept, in the order of `leaf_keys`.

    A schedule is swept whole, by its name or as a mapping.
    """
    return tuple("train.schedule" if key == "train.schedule.name" else key for key in leaf_keys())


ARGUMENTS = (
    *(f"workload.{key}_args" for key in ("model", "data", "task", "loop")),
    "train.schedule.args",
)
"""Mappings whose keys, a user's names, may be swept too."""


def is_argument(key: str) -> bool:
    """Whether it names an argument of model, data set, task or schedule: `workload.model_args.width`."""
    mapping, _, name = key.rpartition(".")
    return mapping in ARGUMENTS and name.isidentifier()


def number_type(key: str) -> type | None:
    """Return int or float for a parameter that may have a range, else None.

    An argument's numbers are whole if both bounds are.
    """
    if is_argument(key):
        return float
    known: dict[str, Any] = {"num_gpus": int, "batch_size": int, "learning_rate": float}
    known |= {key: kind_of(field) for key, (_, field) in zip(sweepable_keys(), leaves(Train), strict=True)}
    return kind if (kind := known.get(key)) in (int, float) else None


KINDS = ("uniform", "log_uniform")
DIGITS = 4
"""Significant digits of a drawn number. It is readable, and equal on every machine: logarithms may differ in the last
bit, and a trial's id hashes the number."""


class Range(Section):
    """All numbers from low to high, both included. They are whole if the bounds are.

    uniform: every number is equally likely. log_uniform: every magnitude is. Whole numbers are rounded to the nearest.
    """

    kind: Literal["uniform", "log_uniform"]
    low: int | float
    high: int | float

    @model_serializer
    def _plain(self) -> dict[str, list[Any]]:
        return {self.kind: [self.low, self.high]}

    @property
    def whole(self) -> bool:
        """Whether it holds only whole numbers."""
        return isinstance(self.low, int)

    @property
    def count(self) -> float:
        """How many numbers it holds. Infinity if they are not whole."""
        return self.high - self.low + 1 if self.whole else math.inf

    def at(self, share: float) -> int | float:
        """Return the quantile of the distribution at a share from 0 to 1."""
        half = 0.5 if self.whole else 0.0  # the first and the last whole number are as wide as the others
        low, high = self.low - half, self.high + half
        logarithmic = self.kind == "log_uniform"
        return self.tidy(low * (high / low) ** share if logarithmic else low + share * (high - low))

    def tidy(self, value: float) -> int | float:
        """Round a number as trials have it: whole or to a few significant digits, and within the bounds."""
        if self.whole:
            return min(max(math.floor(value + 0.5), int(self.low)), int(self.high))
        width = (self.high - self.low) / max(abs(self.low), abs(self.high))
        digits = DIGITS + max(0, math.floor(-math.log10(width)))
        return min(max(float(f"{value:.{digits}g}"), self.low), self.high)

    @property
    def octaves(self) -> tuple[int | float, ...]:
        """Its ends and points about a factor of two apart between them, ascending. It holds positive numbers.

        Whole numbers are low, 2 · low, 4 · low, … and high; the others have equal ratios, as near to 2 as both ends
        allow.
        """
        if self.whole:
            doublings = range(math.ceil(math.log2(self.high / self.low)))
            return (*(int(self.low) << number for number in doublings), self.high)
        low, high = math.log2(self.low), math.log2(self.high)
        steps = max(1, round(high - low))
        between = [self.tidy(2 ** (low + (high - low) * step / steps)) for step in range(1, steps)]
        return (self.low, *between, self.high)

    @property
    def text(self) -> str:
        """In words: `0.01 to 1, log_uniform`."""
        return f"{self.low:g} to {self.high:g}, {self.kind}"
