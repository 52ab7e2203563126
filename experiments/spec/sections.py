"""The sections of a spec. `train` comes from `scalestudy.training.config`.

No value is coerced: "2" is not 2, true is not 1, and 2.0 is not a number of workers.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationError,
    model_serializer,
)
from pydantic_core import InitErrorDetails

from scalestudy.experiments.spec.addresses import is_uri, uri_problem
from scalestudy.experiments.spec.errors import alternatives, wrong
from scalestudy.training.config import (
    LARGEST,
    CheckpointKnobs,
    KnobError,
    Knobs,
    TrainKnobs,
    did_you_mean,
    identity,
    keys,
)
from scalestudy.training.registry import LOSSES, TASKS, has_path_form

Whole = Annotated[int, Field(ge=0, le=LARGEST)]
Count = Annotated[int, Field(ge=1, le=LARGEST)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]


def _not_blank(value: str) -> str:
    if not value.strip():
        raise wrong("is empty", "write a value, or remove the key")
    return value


Text = Annotated[str, AfterValidator(_not_blank)]


FOLDER_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"


def _folder_name(value: str) -> str:
    if not re.fullmatch(FOLDER_NAME, value):
        rule = "letters, digits, '.', '_' and '-', starting with a letter or digit, at most 64"
        raise wrong("can't name a folder", f"use {rule}")
    return value


FolderName = Annotated[str, AfterValidator(_folder_name)]


def _storage_place(value: str) -> str:
    if "\0" in value:
        raise wrong("is not the name of a folder", "name a folder, or a URI such as s3://bucket/runs")
    if is_uri(value) and (problem := uri_problem(value)):
        raise wrong(*problem)
    return value


StorageFolder = Annotated[Text, AfterValidator(_storage_place)]


def _component(value: str) -> str:
    if ":" in value and not has_path_form(value):
        raise wrong("is not a built-in name or package.module:callable", "write it as package.module:callable")
    return value


def _data_set(value: str) -> str:
    if value.startswith("torchvision:"):
        raise wrong("is not available in this version", "write it as package.module:callable of your own")
    return _component(value)


def _tracking_uri(value: str) -> str:
    example = "use sqlite:///mlflow.db or http://host:5000"
    if value.startswith("file:") or ("://" not in value and value != "databricks"):
        raise wrong("is a file store, which MLflow has retired", example)
    return value


def _experiment(value: str) -> str:
    if value in (".", ".."):
        raise wrong("can't name a folder of artifacts", "write a name")
    return value


def _distinct(values: tuple[Any, ...]) -> tuple[Any, ...]:
    for position, value in enumerate(values):
        if value in values[:position]:
            raise wrong(f"has {value} twice", "keep one of the two")
    return values


def one_of(*choices: Any) -> BeforeValidator:
    """Accepts only these values, and only with their types."""

    def check(value: Any) -> Any:
        if any(type(value) is type(choice) and value == choice for choice in choices):
            return value
        guess = did_you_mean(value, [choice for choice in choices if isinstance(choice, str)])
        raise wrong(f"is not {alternatives(choices)}", f"{guess}choose {alternatives(choices)}")

    return BeforeValidator(check, json_schema_input_type=Literal[choices])


def built_in(*names: str) -> AfterValidator:
    """Accepts these names, and any text of the form `package.module:callable`."""

    def check(value: str) -> str:
        if value not in names and not has_path_form(value):
            choose = f"{did_you_mean(value, names)}choose {', '.join(names)}, or write" if names else "write"
            remedy = f"{choose} package.module:callable"
            raise wrong("is not built in", remedy)
        return value

    return AfterValidator(check)


class Section(BaseModel):
    """A frozen part of a spec. Unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Loader(Section):
    """How data are read ahead of the training."""

    workers: Annotated[int, Field(ge=0, le=256)] | None = None
    """Processes that read a torch data set, for each worker. null: as many as pay. 0: the worker itself."""
    prefetch: Count = 2
    """Batches that each of them, or the reader of tensors that don't fit the device, holds ready."""


class Workload(Section):
    """What is trained, and on which data."""

    model: Annotated[Text, AfterValidator(_component)] = "lenet"
    """A built-in name, `torchvision:name`, or `package.module:callable(num_classes, in_channels, **model_args)`."""
    data: Annotated[Text, AfterValidator(_data_set)] = "digits"
    """A built-in name, or `package.module:callable(root, **data_args)` that returns the splits."""
    model_args: dict[str, Any] = {}
    """Keyword arguments of the model, such as {init: xavier}."""
    data_args: dict[str, Any] = {}
    """Keyword arguments of the data set."""
    loss: Annotated[Text, built_in(*LOSSES)] = "cross_entropy"
    """A built-in name, or `package.module:callable(outputs, targets)` that returns one loss an example."""
    metric: Text = "accuracy"
    """The target metric, a mean over the test set: a built-in name, or a callable as for the loss. With a task, the
    name of one of its metrics.

    accuracy is reported as test_accuracy, a share from 0 to 1; others as test_<name>.
    """
    metric_mode: Annotated[str, one_of("max", "min")] = "max"
    """Whether the larger or the smaller metric is better."""
    task: Annotated[Text, built_in(*TASKS)] | None = None
    """`package.module:Class` that says what a batch's loss and metrics are. null: inputs, targets, loss and metric."""
    loader: Loader = Loader()
    """How data are read ahead. It changes no result."""


