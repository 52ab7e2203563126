"""The `sweep` section of a spec: lists, ranges and chosen points of parameters."""

import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ConfigDict, ValidationError, model_validator
from pydantic_core import InitErrorDetails

from scalestudy.experiments.spec.sections import ARGUMENTS, KINDS, Range, is_argument, number_type, sweepable_keys
from scalestudy.training.config import Train
from scalestudy.training.section import (
    ConfigError,
    Count,
    Positive,
    Section,
    Whole,
    default_of,
    did_you_mean,
    not_a_list,
    value_of,
    wrong,
)


class Numbers(Section):
    """The parameters that every trial has, and their values where no sweep has others. `Sweep` says what they mean."""

    num_gpus: Count = 1
    batch_size: Count = 256
    learning_rate: Positive = 0.1
    seed: Whole = 0


ITEMS = Numbers.model_fields
DEFAULTS: Mapping[str, tuple[Any, ...]] = {name: (default_of(field),) for name, field in ITEMS.items()}


class Sweep(Section):
    """The parameters of a study. A grid is the product of all lists and the points; a search draws from them.

    Besides the fields, any plain `train.*` key may stand here by its dotted name (`train.optimizer.momentum`), and any
    argument of model, data set, task and schedule (`workload.model_args.width`). Values keep their order. A
    parameter without values takes its one value from `Numbers` or the spec's section.
    """

    model_config = ConfigDict(extra="allow")

    num_gpus: tuple[int, ...] | Range | None = None
    """workers that train one trial together; without GPUs, CPU processes"""
    batch_size: tuple[int, ...] | Range | None = None
    """examples in a step, over all workers"""
    learning_rate: tuple[float, ...] | Range | None = None
    """the rate before train.lr_rule changes it"""
    seed: tuple[int, ...] | None = None
    """of initialisation and order of the examples; with fewer than five, recommendations are marked provisional"""
    points: tuple[dict[str, Any], ...] | None = None
    """chosen cells, all with the same keys"""

    @model_validator(mode="before")
    @classmethod
    def _read(cls, raw: Any) -> Any:
        if not isinstance(raw, Mapping):
            return raw
        reader = _Reader()
        points = reader.points(raw["points"]) if "points" in raw else None
        in_points = {key for point in points or () for key in point}
        lists = {key: reader.values(key, raw[key], in_points) for key in raw if key != "points"}
        if reader.problems:
            raise ValidationError.from_exception_data("sweep", reader.problems)
        defaults = {key: values for key, values in DEFAULTS.items() if key not in in_points}
        return {**defaults, **lists, **({"points": points} if points else {})}

    def lists(self) -> dict[str, tuple[Any, ...]]:
        """Return the values of each listed parameter: the four fields first, then the others in the spec's order."""
        return {key: values for key, values in self._parameters() if not isinstance(values, Range)}

    def ranges(self) -> dict[str, Range]:
        """Return the range of each parameter that has one, in the same order."""
        return {key: values for key, values in self._parameters() if isinstance(values, Range)}

    def values_of(self, key: str) -> list[Any]:
        """Return every value of a parameter in lists and points, or the bounds of its range; empty if not swept."""
        from_points = [point[key] for point in self.points or () if key in point]
        bounds = [(range_.low, range_.high) for name, range_ in self.ranges().items() if name == key]
        return [*self.lists().get(key, ()), *itertools.chain(*bounds), *from_points]

    def _parameters(self) -> Iterator[tuple[str, Any]]:
        fields = {key: getattr(self, key) for key in ITEMS}
        return ((key, values) for key, values in {**fields, **(self.model_extra or {})}.items() if values is not None)


def sweep_keys() -> list[str]:
    """Return every key that may stand under `sweep`, but for arguments that a user names."""
    return [*ITEMS, "points", *sweepable_keys()]


