"""A run as its source has it becomes a run of a study, by the columns that were taken. One that can't is left out."""

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scalestudy.experiments.judging.columns import (
    Columns,
    clock_of,
    measured,
    number_of,
    rows_of,
    said_once,
    seconds_of,
    words_of,
)
from scalestudy.experiments.judging.facts import NO_SETTING
from scalestudy.experiments.judging.runs import Ended, Evaluation, Recorded, Run

LONGEST_TEXT = 200
"""Characters of a setting; longer text is a log or a description."""
FAILED = ("failed", "crashed", "crash", "error", "errored", "dead")
CUT = ("killed", "cut", "stopped", "pruned", "canceled", "cancelled", "preempted", "early_stopped", "aborted")
RUNNING = ("running", "active", "pending", "scheduled")
"""What sources call the ends of runs, in lower case. Anything else is finished."""


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """A run that plays no part."""

    where: str
    why: str


class _UnreadableError(ValueError):
    """A run that can't be read; its text says why."""


def read_runs(recorded: Sequence[Recorded], columns: Columns) -> tuple[list[Run], list[LeftOut]]:
    """Return the runs that have what a study needs, and those that do not. One of a shared name is named by its place.

    Ray's `setup_mlflow`, for one, calls all runs after their experiment.
    """
    runs: list[Run] = []
    left_out: list[LeftOut] = []
    seeds: dict[str, int] = {}
    named = Counter(each.name for each in recorded)
    for each in recorded:
        own = each if named[each.name] == 1 else replace(each, name=each.where)
        try:
            runs.append(_Reader(own, columns, seeds).run())
        except _UnreadableError as error:
            left_out.append(LeftOut(where=each.where, why=str(error)))
    return runs, left_out


class _Reader:
    """One run, read by the columns. seeds: numbers of seeds that are no numbers, shared by all runs."""

    def __init__(self, recorded: Recorded, columns: Columns, seeds: dict[str, int]) -> None:
        self._recorded, self._columns, self._seeds = recorded, columns, seeds
        self._rows = rows_of(recorded, columns.metric)

    def run(self) -> Run:
        """Return the run. Raises `_UnreadableError`."""
        recorded, columns = self._recorded, self._columns
        if not self._rows:
            raise _UnreadableError(f"it has no {columns.metric} that is a number")
        num_gpus = self._workers()
        batch_size = self._batch_size(num_gpus)
        if batch_size < num_gpus:
            raise _UnreadableError(f"its batch of {batch_size} is smaller than its {num_gpus} workers")
        evaluations = tuple(self._evaluations(batch_size))
        if not evaluations:
            raise _UnreadableError("no evaluation has a time after the run's start")
        whole = None if recorded.started is None or recorded.stopped is None else recorded.stopped - recorded.started
        return Run(
            where=recorded.where,
            name=recorded.name,
            num_gpus=num_gpus,
            batch_size=batch_size,
            learning_rate=self._rate(),
            seed=self._seed(),
            settings=self._settings(),
            evaluations=evaluations,
            seconds=evaluations[-1].seconds if whole is None or whole <= 0 else whole,
            ended=self._ended(),
            started=self._started(),
            machine=self._text("machine"),
            accelerator=self._text("accelerator"),
            result_alone=columns.results or self._rows[0] is recorded.values,
        )

    # --- what is said once --------------------------------------------------------------------------------------------

    def _once(self, role: str) -> Any:
        name = self._columns.names.get(role)
        return self._columns.given.get(role) if name is None else said_once(self._recorded, name)

    def _whole(self, role: str) -> int:
        value, name = self._once(role), self._columns.names.get(role, role)
        number = number_of(value)
        if value is None:
            raise _UnreadableError(f"it has no {name}, or several")
        if number is None or not 1 <= number < 2**31 or number != int(number):
            raise _UnreadableError(f"{name}: {value}: is no whole number above 0")
        return int(number)

    def _workers(self) -> int:
        if {"gpus_per_node", "nodes"} <= self._columns.names.keys():
            return self._whole("gpus_per_node") * self._whole("nodes")
        return self._whole("num_gpus")

    def _batch_size(self, num_gpus: int) -> int:
        known = {*self._columns.names, *self._columns.given}
        if "device_batch_size" not in known:
            return self._whole("batch_size")
        passes = self._whole("accumulation") if "accumulation" in known else 1
        return self._whole("device_batch_size") * num_gpus * passes

    def _rate(self) -> float:
        name = self._columns.names.get("learning_rate")
        value = self._once("learning_rate")
        if value is None and name is not None:
            value = max((number_of(row.get(name)) or 0.0 for row in self._recorded.history), default=None)
        number = number_of(value)
        if number is None or not 0 < number < math.inf:
            raise _UnreadableError(f"{name or 'learning_rate'}: {value}: is no number above 0")
        return number

    def _seed(self) -> int | None:
        value = self._once("seed")
        number = number_of(value)
        if number is not None and 0 <= number < 2**31 and number == int(number):
            return int(number)
        return None if value is None else self._seeds.setdefault(str(value), len(self._seeds))

    def _text(self, role: str) -> str | None:
        """Return the words that a role has; a number says no word: `gpu: 0` is no type of GPUs."""
        value = self._once(role)
        return None if value is None or number_of(value) is not None else str(value)

    def _ended(self) -> Ended:
        told = self._text("ended")
        if told is None:
            return self._recorded.ended or "finished"
        word = told.strip().lower()
        return "failed" if word in FAILED else "cut" if word in CUT else "running" if word in RUNNING else "finished"

    def _started(self) -> float | None:
        if self._recorded.started is not None:
            return self._recorded.started
        if (told := clock_of(self._once("started"))) is not None:
            return told
        clock, name = self._columns.names.get("timestamp"), self._columns.names.get("seconds")
        if clock is None or name is None:
            return None
        for row in self._rows:
            at, seconds = clock_of(row.get(clock)), seconds_of(row.get(name))
            if at is not None and seconds is not None:
                return at - seconds * self._columns.unit
        return None

    def _settings(self) -> dict[str, Any]:
        taken = {*self._columns.names.values(), *self._columns.ignored, self._columns.metric}
        return {
            name: value if isinstance(value, bool | int | float) else str(value)
            for name, value in self._recorded.values.items()
            if name not in taken and value is not None and len(str(value)) <= LONGEST_TEXT
        }

    # --- what is said at each evaluation ------------------------------------------------------------------------------

    def _evaluations(self, batch_size: int) -> Iterator[Evaluation]:
        """Yield the evaluations after the run's start that have a time."""
        given = self._columns.given
        shift = 0 if self._rows[0] is self._recorded.values else self._columns.first_epoch
        made: list[tuple[float | None, float | None]] = []
        for step, samples, epoch in zip(*map(self._numbers, ("step", "samples", "epoch")), strict=True):
            passes = None if epoch is None else epoch + shift
            if step is None and samples is not None:
                step = samples / batch_size
            if step is None and passes is not None and "train_samples" in given:
                step = passes * given["train_samples"] / batch_size
            made.append((step, passes))
        progress = [passes if step is None else step for step, passes in made]
        for row, (step, passes), seconds in zip(self._rows, made, self._seconds(progress), strict=True):
            if seconds is not None and 0 < seconds < math.inf and step != 0 and passes != 0:
                value = measured(row[self._columns.metric])
                yield Evaluation(value=math.nan if value is None else value, seconds=seconds, steps=step, epochs=passes)

    def _numbers(self, role: str) -> list[float | None]:
        name = self._columns.names.get(role)
        return [None if name is None else number_of(row.get(name)) for row in self._rows]

    def _seconds(self, progress: Sequence[float | None]) -> list[float | None]:
        """Return the seconds since the start of each row. progress: how far the run was, in any unit."""
        names, columns = self._columns.names, self._columns
        if "step_seconds" in columns.given:
            return [None if made is None else made * columns.given["step_seconds"] for made in progress]
        if "seconds" in names:
            told = [seconds_of(row.get(names["seconds"])) for row in self._rows]
            return [None if seconds is None else seconds * columns.unit for seconds in told]
        if "period_seconds" in names:
            return self._summed(names["period_seconds"])
        if "timestamp" in names:
            clock = [clock_of(row.get(names["timestamp"])) for row in self._rows]
            start = self._started()
            start = _start_of(clock, progress) if start is None else start
            return [None if at is None or start is None else at - start for at in clock]
        recorded = self._recorded
        if recorded.started is None or recorded.stopped is None or len(self._rows) > 1:
            return [None] * len(self._rows)
        return [recorded.stopped - recorded.started]

    def _summed(self, name: str) -> list[float | None]:
        """Return the sums of seconds until each evaluation, over all rows that say some."""
        total = 0.0
        sums: list[float | None] = []
        for row in self._recorded.history or self._rows:
            total += (seconds_of(row.get(name)) or 0.0) * self._columns.unit
            if measured(row.get(self._columns.metric)) is not None:
                sums.append(total)
        return sums


