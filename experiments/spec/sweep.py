"""The `sweep` section of a spec: lists, ranges and chosen points of parameters."""

import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from scalestudy.experiments.spec.errors import explain, shown, wrong
from scalestudy.experiments.spec.sections import (
    KINDS,
    Count,
    Positive,
    Range,
    Section,
    Train,
    Whole,
    leaf_keys,
    number_type,
)
from scalestudy.training.config import KnobError, did_you_mean, value_of

STRICT = ConfigDict(strict=True)
ITEMS: Mapping[str, TypeAdapter[Any]] = {
    "num_gpus": TypeAdapter(Count, config=STRICT),
    "batch_size": TypeAdapter(Count, config=STRICT),
    "learning_rate": TypeAdapter(Positive, config=STRICT),
    "seed": TypeAdapter(Whole, config=STRICT),
}
DEFAULTS: Mapping[str, tuple[Any, ...]] = {
    "num_gpus": (1,),
    "batch_size": (256,),
    "learning_rate": (0.1,),
    "seed": (0,),
}
Found = list[InitErrorDetails]


class Sweep(Section):
    """The parameters of a study: the grid of all lists, times the chosen points; a search draws from them and ranges.

    Besides the fields, any plain `train.*` key may stand here by its dotted name (`train.optimizer.momentum`).
    Values are kept in the order given. A parameter that is left out is not swept: `DEFAULTS` holds its one value.
    """

    model_config = ConfigDict(extra="allow")

    num_gpus: tuple[int, ...] | Range | None = None
    """Workers that train one trial together; null: given by the points."""
    batch_size: tuple[int, ...] | Range | None = None
    """Examples a step, all workers together; null: given by the points."""
    learning_rate: tuple[float, ...] | Range | None = None
    """Nominal learning rate; null: given by the points."""
    seed: tuple[int, ...] | None = None
    """Of initialisation and order of the examples, 0 to 2^31 - 1; null: given by the points."""
    points: tuple[dict[str, Any], ...] | None = None
    """Chosen cells, all with the same keys; null: none."""

    @model_validator(mode="before")
    @classmethod
    def _read(cls, raw: Any) -> Any:
        if not isinstance(raw, Mapping):
            return raw
        found: Found = []
        points = _points(raw["points"], found) if "points" in raw else None
        in_points = {key for point in points or () for key in point}
        lists = {key: _values(key, raw[key], in_points, found) for key in raw if key != "points"}
        if found:
            raise ValidationError.from_exception_data("sweep", found)
        defaults = {key: values for key, values in DEFAULTS.items() if key not in in_points}
        return {**defaults, **lists, **({"points": points} if points else {})}

    def lists(self) -> dict[str, tuple[Any, ...]]:
        """Parameter name to its values, the four fields first, then `train.*` keys in the spec's order; no ranges."""
        return {key: values for key, values in self._parameters() if not isinstance(values, Range)}

    def ranges(self) -> dict[str, Range]:
        """Parameter name to its range, in the same order."""
        return {key: values for key, values in self._parameters() if isinstance(values, Range)}

    def values_of(self, key: str) -> list[Any]:
        """Every value that a parameter takes, in lists and points, or the bounds of its range; empty: not swept."""
        from_points = [point[key] for point in self.points or () if key in point]
        bounds = [(found.low, found.high) for name, found in self.ranges().items() if name == key]
        return [*self.lists().get(key, ()), *itertools.chain(*bounds), *from_points]

    def _parameters(self) -> Iterator[tuple[str, Any]]:
        fields = {key: getattr(self, key) for key in ITEMS}
        return ((key, values) for key, values in {**fields, **(self.model_extra or {})}.items() if values is not None)


def sweep_keys() -> list[str]:
    """Every key that may stand under `sweep`."""
    return [*ITEMS, "points", *leaf_keys()]


def _problem(found: Found, location: tuple[int | str, ...], value: Any, error: PydanticCustomError) -> None:
    found.append(InitErrorDetails(type=error, loc=location, input=value))


def _values(key: str, raw: Any, in_points: set[str], found: Found) -> tuple[Any, ...] | Range:
    """The checked values of one parameter, or its range; what is wrong is added to `found`."""
    if not _known(key, (key,), raw, found):
        return ()
    if key in in_points:
        _problem(found, (key,), raw, wrong("is given here and in points", "keep one of the two"))
    if isinstance(raw, Mapping) and len(raw) == 1 and next(iter(raw)) in KINDS:
        return _range(key, raw, found) or ()
    items = _listed(key, raw, found)
    checked = [_checked(key, (key, index), item, found) for index, item in enumerate(items)]
    _refuse_repeats(key, items, checked, found)
    return tuple(checked)


