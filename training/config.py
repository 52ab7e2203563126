"""Every train key once: type, default, check, help."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from scalestudy.training.batches import even_weights, require_shares, shard_sizes
from scalestudy.training.registry import DATASETS, GRADIENT_SYNCS, LOSSES, METRICS, MODELS, check_name


def is_number(value: object) -> bool:
    """Whether the value is a finite int or float, and no bool."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def number(value: Any) -> float:
    """The value, or NaN, for which every comparison is false."""
    return value if is_number(value) else math.nan


def require_number(name: str, value: object, valid: bool, expected: str) -> None:
    """`valid` says whether the number is in its range, which `expected` tells in words."""
    if not valid:
        raise ValueError(f"{name}: {value!r} is not valid; choose a finite number, {expected}")


def require_integer(name: str, value: object, least: int) -> None:
    """A whole number of at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name}: {value!r} is not valid; choose a whole number, at least {least}")


def require_choice(name: str, value: object, choices: Sequence[object]) -> None:
    """One of the choices, type and all (true is not 1)."""
    if not any(type(value) is type(choice) and value == choice for choice in choices):
        named = ", ".join(str(choice).lower() if isinstance(choice, bool) else str(choice) for choice in choices)
        raise ValueError(f"{name}: {value!r} is not known; choose one of {named}")


def require_name(name: str, value: object, table: Mapping[str, str]) -> None:
    """A name of the table, or an import path."""
    if not isinstance(value, str):
        raise ValueError(f"{name}: {value!r} is not a name; choose one of {', '.join(table)}")
    try:
        check_name(value, table)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def require_mapping(name: str, value: object) -> None:
    """A mapping whose keys are strings."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ValueError(f"{name}: {value!r} is not a mapping of names to values; correct it")


def require_keys(what: str, plain: Mapping[str, Any], cls: Any) -> None:
    """Every field of the dataclass that has no default, and none that it has not."""
    fields = {entry.name: entry for entry in dataclasses.fields(cls)}
    unknown = sorted(set(plain) - set(fields))
    missing = [
        name
        for name, entry in fields.items()
        if name not in plain and entry.default is dataclasses.MISSING and entry.default_factory is dataclasses.MISSING
    ]
    if unknown or missing:
        raise ValueError(f"{what}: unknown keys {unknown}, missing keys {missing}; known keys: {', '.join(fields)}")


