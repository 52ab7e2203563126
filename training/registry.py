"""The built-in names of models, data sets, losses and gradient strategies. Each is imported when it is used.

This file loads no torch, so the driver can list and check names quickly.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from scalestudy.training.exceptions import InputError
from scalestudy.training.own_code import is_installed
from scalestudy.training.section import not_built_in

MODELS: Mapping[str, str] = MappingProxyType(
    {
        "lenet": "scalestudy.training.models:LeNet",
        "mlp": "scalestudy.training.models:MLP",
        "resnet18": "scalestudy.training.models:ResNet18",
        "linear_regression": "scalestudy.training.models:LinearRegression",
    }
)
"""Name -> callable(**model_args) -> nn.Module, which gets num_classes and in_channels too if it names them."""

MODEL_FAMILIES: Mapping[str, str] = MappingProxyType(
    {
        "torchvision": "scalestudy.training.models.torchvision:find_classifier",
    }
)
"""Family -> callable(name) -> the model's callable. `torchvision:resnet50` names a model of a family."""

INITIALISATIONS: Mapping[str, str] = MappingProxyType(
    {
        "normal": "scalestudy.training.models.common:normal",
        "xavier": "scalestudy.training.models.common:xavier",
        "default": "scalestudy.training.models.common:default",
    }
)
"""Name -> callable(module) -> None, called for every module of a model."""

DATASETS: Mapping[str, str] = MappingProxyType(
    {
        "digits": "scalestudy.training.data.builtin:load_digits",
        "mnist": "scalestudy.training.data.mnist:load_mnist",
        "fashion_mnist": "scalestudy.training.data.mnist:load_fashion_mnist",
        "cifar10": "scalestudy.training.data.cifar:load",
        "synthetic": "scalestudy.training.data.builtin:load_synthetic",
        "synthetic_linear": "scalestudy.training.data.builtin:load_linear",
    }
)
"""Name -> callable(root, **data_args) -> scalestudy.training.data.Splits."""

LOSSES: Mapping[str, str] = MappingProxyType(
    {
        "cross_entropy": "scalestudy.training.losses:cross_entropy",
        "mse": "scalestudy.training.losses:squared_error",
    }
)
"""Name -> callable(outputs, targets) -> losses (N,), one an example."""

METRICS: Mapping[str, str] = MappingProxyType(
    {
        "accuracy": "scalestudy.training.losses:hits",
        "mse": "scalestudy.training.losses:squared_error",
    }
)
"""Name -> callable(outputs, targets) -> values (N,), one an example. The metric is their mean over the test set."""

TASKS: Mapping[str, str] = MappingProxyType({})
"""None is built in: a task is `package.module:Class`, called with **for_task, **task_args -> training.task.Task."""

OPTIMIZERS: Mapping[str, str] = MappingProxyType(
    {"sgd": "torch.optim:SGD", "adam": "torch.optim:Adam", "adamw": "torch.optim:AdamW"}
)
"""Name -> PyTorch's class. A user's is a torch.optim.Optimizer, or callable(model, learning_rate, **args) -> one."""

SCHEDULES: Mapping[str, str] = MappingProxyType(
    {
        "constant": "scalestudy.training.loop.schedules:constant",
        "cosine": "scalestudy.training.loop.schedules:cosine",
        "linear": "scalestudy.training.loop.schedules:linear",
        "one_cycle": "scalestudy.training.loop.schedules:one_cycle",
    }
)
"""Name -> callable(step, steps, **args) -> the rate's share of its peak, 0 <= step < steps."""

TORCH_SCHEDULERS: Mapping[str, str] = MappingProxyType(
    {
        name: f"torch.optim.lr_scheduler:{name}"
        for name in (
            "ConstantLR",
            "CosineAnnealingLR",
            "CosineAnnealingWarmRestarts",
            "CyclicLR",
            "ExponentialLR",
            "LinearLR",
            "MultiStepLR",
            "OneCycleLR",
            "PolynomialLR",
            "StepLR",
        )
    }
)
"""Name -> PyTorch's class of schedulers, called with an optimizer and `args`."""

NO_SCHEDULES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "ReduceLROnPlateau": (
            "waits for the metric, and here all rates are known before the training",
            "choose StepLR, MultiStepLR or cosine",
        ),
        **dict.fromkeys(
            ("LambdaLR", "MultiplicativeLR"),
            ("takes a function, which a spec can't hold", "name the function itself: package.module:callable"),
        ),
        **dict.fromkeys(
            ("ChainedScheduler", "SequentialLR"),
            (
                "takes other schedulers, which a spec can't hold",
                "use warmup_steps before one schedule, or write a function and name it: package.module:callable",
            ),
        ),
    }
)
"""PyTorch's other schedulers: why each is refused, and the remedy."""