@dataclass(frozen=True, kw_only=True)
class Train(CheckpointKnobs, TrainKnobs):
    """How one trial is trained. Each of these keys can also be swept, with a list under `sweep`."""


OUTSIDE_STEP = frozenset(key.name for key in keys(Train) if not key.knob.changes_step)
"""Keys of `train` that can change neither the time nor the memory of a step."""
OUTSIDE_RESULT = frozenset(key.name for key in keys(Train) if not key.knob.changes_result)
"""Keys of `train` that can't change a trial's result."""
LATER = {"task": None, "loader": Loader().model_dump()}
"""Keys of `workload` that earlier versions had not, with their defaults, which are what they did."""


def length_of(train: Mapping[str, Any]) -> Train:
    """How long a training is and when it is evaluated, from its `train`. Earlier versions had only epochs."""
    epochs, steps, tokens, every = map(train.get, ("epochs", "steps", "tokens", "eval_every"))
    return Train(epochs=epochs, steps=steps, tokens=tokens, eval_every=every)


def workload_keys(workload: Mapping[str, Any]) -> dict[str, Any]:
    """What of `workload` a trial's id depends on; versions that lack a key at its default agree."""
    return {key: value for key, value in step_workload_keys(workload).items() if key != "loader"}


def step_workload_keys(workload: Mapping[str, Any]) -> dict[str, Any]:
    """What of `workload` the time of a step depends on; versions that lack a key at its default agree."""
    return {key: value for key, value in workload.items() if key not in LATER or value != LATER[key]}


def result_keys(train: Mapping[str, Any]) -> dict[str, Any]:
    """What of `train`, as plain data, a trial's id depends on; versions that lack a key at its default agree."""
    return {key: value for key, value in identity(Train, train).items() if key not in OUTSIDE_RESULT}


def _read_train(raw: Any) -> Train:
    """Reads the section from plain data. Tells every problem at its own key."""
    if isinstance(raw, Train):
        return raw
    if not isinstance(raw, Mapping):
        raise wrong("is not a mapping", "write keys and values, `key: value`")
    try:
        return Train.from_dict(raw)
    except KnobError as error:
        problems = [
            InitErrorDetails(
                type=wrong(problem.what, problem.remedy), loc=tuple(problem.field.split(".")), input=problem.value
            )
            for problem in error.problems
        ]
        raise ValidationError.from_exception_data("train", problems) from None


TrainSection = Annotated[Train, PlainValidator(_read_train), PlainSerializer(Train.to_dict)]
"""`train` as a section of the spec."""


class Search(Section):
    """How points of the sweep are chosen, and which trials stop early."""

    method: Annotated[str, one_of("grid", "random", "tpe", "factorised")] = "grid"
    """grid: every point. random: some points, drawn before the study starts. tpe: points near the best ones so far.
    factorised: the grid, but trained with one num_gpus only; steps are timed with all."""
    samples: Count = 20
    """Number of points to run, each with all seeds. If the space has fewer, all are run. Ignored by grid."""
    seed: Whole = 0
    """Of the choice: the same seed chooses the same points."""
    objective: Annotated[str, one_of("metric", "time_to_target", "cost_to_target")] = "metric"
    """What tpe optimises: the best metric of any evaluation, or the training seconds or worker-seconds until the metric
    reaches the hardest of targets.accuracy. A point counts with the median of its seeds."""
    scheduler: Annotated[str, one_of("none", "asha")] = "none"
    """asha: stop the trials with the worst metrics at rungs of evaluations, by default epochs. Each seed is a trial of
    its own. With a target, only trials of the same batch size are compared."""
    grace_epochs: Count = 1
    """The first rung, in evaluations. The others are this times reduction, its square and so on, below the last."""
    reduction: Annotated[int, Field(ge=2, le=LARGEST)] = 3
    """At each rung, one trial in this many continues."""
    train_on: Count | None = None
    """For factorised: the num_gpus of its trainings, one of the sweep's; null: the smallest."""
    held_out: Whole = 2
    """For factorised: cells that also run in full, to check the inferred times; 0: none."""
    allow_inexact: bool = False
    """For factorised: infer times even if the training differs between values of num_gpus."""