OPTIMIZERS = ("sgd", "adam", "adamw")
LR_RULES = ("none", "linear", "sqrt", "adascale")
SCHEDULES = ("constant", "cosine", "one_cycle")
PRECISIONS = ("fp32", "bf16")
AUGMENTATIONS = ("none", "crop_flip")


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """The rule that turns gradients into an update. Raises ValueError with field, value and remedy."""

    name: str = "sgd"  # sgd | adam | adamw
    momentum: float = 0.0  # of sgd, in [0, 1); adam and adamw keep PyTorch's betas (0.9, 0.999)
    weight_decay: float = 0.0  # L2 penalty (sgd, adam) or decoupled decay (adamw); 0: none

    def __post_init__(self) -> None:
        require_choice("optimizer.name", self.name, OPTIMIZERS)
        require_number("optimizer.momentum", self.momentum, 0 <= number(self.momentum) < 1, "in [0, 1)")
        require_number("optimizer.weight_decay", self.weight_decay, number(self.weight_decay) >= 0, "at least 0")
        if self.name != "sgd" and self.momentum:
            raise ValueError(f"optimizer.momentum: {self.momentum} has no effect with {self.name}; set it to 0")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """One training, for any world size. Raises ValueError with field, value and remedy."""

    model: str  # a name in registry.MODELS, torchvision:name, or package.module:callable
    data: str  # a name in registry.DATASETS, or package.module:callable
    batch_size: int  # global: examples a step over all workers together
    learning_rate: float  # nominal: what lr_rule, warm-up and schedule start from
    epochs: int  # passes over the training set
    seed: int = 0  # of parameters, order of examples and every generator
    model_args: Mapping[str, Any] = field(default_factory=dict)  # keywords of the model's callable
    data_args: Mapping[str, Any] = field(default_factory=dict)  # keywords of the data set's callable
    data_root: str | None = None  # folder of data sets; None: scalestudy.training.data.files.default_root()
    loss: str = "cross_entropy"  # a name in registry.LOSSES, or package.module:callable
    metric: str = "accuracy"  # a name in registry.METRICS, or package.module:callable
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    lr_rule: str = "none"  # how the effective rate follows the batch size: none | linear | sqrt | adascale
    base_batch_size: int = 256  # examples; where effective and nominal rate are the same
    warmup_epochs: float = 0.0  # epochs over which the rate rises, a little each step; 0: none
    schedule: str = "constant"  # how the rate falls: constant | cosine | one_cycle
    gradient_clip: float | None = None  # largest L2 norm of the whole gradient; None: not clipped
    precision: str = "fp32"  # of forward and backward: fp32 | bf16; parameters and updates stay float32
    channels_last: bool | Literal["auto"] = False  # memory order of images; auto: what a probe finds faster
    compile: bool = False  # whether the model runs through torch.compile
    accumulation: int = 1  # micro-batches a step, one after another on each worker
    augment: str = "none"  # of training images: none | crop_flip
    gradient_sync: str = "ddp"  # a name in registry.GRADIENT_SYNCS, or package.module:callable
    powersgd_rank: int | None = None  # of powersgd: rank of the compressed gradients; None: 2
    local_steps: int | None = None  # of local_sgd: steps between two averages; None: 8
    sync_batch_norm: bool = False  # whether batch normalisation sees the global batch and not this worker's shard
    shards: Literal["even", "speed"] | tuple[float, ...] = "even"  # how a batch is split; or a weight a worker
    warm_up_steps: int = 5  # first steps of the trial that samples_per_second leaves out
    max_steps: int | None = None  # the training ends after so many steps and never evaluates; None: it does neither

    def __post_init__(self) -> None:
        self._check_names()
        for name, least in (("batch_size", 1), ("epochs", 1), ("seed", 0), ("warm_up_steps", 0), ("accumulation", 1),
                            ("base_batch_size", 1)):  # fmt: skip
            require_integer(name, getattr(self, name), least)
        for name in ("powersgd_rank", "local_steps", "max_steps"):
            if getattr(self, name) is not None:
                require_integer(name, getattr(self, name), 1)
        if self.max_steps is not None and self.max_steps <= self.warm_up_steps:
            raise ValueError(f"max_steps: {self.max_steps} leaves no step after {self.warm_up_steps} warm_up_steps; "
                             "raise it, or lower warm_up_steps")  # fmt: skip
        self._check_rates()
        self._check_switches()
        self._check_shards()

    def weights(self, world_size: int) -> tuple[float, ...]:
        """Each worker's share of a batch; for `speed`, equal ones until speeds are measured.

        Raises ValueError if `shards` are not one a worker.
        """
        if self.shards == "even" or self.shards == "speed":
            return even_weights(world_size)
        if len(self.shards) != world_size:
            raise ValueError(f"shards: {list(self.shards)} has not one weight for each of {world_size} workers; add "
                             "or remove weights, or use 'even'")  # fmt: skip
        return self.shards

    def to_dict(self) -> dict[str, Any]:
        """Plain data, safe for JSON; `from_dict` gives an equal config."""
        plain = {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self)}
        plain["optimizer"] = dataclasses.asdict(self.optimizer)
        plain["shards"] = self.shards if isinstance(self.shards, str) else list(self.shards)
        return {**plain, "model_args": dict(self.model_args), "data_args": dict(self.data_args)}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> TrainConfig:
        """The config behind `to_dict`'s data. Raises ValueError for a key that is unknown or missing."""
        require_keys("config", plain, cls)
        values = dict(plain)
        if isinstance(values.get("optimizer"), Mapping):
            require_keys("optimizer", values["optimizer"], OptimizerConfig)
            values["optimizer"] = OptimizerConfig(**values["optimizer"])
        if isinstance(values.get("shards"), list):
            values["shards"] = tuple(values["shards"])
        return cls(**values)

    def _check_names(self) -> None:
        require_name("model", self.model, MODELS)
        require_name("data", self.data, DATASETS)
        require_name("loss", self.loss, LOSSES)
        require_name("metric", self.metric, METRICS)
        require_name("gradient_sync", self.gradient_sync, GRADIENT_SYNCS)
        require_mapping("model_args", self.model_args)
        require_mapping("data_args", self.data_args)
        if not isinstance(self.optimizer, OptimizerConfig):
            raise ValueError(f"optimizer: {self.optimizer!r} is not a mapping with name, momentum, weight_decay")

    def _check_rates(self) -> None:
        require_number("learning_rate", self.learning_rate, number(self.learning_rate) > 0, "above 0")
        require_number("warmup_epochs", self.warmup_epochs, number(self.warmup_epochs) >= 0, "at least 0")
        if self.gradient_clip is not None:
            require_number("gradient_clip", self.gradient_clip, number(self.gradient_clip) > 0, "above 0, or null")
        require_choice("lr_rule", self.lr_rule, LR_RULES)
        require_choice("schedule", self.schedule, SCHEDULES)
        for key, value, reason in (("lr_rule", "adascale", "its gain rises by itself"),
                                   ("schedule", "one_cycle", "it has a rise of its own")):  # fmt: skip
            if self.warmup_epochs and getattr(self, key) == value:
                raise ValueError(f"warmup_epochs: {self.warmup_epochs} does not go with {key} {value} ({reason}); "
                                 "set it to 0")  # fmt: skip
        if self.lr_rule == "adascale" and self.optimizer.name != "sgd":
            raise ValueError(f"lr_rule: adascale is derived for sgd, not {self.optimizer.name}; choose sgd or another "
                             "rule")  # fmt: skip
        if self.lr_rule == "adascale" and self.gradient_sync in ("bf16", "powersgd", "local_sgd"):
            raise ValueError("lr_rule: adascale needs the exact gradient of the whole batch in each step, which "
                             f"{self.gradient_sync} never has; choose another rule or strategy")  # fmt: skip

    def _check_switches(self) -> None:
        require_choice("precision", self.precision, PRECISIONS)
        require_choice("augment", self.augment, AUGMENTATIONS)
        require_choice("channels_last", self.channels_last, (False, True, "auto"))
        require_choice("compile", self.compile, (False, True))
        require_choice("sync_batch_norm", self.sync_batch_norm, (False, True))

    def _check_shards(self) -> None:
        if self.shards == "even" or self.shards == "speed":
            return
        numbers = isinstance(self.shards, tuple) and all(is_number(weight) for weight in self.shards)
        if not numbers or not self.shards:
            raise ValueError(f"shards: {self.shards!r} is neither 'even' nor 'speed' nor a list of numbers; give one "
                             "weight a worker")  # fmt: skip
        shard_sizes(self.batch_size, self.shards)
        require_shares(self.shards)