GRADIENT_SYNCS: Mapping[str, str] = MappingProxyType(
    {
        "ddp": "scalestudy.training.gradient_sync.ddp:DistributedDataParallelSync",
        "naive": "scalestudy.training.gradient_sync.explicit:NaiveSync",
        "flat": "scalestudy.training.gradient_sync.explicit:FlatSync",
        "ring": "scalestudy.training.gradient_sync.explicit:RingSync",
        "bf16": "scalestudy.training.gradient_sync.ddp:Bf16Sync",
        "powersgd": "scalestudy.training.gradient_sync.ddp:PowerSGDSync",
        "local_sgd": "scalestudy.training.gradient_sync.local_sgd:LocalSGDSync",
    }
)
"""Name -> callable(shard_loss, worker, options) -> scalestudy.training.gradient_sync.GradientSync."""

INEXACT_SYNCS = ("bf16", "powersgd", "local_sgd")
"""Strategies of GRADIENT_SYNCS whose result differs from the gradient of the whole batch."""


def resolve(path_or_name: str, table: Mapping[str, str]) -> Callable[..., Any]:
    """Import the callable of a built-in name of `table`, or of `package.module:callable`.

    MODELS also accepts `family:name` for the MODEL_FAMILIES. Raises InputError, with value, choices and remedy, if
    there is no such name, module or callable. Errors that the user's own module raises on import pass through.
    """
    check_name(path_or_name, table)
    family, _, name = path_or_name.partition(":")
    if table is MODELS and family in MODEL_FAMILIES:
        return _load(MODEL_FAMILIES[family], path_or_name)(name)
    if path_or_name not in table:  # a user's module may import torchvision: see torchvision_compat
        from scalestudy.training.torchvision_compat import define_missing_operators

        define_missing_operators()
    return _load(table.get(path_or_name, path_or_name), path_or_name)


def resolve_field(field: str, path_or_name: str, table: Mapping[str, str]) -> Callable[..., Any]:
    """Resolve the value as `resolve` does, with the name of the field in front of the message."""
    try:
        return resolve(path_or_name, table)
    except InputError as error:
        raise InputError(f"{field}: {error.what}", error.remedy) from None


def check_name(path_or_name: str, table: Mapping[str, str]) -> None:
    """Raise InputError unless the value is a name of `table` or has the form `package.module:callable`."""
    if problem := not_built_in(path_or_name, table):
        message, remedy = problem
        raise InputError(f"{path_or_name!r} {message}", remedy)


def call_with(function: Callable[..., Any], what: str, /, *positional: Any, **keywords: Any) -> Any:
    """Call the function. Raises InputError if it can't be called so."""
    check_call(function, what, *positional, **keywords)
    return function(*positional, **keywords)


def check_call(function: Callable[..., Any], what: str, /, *positional: Any, **keywords: Any) -> None:
    """Raise InputError, with `what`, the signature and the arguments, unless the function can be called with them."""
    takes = named_parameters(function)
    if takes is None:
        return
    signature = inspect.signature(function)
    try:
        signature.bind(*positional, **keywords)
    except TypeError as error:
        name = getattr(function, "__name__", type(function).__name__)
        given = ", ".join([*map(_briefly, positional), *(f"{key}={_briefly(each)}" for key, each in keywords.items())])
        called = f"{name}({', '.join(map(str, signature.parameters.values()))}) is called with ({given})"
        raise InputError(f"{what}: {called}: {error}", f"it takes {', '.join(takes) or 'no arguments'}") from None


def named_parameters(function: Callable[..., Any]) -> list[str] | None:
    """Return the parameters that may be given by name; None: the callable, written in C, does not tell."""
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    return [each.name for each in found if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]


def _briefly(value: Any) -> str:
    """Return a value in an error: numbers, text and small collections as they are, of others the type."""
    plain = repr(value) if value is None or isinstance(value, bool | int | float | str | list | dict | tuple) else ""
    return plain if plain and len(plain) <= 40 else f"<{type(value).__name__}>"


def _load(path: str, path_or_name: str) -> Callable[..., Any]:
    """Import `package.module:callable`. path_or_name: as the user wrote it, for messages."""
    module_name, attribute = path.split(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module exists, but not something that it imports: Python's own message says it best
        parent = error.name.rpartition(".")[0]
        if parent:  # it was found, what is missing lies in it
            raise InputError(f"{path_or_name!r}: there is no module {error.name!r}", "correct the name") from None
        missing = f"{error.name}.py" if error.name == module_name else f"{error.name}/"
        raise InputError(
            f"{path_or_name!r}: there is no module {error.name!r} in {' or '.join(searched_folders())}",
            f"correct the name, or call scalestudy in the folder that has {missing}, or put that folder on PYTHONPATH",
        ) from None
    target: Callable[..., Any] | None = getattr(module, attribute, None)
    if not callable(target):
        raise InputError(f"{path_or_name!r}: module {module_name!r} has no callable {attribute!r}", "correct the name")
    return target


def searched_folders() -> list[str]:
    """Return where Python looks for a user's modules, in order: `sys.path` without Python's folders and packages."""
    folders = [Path(entry).absolute() for entry in sys.path]  # "" is the current folder
    found = [str(folder) for folder in folders if folder.is_dir() and not is_installed(folder)]
    return list(dict.fromkeys(found)) or [str(Path.cwd())]