class Resources(Section):
    """What a worker asks of the cluster."""

    device: Annotated[str, one_of("auto", "cpu", "cuda")] = "auto"
    """auto: CUDA if the cluster has GPUs, else CPU processes."""
    gpus_per_worker: Share = 1.0
    """GPUs. Below 1, several workers share one, and sum by gloo. Ignored on CPU."""
    cpus_per_worker: Count = 1
    """Cores. On CPU, also the threads that a worker computes with."""
    exclusive: Annotated[bool | str, one_of("auto", True, False)] = "auto"
    """Whether a trial has its nodes to itself, so that timings are undisturbed; auto: on CPU yes, on CUDA no."""
    placement: Annotated[str, one_of("pack", "spread", "emptiest")] = "pack"
    """Where a trial's workers go. pack: on the fewest nodes that can hold them, for which it waits. spread: evenly over
    all nodes with room. emptiest: on the emptiest node with the room, else on several; studies that began before there
    was a choice keep it."""
    oversubscribe: bool = False
    """Allow more threads than cores. Such timings are flagged."""


class Targets(Section):
    """What the study should reach."""

    accuracy: Annotated[tuple[Finite, ...], Field(strict=False), AfterValidator(_distinct)] = ()
    """Values of the target metric to time; accuracies are above 0 and at most 1. Empty: recommend by the best value."""
    stop: Annotated[bool | str, one_of("auto", True, False)] = "auto"
    """Whether a training ends once it has reached the hardest of them. auto: yes in factorised studies and where
    search.objective is a time or a cost; otherwise no, so that a grid shows final accuracies."""
    price_per_gpu_hour: NotNegative | None = None
    """In any currency; null: cost is reported in worker-seconds."""
    tolerance: NotNegative = 0.1
    """How much longer than the fastest cell the recommended one may take, as a share; 0: no longer."""


class Limits(Section):
    """Bounds on what one study may use."""

    trial_minutes: Positive = 60.0
    """Longest wall time of a trial. A longer one fails."""
    stalled_seconds: Positive = 120.0
    """Longest time of a trial without a finished step or evaluated batch, or without a word of one of its workers.

    After it the trial continues from its checkpoint. Loading, compiling and checkpointing may take longer.
    """
    failures_per_trial: Whole = 2
    """Attempts that a trial may lose to each cause, such as a lost worker."""
    failures: Annotated[str, one_of("stop", "continue")] = "stop"
    """When the first trials of two cells fail with one exception in one place: stop the study, or continue."""
    trials_per_group: Count = 200
    """A worker group is replaced after so many trials."""


class Tracking(Section):
    """Where MLflow records the study."""

    uri: Annotated[Text, AfterValidator(_tracking_uri)] | None = None
    """null: MLFLOW_TRACKING_URI, else sqlite:///mlflow.db in the current folder."""
    experiment: Annotated[Text, AfterValidator(_experiment)] | None = None
    """null: the study's name."""
    offline: Annotated[str, one_of("refuse", "spool")] = "refuse"
    """If the tracking server can't be reached at the start: refuse the study, or send the records later."""


def fields_of(section: Any) -> dict[str, Any]:
    """Name and type of every key of a section. Empty for any other type."""
    if isinstance(section, type) and issubclass(section, Knobs):
        return {key.name: key.kind for key in keys(section)}
    return {name: field.annotation for name, field in getattr(section, "model_fields", {}).items()}


def leaf_keys(section: Any = Train, prefix: str = "train.") -> list[str]:
    """Dotted paths of every plain key of a section and its subsections. By default, those that may be swept."""
    paths = []
    for name, kind in fields_of(section).items():
        paths += leaf_keys(kind, f"{prefix}{name}.") if fields_of(kind) else [f"{prefix}{name}"]
    return paths


ARGUMENTS = ("workload.model_args", "workload.data_args")
"""Mappings whose keys, a user's names, may be swept too."""


def is_argument(key: str) -> bool:
    """Whether it names an argument of the model or the data set: `workload.model_args.width`."""
    mapping, _, name = key.rpartition(".")
    return mapping in ARGUMENTS and name.isidentifier()


def number_type(key: str) -> type | None:
    """int or float for a parameter that may have a range; an argument's are whole if both bounds are. Else None."""
    if is_argument(key):
        return float
    known: dict[str, Any] = {"num_gpus": int, "batch_size": int, "learning_rate": float}
    if not key.startswith("train."):
        return known.get(key)
    kind: Any = Train
    for part in key.split(".")[1:]:
        kind = fields_of(kind)[part]
    return kind if kind in (int, float) else None


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
        """The quantile of the distribution at a share from 0 to 1."""
        half = 0.5 if self.whole else 0.0  # the first and the last whole number are as wide as the others
        low, high = self.low - half, self.high + half
        logarithmic = self.kind == "log_uniform"
        return self.tidy(low * (high / low) ** share if logarithmic else low + share * (high - low))

    def tidy(self, value: float) -> int | float:
        """Rounds a number as trials have it: whole or to a few significant digits, and within the bounds."""
        if self.whole:
            return min(max(math.floor(value + 0.5), int(self.low)), int(self.high))
        width = (self.high - self.low) / max(abs(self.low), abs(self.high))
        digits = DIGITS + max(0, math.floor(-math.log10(width)))
        return min(max(float(f"{value:.{digits}g}"), self.low), self.high)

    @property
    def text(self) -> str:
        """In words: `0.01 to 1, log_uniform`."""
        return f"{self.low:g} to {self.high:g}, {self.kind}"
