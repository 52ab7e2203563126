"""Every train key once: type, default, check, help.

A key is a field of a frozen dataclass. Its type says which values it takes; `knob` gives default, limits and meaning.
All read the same `keys`: the `train` section of a spec, its template, the options of `python -m scalestudy.training`,
the table in the docs, and the config of a trial. This file loads neither torch nor numpy.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import math
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from scalestudy.training.batches import even_weights, wrong_sum
from scalestudy.training.contradictions import CONTRADICTIONS, value_of
from scalestudy.training.exceptions import InputError
from scalestudy.training.registry import (
    DATASETS,
    GRADIENT_SYNCS,
    LOSSES,
    METRICS,
    MODELS,
    OPTIMIZERS,
    SCHEDULES,
    TASKS,
    has_path_form,
)

LARGEST = 2**31 - 1
"""The largest whole number that a key of `train` takes."""
LARGEST_TOKENS = 2**53
"""The same of tokens, which are many."""
POWERSGD_RANK = 2
"""`powersgd_rank` where it is null."""
LOCAL_STEPS = 8
"""`local_steps` where it is null."""
EPOCHS = 10
"""`epochs` where `steps` is not given."""
PERIODS = 10
"""Evaluations of a training of `steps` or `tokens`, where `eval_every` is null."""
UNITS = ("epochs", "steps", "tokens")
"""Of the length of a training; each is a key of `train`, of which one is given."""


@dataclass(frozen=True, kw_only=True)
class Knob:
    """What a field says besides its type and default."""

    help: str  # its meaning, shown after the choices: `how the rate follows the batch size`
    least: float | None = None  # the smallest value
    above: float | None = None  # every value is greater
    below: float | None = None  # every value is smaller
    most: float | None = None  # the largest value
    names: Mapping[str, str] | None = None  # its built-in names; package.module:callable is valid too
    unset: str = ""  # what None stands for
    changes_step: bool = True  # whether it can change the time or the memory of a step
    changes_result: bool = True  # whether it can change what a training learns; if not, no trial's id depends on it
    later: bool = False  # added to a version that had studies: its default enters no trial's id
    strategy: str = ""  # the only gradient_sync that uses it; empty: it goes with all
    read: Callable[[Any], Any] | None = None  # returns the value to keep; raises InputError(what is wrong, remedy)


@dataclass(frozen=True, kw_only=True)
class Key:
    """A field of a configuration. kind: the type of values other than the choices. None: there are no others."""

    name: str
    kind: Any
    choices: tuple[Any, ...]
    is_optional: bool  # whether None is a value
    field: dataclasses.Field[Any]
    knob: Knob

    @property
    def is_required(self) -> bool:
        """Whether the key has no default."""
        return self.field.default is dataclasses.MISSING and self.field.default_factory is dataclasses.MISSING

    @property
    def is_section(self) -> bool:
        """Whether the value is a configuration with keys of its own."""
        return isinstance(self.kind, type) and issubclass(self.kind, Knobs)

    @property
    def default(self) -> Any:
        """The default. None if the key is required."""
        if self.field.default_factory is not dataclasses.MISSING:
            return self.field.default_factory()
        return None if self.is_required else self.field.default

    def read(self, value: Any) -> Any:
        """Checks a value. Returns it as a config keeps it, such as a whole number as a float if the key is a float.

        Raises InputError(what is wrong, remedy) for a value that the key does not take.
        """
        is_choice = any(type(value) is type(choice) and value == choice for choice in self.choices)  # true is not 1
        if is_choice or (value is None and self.is_optional):
            return value
        knob = self.knob
        if knob.read is not None:
            return knob.read(value)
        if self.kind is None:
            listed = either(text_of(choice) for choice in self.choices)
            guess = did_you_mean(value, [choice for choice in self.choices if isinstance(choice, str)])
            raise InputError(f"is not {listed}", f"{guess}choose {listed}")
        if self.kind is bool and not isinstance(value, bool):
            raise InputError("is not true or false", "write true or false without quotes")
        if self.kind is str:
            if not isinstance(value, str):
                raise InputError("is not text", "write text; put quotes around what looks like a number")
            if not value.strip():
                raise InputError("is empty", "write a value, or remove the key")
            if knob.names is not None and value not in knob.names and not has_path_form(value):
                guess = did_you_mean(value, knob.names)
                choose = f"choose {', '.join(knob.names)}, or write" if knob.names else "write"
                remedy = f"{guess}{choose} package.module:callable"
                raise InputError("is not built in", remedy)
        if self.kind is int and type(value) is not int:
            raise InputError("is not a whole number", "write a whole number without quotes or a point, such as 2")
        if self.kind is float:
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise InputError("is not a number", "write a number without quotes, such as 0.1")
            if not is_number(value):
                raise InputError("is not a finite number", "write a finite number, such as 0.1")
            value = float(value)
        if knob.least is not None and value < knob.least:
            raise InputError("is too small", f"use at least {knob.least:.10g}")
        if knob.above is not None and value <= knob.above:
            raise InputError("is too small", f"it must be greater than {knob.above:g}")
        if knob.below is not None and value >= knob.below:
            raise InputError("is too large", f"it must be less than {knob.below:g}")
        if knob.most is not None and value > knob.most:
            raise InputError("is too large", f"use at most {knob.most:.10g}")
        if self.kind is Mapping and not (isinstance(value, Mapping) and all(isinstance(key, str) for key in value)):
            raise InputError("is not a mapping of names to values", "write keys and values, `key: value`")
        if self.is_section and not isinstance(value, self.kind):
            first = keys(typing.cast(type[Knobs], self.kind))[0].name
            named = f"`{{{first}: {value}}}`" if isinstance(value, str) else "`key: value`"
            raise InputError("is not a mapping", f"write keys and values, {named}")
        return value


class _Absent:
    """The value of a missing key. It is a class, so that it stays the same when it is pickled."""


@dataclass(frozen=True, kw_only=True)
class KnobProblem:
    """One thing wrong with a configuration. field: dotted path. what: a phrase that follows the value."""

    field: str
    value: Any = _Absent
    what: str
    remedy: str

    @property
    def text(self) -> str:
        """Everything except the remedy: `optimizer.momentum: 2 is too large`."""
        value = "" if self.value is _Absent else f"{_plain(self.value)!r} "
        return f"{self.field}: {value}{self.what}"


class KnobError(InputError):
    """A configuration that can't be used. Carries every problem, and its text has a line for each."""

    def __init__(self, problems: Sequence[KnobProblem]) -> None:
        *others, last = problems
        lines = [f"{problem.text}; {problem.remedy}" for problem in others]
        super().__init__("\n".join([*lines, last.text]), last.remedy)
        self.problems = tuple(problems)
        self.args = (self.problems,)  # what pickle hands back to __init__