def _start_of(clock: Sequence[float | None], progress: Sequence[float | None]) -> float | None:
    """Return when a run began that does not say so: its first period took as long as the later ones, for as far."""
    told = [(at, made) for at, made in zip(clock, progress, strict=True) if at is not None]
    gaps = [after - before for (before, _), (after, _) in itertools.pairwise(told)]
    if not gaps:
        return None
    (first, made), (last, most) = told[0], told[-1]
    if made is not None and most is not None and most > made:
        return first - (last - first) / (most - made) * made
    return first - statistics.median(gaps)


def settings_apart(runs: Sequence[Run], columns: Columns) -> tuple[list[str], list[str]]:
    """Return the settings by which runs are compared apart, and the others that differ.

    Apart: those that the user names, and those that are no results and differ between runs of the same workers, batch
    and rate, where on average two runs or more share a value. One that differs in every run says who the run is.
    """
    values: dict[str, set[str]] = {}
    by_cell: dict[str, dict[tuple[int, int, float], set[str]]] = {}
    for run in runs:
        for name, value in run.settings.items():
            values.setdefault(name, set()).add(repr(value))
            place = (run.num_gpus, run.batch_size, run.learning_rate)
            by_cell.setdefault(name, {}).setdefault(place, set()).add(repr(value))
    differing = [name for name, found in values.items() if len(found) > 1]
    apart = [
        name
        for name in differing
        if name in columns.settings
        or (
            _is_setting(name)
            and any(len(found) > 1 for found in by_cell[name].values())
            and 2 * len(values[name]) <= len(runs)
        )
    ]
    labels = {name for name, found in values.items() if len(found) == len(runs) > 2}
    return apart, [name for name in differing if name not in apart and name not in labels and _is_setting(name)]


LENGTHS = words_of("epochs steps updates iterations length budget")
"""Words in the names of how long a run was, which is no way to train."""


def _is_setting(name: str) -> bool:
    words = "".join(character if character.isalnum() else " " for character in name.lower()).split()
    return NO_SETTING.fullmatch(name) is None and LENGTHS.isdisjoint(words)


def settings_of(run: Run, names: Sequence[str]) -> Mapping[str, Any]:
    """Return some settings of a run, null where it does not say one."""
    return {name: run.settings.get(name) for name in names}