class _Reader:
    """A check of the values of a raw sweep, which collects all problems to report them at once."""

    def __init__(self) -> None:
        self.problems: list[InitErrorDetails] = []

    def values(self, key: str, raw: Any, in_points: set[str]) -> tuple[Any, ...] | Range:
        """Return the checked values of one parameter, or its range.

        raw: a list, {choice: [...]}, {uniform: [low, high]} or {log_uniform: [low, high]}.
        """
        if not self._is_known(key, (key,), raw):
            return ()
        if key in in_points:
            self._add((key,), raw, "is listed in sweep.points too", f"remove {key} from sweep, or from the points")
        if isinstance(raw, Mapping) and len(raw) == 1 and next(iter(raw)) in KINDS:
            return self._range(key, raw) or ()
        if isinstance(raw, Mapping) and set(raw) == {"choice"}:
            raw = raw["choice"]
        if isinstance(raw, tuple):
            raw = list(raw)
        if not isinstance(raw, list):
            self._add((key,), raw, *not_a_list(raw))
            return ()
        if not raw:
            self._add((key,), raw, "is an empty list", "list at least one value, or remove the key")
        checked = [self._value(key, (key, index), item) for index, item in enumerate(raw)]
        self._refuse_repeats(key, raw, checked)
        return tuple(checked)

    def points(self, raw: Any) -> tuple[dict[str, Any], ...]:
        """Return the checked points."""
        if isinstance(raw, tuple):
            raw = list(raw)
        if not isinstance(raw, list) or not raw or not all(isinstance(point, Mapping) and point for point in raw):
            remedy = "write [{num_gpus: 1, batch_size: 256, learning_rate: 0.2}, …] or remove the key"
            self._add(("points",), raw, "is not a list of points", remedy)
            return ()
        for index, point in enumerate(raw):
            if set(point) != set(raw[0]):
                remedy = f"give every point the keys of the first: {', '.join(raw[0])}"
                self._add(("points", index), point, "has other keys than the first point", remedy)
        checked = [
            {
                key: self._value(key, ("points", index, key), value)
                for key, value in point.items()
                if self._is_known(key, ("points", index, key), value)
            }
            for index, point in enumerate(raw)
        ]
        self._refuse_repeats("points", raw, checked)
        return tuple(checked)

    def _range(self, key: str, raw: Mapping[str, Any]) -> Range | None:
        kind, bounds = next(iter(raw.items()))
        if number_type(key) is None:
            self._add((key,), raw, "is a range, which this key can't have", "list the values")
            return None
        listed = list(bounds) if isinstance(bounds, list | tuple) else []
        is_pair = len(listed) == 2 and all(type(bound) in (int, float) for bound in listed)
        if not is_pair or not listed[0] < listed[1] or (kind == "log_uniform" and listed[0] <= 0):
            above = "above 0, " if kind == "log_uniform" else ""
            self._add((key,), raw, "has invalid bounds", f"write {{{kind}: [low, high]}}, {above}low < high")
            return None
        if is_argument(key) and any(isinstance(bound, float) for bound in listed):
            listed = [float(bound) for bound in listed]
        before = len(self.problems)
        low, high = (self._value(key, (key,), bound) for bound in listed)
        if len(self.problems) > before:
            return None
        return Range.model_validate({"kind": kind, "low": low, "high": high})

    def _value(self, key: str, location: tuple[int | str, ...], item: Any) -> Any:
        """Return the value of a parameter as trials have it."""
        path, plain = key.removeprefix("train."), item
        for part in reversed(path.split(".")):
            plain = {part: plain}
        try:
            if is_argument(key):
                return json.loads(json.dumps(item, allow_nan=False))
            section: type[Section] = Numbers if key in ITEMS else Train
            value = value_of(section.from_dict(plain), path)
            return value.to_dict() if isinstance(value, Section) else value
        except ConfigError as error:
            message, remedy = error.problems[0].message, error.problems[0].remedy
        except (TypeError, ValueError):
            message, remedy = "is not plain data", "write numbers, text, true, false, null, or lists and mappings"
        self._add(location, item, message, remedy)
        return item

    def _is_known(self, key: str, location: tuple[int | str, ...], raw: Any) -> bool:
        known = [name for name in sweep_keys() if name != "points"]
        if key not in known and not is_argument(key):
            arguments = " or ".join(f"{mapping}.NAME" for mapping in ARGUMENTS)
            remedy = did_you_mean(key, known).strip() or f"sweep one of {', '.join(known)}, or {arguments}"
            self._add(location, raw, "stands under a key that can't be swept", remedy)
            return False
        return True

    def _refuse_repeats(self, key: str, items: list[Any], checked: list[Any]) -> None:
        seen: set[str] = set()
        for index, value in enumerate(checked):
            text = json.dumps(value, sort_keys=True, default=str)
            if text in seen:
                self._add((key, index), items[index], "is listed twice", "keep one of the two")
            seen.add(text)

    def _add(self, location: tuple[int | str, ...], value: Any, message: str, remedy: str) -> None:
        self.problems.append(InitErrorDetails(type=wrong(message, remedy), loc=location, input=value))