def knob(
    default: Any = dataclasses.MISSING, help: str = "", *, factory: Any = dataclasses.MISSING, **limits: Any
) -> Any:
    """Declares a field of a configuration: its default (or the factory of one), its meaning, and a `Knob`'s limits."""
    return dataclasses.field(default=default, default_factory=factory, metadata={"knob": Knob(help=help, **limits)})


class Knobs:
    """The base of a configuration. Checks every key when it is made; reads and writes plain data."""

    PREFIX: ClassVar[str] = ""
    """Precedes the names of its keys in messages, such as `optimizer.`."""

    def __post_init__(self) -> None:
        """Replaces every value by what its key reads. Raises KnobError with all problems."""
        problems: list[KnobProblem] = []
        for key in keys(type(self)):
            value = getattr(self, key.name)
            try:
                object.__setattr__(self, key.name, key.read(value))
            except InputError as error:
                field = f"{self.PREFIX}{key.name}"
                problems.append(KnobProblem(field=field, value=value, what=error.what, remedy=error.remedy))
        if problems:
            raise KnobError(problems)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, safe for JSON. `from_dict` gives an equal config."""
        return {key.name: _plain(getattr(self, key.name)) for key in keys(type(self))}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Self:
        """Reads the data of `to_dict`. Raises KnobError with all problems, also for unknown and missing keys."""
        known = {key.name: key for key in keys(cls)}
        values: dict[str, Any] = {}
        problems: list[KnobProblem] = []
        for name, value in plain.items():
            field = f"{cls.PREFIX}{name}"
            if name not in known:
                remedy = f"{did_you_mean(name, known)}the keys here are {', '.join(sorted(known))}"
                problems.append(
                    KnobProblem(field=field, value=value, what="stands under an unknown key", remedy=remedy)
                )
                continue
            key = known[name]
            try:
                if key.is_section and isinstance(value, Mapping):
                    values[name] = key.kind.from_dict(value)
                else:
                    values[name] = key.read(tuple(value) if key.kind is tuple and isinstance(value, list) else value)
            except KnobError as error:
                problems += error.problems
            except InputError as error:
                problems.append(KnobProblem(field=field, value=value, what=error.what, remedy=error.remedy))
        for name, key in known.items():
            if key.is_required and name not in plain:
                problems.append(KnobProblem(field=f"{cls.PREFIX}{name}", what="is missing", remedy=f"add `{name}: …`"))
        if problems:
            raise KnobError(problems)
        return cls(**values)


def keys(config: type[Knobs]) -> tuple[Key, ...]:
    """The keys of a configuration, in the order of its fields."""
    return _keys(typing.cast(Any, config))


@functools.cache
def _keys(config: Any) -> tuple[Key, ...]:
    annotations = typing.get_type_hints(config)
    found = []
    for field in dataclasses.fields(config):
        options = [annotations[field.name]]
        if typing.get_origin(options[0]) in (typing.Union, types.UnionType):
            options = list(typing.get_args(options[0]))
        choices = [
            choice for option in options if typing.get_origin(option) is Literal for choice in typing.get_args(option)
        ]
        kinds = [typing.get_origin(option) or option for option in options]
        kinds = [kind for kind in kinds if kind not in (Literal, type(None))]
        found.append(
            Key(
                name=field.name,
                kind=kinds[0] if kinds else None,
                choices=tuple(choices),
                is_optional=type(None) in options,
                field=field,
                knob=field.metadata["knob"],
            )
        )
    return tuple(found)


def is_number(value: object) -> bool:
    """Whether the value is a finite int or float, but no bool."""
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # a whole number that no float holds
        return False


SYNONYMS: Mapping[str, str] = {
    "workers": "num_gpus",
    "num_workers": "num_gpus",
    "gpus": "num_gpus",
    "batch": "batch_size",
    "lr": "learning_rate",
    "rate": "learning_rate",
}
"""What others call a key."""


def did_you_mean(wrong: object, names: Collection[str]) -> str:
    """`did you mean "x"? ` if a known name is close to the wrong one, or means the same. Otherwise empty."""
    close = difflib.get_close_matches(str(wrong)[:100], list(names), n=1, cutoff=0.6)
    if (same := SYNONYMS.get(str(wrong))) in names:
        close = [str(same)]
    return f'did you mean "{close[0]}"? ' if close else ""


def either(words: Iterable[str]) -> str:
    """Joins words as `a, b or c`."""
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last


def text_of(value: Any) -> str:
    """Formats a value as YAML and the command line write it: `false`, `null`, `sgd`."""
    return value if isinstance(value, str) else json.dumps(value)


def _plain(value: Any) -> Any:
    if isinstance(value, Knobs):
        return value.to_dict()
    if isinstance(value, tuple):
        return list(value)
    return dict(value) if isinstance(value, Mapping) else value


def _read_shards(value: Any) -> tuple[float, ...]:
    """Checks the weights of the workers. Refuses fractions that do not sum to 1, since they are mostly a mistake."""
    remedy = "write even, speed, or one weight a worker, such as [3, 1]"
    is_list = isinstance(value, tuple) and all(is_number(weight) and weight >= 0 for weight in value)
    if not is_list or not any(value):
        raise InputError("is not even, speed or a list of weights", remedy)
    total = wrong_sum(value)
    if total is not None:
        raise InputError(f"sum to {total:g}, not 1", "give shares that sum to 1, or whole numbers such as [3, 1]")
    return tuple(float(weight) for weight in value)


def _read_every(value: Any) -> dict[str, int]:
    """Checks the period of evaluations."""
    remedy = "write {epochs: N}, {steps: N} or {tokens: N}"
    if not isinstance(value, Mapping) or len(value) != 1 or next(iter(value)) not in UNITS:
        raise InputError("is not one of epochs, steps and tokens with a number", remedy)
    (number,) = value.values()
    if type(number) is not int or not 1 <= number <= LARGEST_TOKENS:
        raise InputError("has no whole number above 0", remedy)
    return dict(value)


def _read_betas(value: Any) -> tuple[float, float]:
    """Checks Adam's betas."""
    if not isinstance(value, tuple) or len(value) != 2 or not all(is_number(beta) and 0 <= beta < 1 for beta in value):
        raise InputError("is not two numbers from 0 to below 1", "write two, such as [0.9, 0.95]")
    return float(value[0]), float(value[1])


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig(Knobs):
    """The rule that turns gradients into an update. Raises KnobError with field, value and remedy."""

    PREFIX = "optimizer."

    name: str = knob("sgd", "the rule that turns gradients into an update", names=OPTIMIZERS)
    momentum: float = knob(0.0, "for sgd; adam and adamw have betas", least=0, below=1)
    weight_decay: float = knob(0.0, "part of the loss in sgd and adam, decoupled from it in adamw", least=0)
    dampening: float = knob(
        0.0, "for sgd: share of a gradient that its momentum leaves out", least=0, most=1, later=True
    )
    nesterov: bool = knob(False, "for sgd with momentum: look ahead by it", later=True)
    betas: tuple[float, ...] | None = knob(
        None, "for adam and adamw: decay of the two moments", read=_read_betas, unset="[0.9, 0.999]", later=True
    )
    eps: float | None = knob(None, "for adam and adamw: added to the divisor", above=0, unset="1e-08", later=True)
    amsgrad: bool = knob(False, "for adam and adamw: divide by the largest second moment so far", later=True)
    args: Mapping[str, Any] = knob(factory=dict, help="arguments of an optimizer of your own", later=True)


