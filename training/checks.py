"""Stage 5, training loop: checks of single values of a configuration; each raises ValueError: field, value, remedy."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from training.registry import check_name


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