def _known(key: str, location: tuple[int | str, ...], raw: Any, found: Found) -> bool:
    known = [name for name in sweep_keys() if name != "points"]
    if key in known:
        return True
    remedy = did_you_mean(key, known).strip() or f"sweep one of {', '.join(known)}"
    _problem(found, location, raw, wrong("stands under a key that can't be swept", remedy))
    return False


def _listed(key: str, raw: Any, found: Found) -> list[Any]:
    """The items of a list or of {choice: [...]}."""
    if isinstance(raw, Mapping) and set(raw) == {"choice"}:
        raw = raw["choice"]
    if isinstance(raw, tuple):
        raw = list(raw)
    if not isinstance(raw, list):
        remedy = f"write a list, such as [{shown(raw)}]" if not isinstance(raw, Mapping | None) else "write a list"
        _problem(found, (key,), raw, wrong("is not a list", remedy))
        return []
    if not raw:
        _problem(found, (key,), raw, wrong("is an empty list", "list at least one value, or remove the key"))
    return raw


def _range(key: str, raw: Mapping[str, Any], found: Found) -> Range | None:
    """The checked range of {uniform: [low, high]} or {log_uniform: [low, high]}."""
    kind, bounds = next(iter(raw.items()))
    if number_type(key) is None:
        _problem(found, (key,), raw, wrong("is a range, but the values are no measure", "list the values"))
        return None
    listed = list(bounds) if isinstance(bounds, list | tuple) else []
    numbers = len(listed) == 2 and all(type(bound) in (int, float) for bound in listed)
    ordered = numbers and listed[0] < listed[1]
    if not ordered or (kind == "log_uniform" and listed[0] <= 0):
        above = "above 0, " if kind == "log_uniform" else ""
        _problem(found, (key,), raw, wrong("has no valid bounds", f"write {{{kind}: [low, high]}}, {above}low < high"))
        return None
    before = len(found)
    low, high = (_checked(key, (key,), bound, found) for bound in listed)
    return Range.model_validate({"kind": kind, "low": low, "high": high}) if len(found) == before else None


def _checked(key: str, location: tuple[int | str, ...], item: Any, found: Found) -> Any:
    """The value of a parameter as trials have it; what is wrong is added to `found`."""
    try:
        return ITEMS[key].validate_python(item) if key in ITEMS else _train_value(key, item)
    except ValidationError as error:
        message, remedy = explain(error.errors()[0])
    except KnobError as error:
        message, remedy = error.problems[0].what, error.problems[0].remedy
    _problem(found, location, item, wrong(message, remedy))
    return item


def _train_value(key: str, item: Any) -> Any:
    """The value of a `train.*` key, checked by the section that it belongs to."""
    path = key.removeprefix("train.")
    raw: Any = item
    for part in reversed(path.split(".")):
        raw = {part: raw}
    return value_of(Train.from_dict(raw), path)


def _refuse_repeats(key: str, items: list[Any], checked: list[Any], found: Found) -> None:
    seen: set[str] = set()
    for index, value in enumerate(checked):
        text = json.dumps(value, sort_keys=True, default=str)
        if text in seen:
            _problem(found, (key, index), items[index], wrong("is listed twice", "keep one of the two"))
        seen.add(text)


def _points(raw: Any, found: Found) -> tuple[dict[str, Any], ...]:
    """The checked points; what is wrong is added to `found`."""
    if isinstance(raw, tuple):
        raw = list(raw)
    if not isinstance(raw, list) or not raw or not all(isinstance(point, Mapping) and point for point in raw):
        remedy = "write [{num_gpus: 1, batch_size: 256, learning_rate: 0.2}, …] or remove the key"
        _problem(found, ("points",), raw, wrong("is not a list of points", remedy))
        return ()
    for index, point in enumerate(raw):
        if set(point) != set(raw[0]):
            remedy = f"give every point the keys of the first: {', '.join(raw[0])}"
            _problem(found, ("points", index), point, wrong("has other keys than the first point", remedy))
    checked = [
        {
            key: _checked(key, ("points", index, key), value, found)
            for key, value in point.items()
            if _known(key, ("points", index, key), value, found)
        }
        for index, point in enumerate(raw)
    ]
    _refuse_repeats("points", raw, checked, found)
    return tuple(checked)
