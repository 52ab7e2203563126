"""The built-in names of models, data sets and gradient strategies, resolved when used.

Nothing here imports torch, so that the driver can list and check names without it.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

MODELS: Mapping[str, str] = MappingProxyType(
    {
        "lenet": "scalestudy.training.models:LeNet",
        "mlp": "scalestudy.training.models:MLP",
        "resnet18": "scalestudy.training.models:ResNet18",
        "linear_regression": "scalestudy.training.models:LinearRegression",
    }
)
"""Name -> callable(num_classes, in_channels, **model_args) -> nn.Module."""

TORCHVISION = "torchvision:"
"""Before the name of one of torchvision's classifiers, it names a model too."""

INITIALISATIONS: Mapping[str, str] = MappingProxyType(
    {
        "normal": "scalestudy.training.models.common:normal",
        "xavier": "scalestudy.training.models.common:xavier",
        "default": "scalestudy.training.models.common:default",
    }
)
"""Name -> callable(module) -> None, applied to every module of a model."""

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
"""Name -> callable(outputs, targets) -> values (N,), one an example; the metric is their mean over the test set."""

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


def resolve(path_or_name: str, table: Mapping[str, str]) -> Callable[..., Any]:
    """Import the callable behind a built-in name of `table` or behind `package.module:callable`; among MODELS also
    behind `torchvision:classifier`.

    Raises ValueError, with the value, the choices and the remedy, if there is no such name, module or callable.
    An exception that the user's own module raises while it is imported is passed on as it is.
    """
    check_name(path_or_name, table)
    if table is MODELS and path_or_name.startswith(TORCHVISION):
        return _torchvision_classifier(path_or_name.removeprefix(TORCHVISION))
    if path_or_name not in table:
        _make_torchvision_importable()
    module_name, attribute = table.get(path_or_name, path_or_name).split(":")
    target = getattr(_import(module_name, path_or_name), attribute, None)
    if not callable(target):
        raise ValueError(f"{path_or_name!r}: module {module_name!r} has no callable {attribute!r}; correct the name")
    return target


def resolve_field(field: str, path_or_name: str, table: Mapping[str, str]) -> Callable[..., Any]:
    """`resolve`, with the field's name before what is wrong."""
    try:
        return resolve(path_or_name, table)
    except ValueError as error:
        raise ValueError(f"{field}: {error}") from None


def check_name(path_or_name: str, table: Mapping[str, str]) -> None:
    """Raise ValueError unless the value is a name of `table` or has the form `package.module:callable`."""
    module_name, colon, attribute = path_or_name.partition(":")
    has_path_form = colon and attribute.isidentifier() and all(part.isidentifier() for part in module_name.split("."))
    if path_or_name not in table and not has_path_form:
        choices = ", ".join(table)
        raise ValueError(f"{path_or_name!r} is not known; choose one of {choices}, or give package.module:callable")


def call_with(function: Callable[..., Any], what: str, *positional: Any, **keywords: Any) -> Any:
    """Call the function; keywords that it does not take are a ValueError that names `what` and those it takes."""
    signature = inspect.signature(function)
    try:
        signature.bind(*positional, **keywords)
    except TypeError as error:
        accepted = ", ".join(signature.parameters)
        raise ValueError(f"{what}: {error}; it takes {accepted}") from None
    return function(*positional, **keywords)


def _import(module_name: str, path_or_name: str) -> Any:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module is there, and something that it imports is not: that message says it best
        raise ValueError(
            f"{path_or_name!r}: there is no module {error.name!r}; correct the name, or put its folder on PYTHONPATH"
        ) from None


def _torchvision_classifier(name: str) -> Callable[..., Any]:
    from scalestudy.training.models.torchvision import find_classifier

    return find_classifier(name)


def _make_torchvision_importable() -> None:
    """A user's module may import torchvision at its top (training/torchvision_compat.py says what can go wrong)."""
    from scalestudy.training.torchvision_compat import define_missing_operators

    define_missing_operators()
