"""Stage 1, study spec: checks of values against one another, and of names against what is built in."""

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal

from experiments.spec_errors import ABSENT, Problem, did_you_mean

if TYPE_CHECKING:
    from experiments.spec import StudySpec

MAX_TRIALS = 10_000

LineOf = Callable[[tuple[int | str, ...]], int | Literal["--set"] | None]


def relation_problems(
    spec: "StudySpec | None",
    models: Collection[str],
    datasets: Collection[str],
    line_of: LineOf,
    known: Collection[str],
) -> list[Problem]:
    """What is wrong between values that are each valid by themselves.

    line_of: the line of a path. known: fields already complained about, which are left alone here.
    """
    if spec is None:
        return []
    found = itertools.chain(
        _unknown_name("workload.model", spec.workload.model, models),
        _unknown_name("workload.data", spec.workload.data, datasets),
        _too_many_trials(spec),
        _batch_too_small(spec),
        _weights_do_not_fit(spec),
    )
    return [
        Problem(field=field, value=value, line=line_of(_path(field)), message=message, remedy=remedy)
        for field, value, message, remedy in found
        if field not in known and not (field == "sweep" and any(name.startswith("sweep.") for name in known))
    ]


Finding = tuple[str, Any, str, str]


def _path(field: str) -> tuple[str, ...]:
    section, _, rest = field.partition(".")
    return (section, rest) if section == "sweep" and rest else tuple(field.split("."))


def _unknown_name(field: str, value: str, names: Collection[str]) -> Iterator[Finding]:
    if value not in names and ":" not in value:
        choices = ", ".join(sorted(names))
        remedy = f"{did_you_mean(value, names)}choose {choices}, or write package.module:callable"
        yield field, value, "is not built in", remedy


def trial_count(spec: "StudySpec") -> int:
    """How many trials the grid has, without making them."""
    return math.prod(len(values) for values in spec.sweep.lists().values()) * len(spec.sweep.points or (None,))


def _too_many_trials(spec: "StudySpec") -> Iterator[Finding]:
    count = trial_count(spec)
    if count > MAX_TRIALS:
        message = f"the grid has {count:,} trials, more than {MAX_TRIALS:,}"
        yield "sweep", ABSENT, message, "list fewer values, or choose cells with sweep.points"


def _combinations(spec: "StudySpec", first: str, second: str) -> Iterable[tuple[Any, Any]]:
    """Every pair of values of two parameters that some trial has."""
    lists = spec.sweep.lists()
    pairs = [
        pair
        for point in spec.sweep.points or ({},)
        for pair in itertools.product(
            [point[first]] if first in point else lists.get(first, ()),
            [point[second]] if second in point else lists.get(second, ()),
        )
    ]
    return {repr(pair): pair for pair in pairs}.values()


def _field_of(spec: "StudySpec", key: str) -> str:
    return f"sweep.{key}" if key in spec.sweep.lists() else "sweep.points"


def _batch_too_small(spec: "StudySpec") -> Iterator[Finding]:
    for batch_size, num_gpus in _combinations(spec, "batch_size", "num_gpus"):
        if batch_size < num_gpus:
            message = f"is a batch smaller than num_gpus {num_gpus}, so that a worker would have no example"
            remedy = f"use batches of at least {num_gpus} examples, or fewer workers"
            yield _field_of(spec, "batch_size"), batch_size, message, remedy


def _weights_do_not_fit(spec: "StudySpec") -> Iterator[Finding]:
    swept = bool(spec.sweep.values_of("train.shards"))
    field = _field_of(spec, "train.shards") if swept else "train.shards"
    workers = spec.sweep.values_of("num_gpus")
    fixed = [(spec.train.shards, num_gpus) for num_gpus in dict.fromkeys(workers)]
    for shards, num_gpus in _combinations(spec, "train.shards", "num_gpus") if swept else fixed:
        if shards != "even" and len(shards) != num_gpus:
            message = f"has {len(shards)} weights, but num_gpus is {num_gpus} in some trial"
            yield field, list(shards), message, "give one weight a worker, sweep one num_gpus, or use even"