@dataclass(frozen=True, kw_only=True)
class LoaderConfig(Knobs):
    """How data are read ahead of the training. Raises KnobError with field, value and remedy."""

    PREFIX = "loader."

    workers: int | None = knob(
        None,
        "processes that read a torch data set, for each worker; 0: the worker itself; tensors need none",
        least=0,
        most=256,
        unset="as many as pay",
        changes_result=False,
    )
    prefetch: int = knob(
        2,
        "batches that each of them holds ready",
        least=1,
        most=LARGEST,
        changes_result=False,
    )


@dataclass(frozen=True, kw_only=True)
class TrainKnobs(Knobs):
    """How one trial is trained: the keys of a spec's `train`. Raises KnobError with field, value and remedy.

    Only a whole `TrainConfig` checks whether the values go together, since a study may sweep each of them.
    """

    epochs: int | None = knob(
        EPOCHS, "passes over the training set", least=1, most=LARGEST, unset="as steps says", changes_step=False
    )
    steps: int | None = knob(
        None,
        "how long a training is, in place of epochs",
        least=1,
        most=LARGEST,
        unset="as epochs says",
        changes_step=False,
        later=True,
    )
    tokens: int | None = knob(
        None,
        "how long a training is, by what the task's tokens counts",
        least=1,
        most=LARGEST_TOKENS,
        unset="as epochs says",
        changes_step=False,
        later=True,
    )
    eval_every: Mapping[str, int] | None = knob(
        None,
        "from one evaluation to the next, {epochs: N}, {steps: N} or {tokens: N}, in the unit of the length",
        read=_read_every,
        unset=f"each epoch; a training of steps or tokens, about {PERIODS} times",
        changes_step=False,
        later=True,
    )
    optimizer: OptimizerConfig = knob(OptimizerConfig(), "the rule of an update")  # noqa: RUF009  frozen
    lr_rule: Literal["none", "linear", "sqrt", "adascale"] = knob("none", "how the rate follows the batch size")
    base_batch_size: int = knob(256, "the batch size at which lr_rule changes nothing", least=1, most=LARGEST)
    warmup_epochs: float = knob(0.0, "epochs over which the rate rises, step by step", least=0, changes_step=False)
    warmup_steps: int | None = knob(
        None,
        "the same in steps",
        least=1,
        most=LARGEST,
        unset="as warmup_epochs says",
        changes_step=False,
        later=True,
    )
    schedule: str = knob("constant", "how the rate falls over the training", names=SCHEDULES, changes_step=False)
    gradient_clip: float | None = knob(None, "the largest L2 norm of the summed gradient", above=0, unset="not clipped")
    precision: Literal["fp32", "tf32", "bf16"] = knob(
        "fp32", "number format of forward and backward; parameters and updates stay float32"
    )
    channels_last: Literal[False, True, "auto"] = knob(
        False, "memory order of images; auto: the faster one in a short test"
    )
    compile: Literal[False, True, "reduce-overhead", "max-autotune"] = knob(
        False, "run the model through torch.compile, by default or in one of its modes"
    )
    cudnn_benchmark: bool = knob(
        False, "on a GPU: for each shape, time cuDNN's algorithms of a convolution and take the fastest", later=True
    )
    cuda_graph: Literal[False, True, "auto"] = knob(
        False,
        "repeat a worker's step as a CUDA graph, for models that decide nothing in Python; auto: if possible",
        later=True,
    )
    accumulation: int = knob(1, "micro-batches a step", least=1, most=LARGEST)
    unused_parameters: bool = knob(
        False, "allow parameters that take no part in some batch; their gradient is then zero", later=True
    )
    augment: Literal["none", "crop_flip"] = knob("none", "random changes of training images")
    gradient_sync: str = knob("ddp", "how gradients are summed over the workers", names=GRADIENT_SYNCS)
    powersgd_rank: int | None = knob(
        None,
        "for powersgd: rank of the compressed gradients",
        least=1,
        most=LARGEST,
        unset=str(POWERSGD_RANK),
        strategy="powersgd",
    )
    local_steps: int | None = knob(
        None,
        "for local_sgd: steps between two averages",
        least=1,
        most=LARGEST,
        unset=str(LOCAL_STEPS),
        strategy="local_sgd",
    )
    sync_batch_norm: bool = knob(False, "normalise over the whole batch instead of one worker's part")
    shards: Literal["even", "speed"] | tuple[float, ...] = knob(
        "even", "how a batch is divided; or a list with one weight for each worker", read=_read_shards
    )
    warm_up_steps: int = knob(
        5, "first steps of a trial, not counted in its samples a second", least=0, most=LARGEST, changes_step=False
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not any(getattr(self, unit) for unit in UNITS):
            what, remedy = "is no length, and steps and tokens give none", "give one of the three"
            raise KnobError([KnobProblem(field="epochs", value=None, what=what, remedy=remedy)])

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Self:
        """As for all configurations; `epochs` has no default beside `steps` or `tokens`."""
        other = any(plain.get(unit) is not None for unit in UNITS[1:])
        return super().from_dict({"epochs": None, **plain} if other else plain)

    @property
    def unit(self) -> Literal["epochs", "steps", "tokens"]:
        """Of length and period."""
        return "steps" if self.steps is not None else "tokens" if self.tokens is not None else "epochs"

    @property
    def length(self) -> int:
        """How long the training is."""
        return int(getattr(self, self.unit))

    @property
    def period(self) -> int:
        """From one evaluation to the next."""
        by_default = 1 if self.unit == "epochs" else math.ceil(self.length / PERIODS)
        return self.eval_every[self.unit] if self.eval_every else by_default

    @property
    def period_word(self) -> Literal["epoch", "evaluation"]:
        """What a period is called: an epoch where it is one, else an evaluation."""
        return "epoch" if self.unit == "epochs" and self.period == 1 else "evaluation"

    @property
    def evaluations(self) -> int:
        """How often a whole training is evaluated. The last period may be shorter than the others."""
        return math.ceil(self.length / self.period)


@dataclass(frozen=True, kw_only=True)
class CheckpointKnobs(Knobs):
    """When a training is saved. A spec's `train` has these keys too; a `TrainConfig` has not."""

    checkpoint_every: int = knob(
        1,
        "evaluations, by default epochs, between checkpoints; 0: never",
        least=0,
        most=LARGEST,
        changes_step=False,
        changes_result=False,
    )


@dataclass(frozen=True, kw_only=True)
class TrainConfig(TrainKnobs):
    """One training, for any world size. Raises KnobError with field, value and remedy."""

    model: str = knob(help="the network; torchvision:name is one of torchvision's", names=MODELS)
    data: str = knob(help="the data set", names=DATASETS)
    batch_size: int = knob(help="examples in a step, over all workers", least=1)
    learning_rate: float = knob(help="the rate from which lr_rule, warm-up and schedule start", above=0)
    seed: int = knob(0, "for parameters, order of examples and all other random numbers", least=0)
    model_args: Mapping[str, Any] = knob(factory=dict, help='arguments of the model, such as {"init": "xavier"}')
    data_args: Mapping[str, Any] = knob(factory=dict, help='arguments of the data set, such as {"train_samples": 6000}')
    data_root: str | None = knob(
        None, "folder of data sets", unset="SCALESTUDY_DATA, else scalestudy/data in the user's cache"
    )
    loss: str = knob("cross_entropy", "loss of one example", names=LOSSES)
    metric: str = knob("accuracy", "value of one example, its mean reported; of a task, one of its metrics")
    task: str | None = knob(
        None, "what a batch's loss and metrics are", names=TASKS, unset="inputs, targets, loss and metric", later=True
    )
    loader: LoaderConfig = knob(LoaderConfig(), "how data are read", changes_result=False, later=True)  # noqa: RUF009
    max_steps: int | None = knob(
        None, "end after so many steps, without evaluation; for timing", least=1, unset="train all epochs"
    )
    min_seconds: float = knob(
        0.0, "go on after max_steps until so many seconds of steps are timed", least=0, most=3600, later=True
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        problems = [] if (problem := metric_problem(self.metric, self.task)) is None else [problem]
        for pair in CONTRADICTIONS:
            value, other = value_of(self, pair.key), value_of(self, pair.other_key)
            if pair.applies(value) and pair.other_applies(other):
                problems.append(
                    KnobProblem(field=pair.key, value=value, what=pair.what(text_of(other)), remedy=pair.remedy)
                )
        if self.max_steps is not None and self.max_steps <= self.warm_up_steps:
            what = f"leaves no step after {self.warm_up_steps} warm_up_steps"
            remedy = "raise it, or lower warm_up_steps"
            problems.append(KnobProblem(field="max_steps", value=self.max_steps, what=what, remedy=remedy))
        if self.min_seconds and self.max_steps is None:
            what, remedy = "needs max_steps, the steps of a training that is timed", "give both, or neither"
            problems.append(KnobProblem(field="min_seconds", value=self.min_seconds, what=what, remedy=remedy))
        if problems:
            raise KnobError(problems)

    def weights(self, world_size: int) -> tuple[float, ...]:
        """Each worker's share of a batch. With `speed`, they are equal until speeds are measured.

        Raises KnobError unless `shards` has one weight for each worker.
        """
        if self.shards == "even" or self.shards == "speed":
            return even_weights(world_size)
        if len(self.shards) != world_size:
            what = f"has {len(self.shards)} weights for {world_size} workers"
            remedy = "add or remove weights, or use 'even'"
            raise KnobError([KnobProblem(field="shards", value=self.shards, what=what, remedy=remedy)])
        return self.shards


def metric_problem(metric: str, task: str | None) -> KnobProblem | None:
    """What is wrong with the name of the metric: a task names its own, otherwise it is built in or the user's."""
    if task is not None:
        if metric.isidentifier() and metric != "loss":
            return None
        remedy = "name one of the metrics that the task's finish returns"
        return KnobProblem(field="metric", value=metric, what="is no name of a task's metric", remedy=remedy)
    if metric in METRICS or has_path_form(metric):
        return None
    remedy = f"{did_you_mean(metric, METRICS)}choose {', '.join(METRICS)}, or write package.module:callable"
    return KnobProblem(field="metric", value=metric, what="is not built in", remedy=remedy)


def identity(config: type[Knobs], plain: Mapping[str, Any]) -> dict[str, Any]:
    """The plain data of a configuration without later keys at their defaults.

    Of two versions, one without these keys, it is the same for the same training.
    """
    known = {key.name: key for key in keys(config)}
    kept: dict[str, Any] = {}
    for name, value in plain.items():
        key = known.get(name)
        if key is not None and key.is_section and isinstance(value, Mapping):
            kept[name] = identity(key.kind, value)
        elif key is None or not key.knob.later or value != _plain(key.default):
            kept[name] = value
    return kept
