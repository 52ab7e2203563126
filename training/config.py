"""Stage 5, training loop: what one trial trains, as plain data that is checked before any resource is asked for."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from training.batches import even_weights, shard_sizes
from training.registry import DATASETS, GRADIENT_SYNCS, MODELS, check_name

OPTIMIZERS = ("sgd", "adam", "adamw")
LOSSES = ("cross_entropy",)
METRICS = ("accuracy",)


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """The rule that turns gradients into an update. Raises ValueError with field, value and remedy."""

    name: str = "sgd"  # sgd | adam | adamw
    momentum: float = 0.0  # of sgd, in [0, 1); adam and adamw keep PyTorch's betas (0.9, 0.999)
    weight_decay: float = 0.0  # L2 penalty (sgd, adam) or decoupled decay (adamw); 0: none

    def __post_init__(self) -> None:
        _check_choice("optimizer.name", self.name, OPTIMIZERS)
        _check_number("optimizer.momentum", self.momentum, 0 <= _number(self.momentum) < 1, "a number in [0, 1)")
        _check_number("optimizer.weight_decay", self.weight_decay, _number(self.weight_decay) >= 0, "at least 0")
        if self.name != "sgd" and self.momentum:
            raise ValueError(f"optimizer.momentum: {self.momentum} has no effect with {self.name}; set it to 0")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """One training, for any world size. Raises ValueError with field, value and remedy."""

    model: str  # a name in registry.MODELS, or package.module:callable
    data: str  # a name in registry.DATASETS, or package.module:callable
    batch_size: int  # global: examples a step over all workers together
    learning_rate: float  # constant over the trial
    epochs: int  # passes over the training set
    seed: int = 0  # of parameters, order of examples and every generator
    model_args: Mapping[str, Any] = field(default_factory=dict)  # keywords of the model's callable
    data_args: Mapping[str, Any] = field(default_factory=dict)  # keywords of the data set's callable
    data_root: str | None = None  # folder of data sets; None: training.data.default_root()
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    gradient_sync: str = "ddp"  # a name in registry.GRADIENT_SYNCS, or package.module:callable
    shards: Literal["even"] | tuple[float, ...] = "even"  # how a batch is split: evenly, or a weight a worker
    gradient_clip: float | None = None  # largest L2 norm of the whole gradient; None: not clipped
    warm_up_steps: int = 5  # first steps of the trial that samples_per_second leaves out
    loss: str = "cross_entropy"
    metric: str = "accuracy"

    def __post_init__(self) -> None:
        _check_name("model", self.model, MODELS)
        _check_name("data", self.data, DATASETS)
        _check_name("gradient_sync", self.gradient_sync, GRADIENT_SYNCS)
        _check_choice("loss", self.loss, LOSSES)
        _check_choice("metric", self.metric, METRICS)
        _check_integer("batch_size", self.batch_size, 1)
        _check_integer("epochs", self.epochs, 1)
        _check_integer("seed", self.seed, 0)
        _check_integer("warm_up_steps", self.warm_up_steps, 0)
        _check_number("learning_rate", self.learning_rate, _number(self.learning_rate) > 0, "above 0")
        if self.gradient_clip is not None:
            _check_number("gradient_clip", self.gradient_clip, _number(self.gradient_clip) > 0, "above 0, or null")
        self._check_mappings()
        self._check_shards()

    def weights(self, world_size: int) -> tuple[float, ...]:
        """Each worker's share of a batch. Raises ValueError if `shards` are not one a worker."""
        if self.shards == "even":
            return even_weights(world_size)
        if len(self.shards) != world_size:
            raise ValueError(f"shards: {list(self.shards)} has not one weight for each of {world_size} workers; add "
                             "or remove weights, or use 'even'")  # fmt: skip
        return self.shards

    def to_dict(self) -> dict[str, Any]:
        """Plain data, safe for JSON; `from_dict` gives an equal config."""
        plain = {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self)}
        plain["optimizer"] = dataclasses.asdict(self.optimizer)
        plain["shards"] = self.shards if self.shards == "even" else list(self.shards)
        return {**plain, "model_args": dict(self.model_args), "data_args": dict(self.data_args)}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> TrainConfig:
        """The config behind `to_dict`'s data. Raises ValueError for a key that is unknown or missing."""
        _check_keys("config", plain, cls)
        values = dict(plain)
        if isinstance(values.get("optimizer"), Mapping):
            _check_keys("optimizer", values["optimizer"], OptimizerConfig)
            values["optimizer"] = OptimizerConfig(**values["optimizer"])
        if isinstance(values.get("shards"), list):
            values["shards"] = tuple(values["shards"])
        return cls(**values)

    def _check_mappings(self) -> None:
        for name in ("model_args", "data_args"):
            value = getattr(self, name)
            if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
                raise ValueError(f"{name}: {value!r} is not a mapping of names to values; correct it")
        if not isinstance(self.optimizer, OptimizerConfig):
            raise ValueError(f"optimizer: {self.optimizer!r} is not a mapping with name, momentum, weight_decay")

    def _check_shards(self) -> None:
        if self.shards == "even":
            return
        numbers = isinstance(self.shards, tuple) and all(_is_number(weight) for weight in self.shards)
        if not numbers or not self.shards:
            raise ValueError(f"shards: {self.shards!r} is neither 'even' nor a list of numbers, one a worker")
        shard_sizes(self.batch_size, self.shards)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _number(value: Any) -> float:
    """The value, or NaN, for which every comparison is false."""
    return value if _is_number(value) else math.nan


def _check_number(name: str, value: object, valid: bool, expected: str) -> None:
    if not valid:
        raise ValueError(f"{name}: {value!r} is not valid; choose a finite number, {expected}")


def _check_integer(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name}: {value!r} is not valid; choose a whole number, at least {least}")


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name}: {value!r} is not known; choose one of {', '.join(choices)}")


def _check_name(name: str, value: object, table: Mapping[str, str]) -> None:
    if not isinstance(value, str):
        raise ValueError(f"{name}: {value!r} is not a name; choose one of {', '.join(table)}")
    try:
        check_name(value, table)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _check_keys(what: str, plain: Mapping[str, Any], cls: type) -> None:
    fields = {entry.name: entry for entry in dataclasses.fields(cls)}
    unknown = sorted(set(plain) - set(fields))
    missing = [
        name
        for name, entry in fields.items()
        if name not in plain and entry.default is dataclasses.MISSING and entry.default_factory is dataclasses.MISSING
    ]
    if unknown or missing:
        raise ValueError(f"{what}: unknown keys {unknown}, missing keys {missing}; known keys: {', '.join(fields)}")
