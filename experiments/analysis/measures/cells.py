"""Trials gathered into cells.

Such keys (gradient_sync, the optimizer …) may change both the time of a step and what a step learns, so that each
combination of them has laws of its own.
"""

import json
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scalestudy.experiments.analysis.measures import records
from scalestudy.experiments.analysis.measures.metric import StudyMetric
from scalestudy.experiments.analysis.measures.parts import Part, missing, positive, present, spread
from scalestudy.experiments.analysis.measures.records import (
    COUNTED,
    PHASES,
    STATUSES,
    TIMED,
    WITHOUT_FIRST,
    Trial,
    best_value,
    curve,
    epoch_phases,
    epochs_of,
    final_value,
    samples_per_second,
    timed_epochs,
    usable,
)
from scalestudy.experiments.plan.plan import Plan, cell_of, label
from scalestudy.experiments.plan.timing_runs import DISTURBED, step_key
from scalestudy.experiments.spec.search_space import Factorised

OF_TIMINGS = frozenset({"shared_node", "warm_up_included"})
"""Flags that say something about a trial's timings and nothing else."""
WARMING_UP = "its trials were stopped within their first epoch, in which they warmed up"
NO_TIMES = "its trials have recorded no time"
NO_TIMING_RUN = "no timing run of its num_gpus and batch_size ended well"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """The trials of one cell. params: without the seed. planned: how many trials the plan has for it. metric: what
    the study compares its trials by. timing: the run by which its steps were timed undisturbed; None: its trials were
    not disturbed, or have the only timings that there are. inferred: it has no trials of its own, and these are the
    same trainings with another num_gpus, whose epochs count and whose times do not (docs/formulas.md §7). not_lent: of
    an inferred cell, how many of these ran out of memory, which says nothing of more workers.
    """

    params: Mapping[str, Any]
    planned: int
    trials: tuple[Trial, ...]
    metric: StudyMetric
    timing: Trial | None = None
    inferred: bool = False
    not_lent: int = 0

    @property
    def label(self) -> str:
        """`gpus=2 batch=256 lr=0.2`."""
        return label(self.params)

    @property
    def num_gpus(self) -> int:
        """Workers that train a trial together."""
        return int(self.params["num_gpus"])

    @property
    def batch_size(self) -> int:
        """Examples a step, all workers together."""
        return int(self.params["batch_size"])

    def with_status(self, statuses: Sequence[str]) -> list[Trial]:
        """The trials that ended in one of these statuses."""
        return [trial for trial in self.trials if trial["status"] in statuses]

    @property
    def timed(self) -> list[Trial]:
        """The trials that timings are taken from."""
        return self.with_status(TIMED)

    @property
    def counted(self) -> list[Trial]:
        """The trials that say whether a target is reached."""
        return self.with_status(COUNTED)

    @property
    def own(self) -> tuple[Trial, ...]:
        """Its trials, but for those of another num_gpus."""
        return () if self.inferred else self.trials

    @property
    def is_timed(self) -> bool:
        """Whether there is any time to be had of it: an inferred cell needs a timing run."""
        return not self.inferred or self.undisturbed_epoch_seconds is not None

    @property
    def flags(self) -> list[str]:
        """Every flag that some trial of the cell carries, sorted; with a timing run, those of timings are its own."""
        flags = {flag for trial in self.own for flag in trial.get("flags") or ()}
        if self.timing is not None:
            flags = (flags - OF_TIMINGS) | set(self.timing.get("flags") or ())
        return sorted(flags)

    @property
    def undisturbed_epoch_seconds(self) -> float | None:
        """Seconds an epoch by the timing run: those of a step times the steps of an epoch; None without such a run."""
        seconds = records.step_seconds(self.timing) if self.timing is not None else None
        return None if seconds is None or self.steps is None else seconds * self.steps

    @property
    def steps(self) -> float | None:
        """Of a whole epoch; None where none was recorded."""
        epochs = [epoch for trial in self.trials for epoch in epochs_of(trial)]
        return max((count for epoch in epochs if (count := positive(epoch.get("steps")))), default=None)

    def curve(self, trial: Trial) -> list[tuple[float, float]]:
        """`trial_measures.curve` of one of its trials, each epoch taking what it takes undisturbed."""
        return curve(trial, self.metric, self.undisturbed_epoch_seconds) if self.is_timed else []


def key_of(params: Mapping[str, Any], without: Sequence[str] = ()) -> str:
    """Parameters as a canonical string, the ones in `without` left out."""
    return json.dumps({key: value for key, value in params.items() if key not in without}, sort_keys=True)


def gather(plan: Plan, trials: Sequence[Trial], metric: StudyMetric) -> list[Cell]:
    """The cells of a study, in the plan's order, each with its timing run where there is one that ended well.

    Trials that the plan does not have make cells of their own, last. Of a factorised study all cells of its grid:
    inferred ones from the trainings, and those that were held out as they were measured. Of the trials those that can
    be used (`records.usable`).
    """
    trials = usable(trials)
    timings = records.by_step(trials)
    planned = Counter(key_of(trial.cell) for trial in plan.trials)
    params = {key_of(cell): cell for cell in plan.cells}
    members: dict[str, list[Trial]] = {}
    for trial in records.without(trials):
        cell = cell_of(trial["params"])
        params.setdefault(key_of(cell), cell)
        members.setdefault(key_of(cell), []).append(trial)
    found = []
    for key, cell in params.items():
        own = tuple(members.get(key, ()))
        made = Cell(params=cell, planned=planned[key], trials=own, metric=metric, timing=timings.get(step_key(cell)))
        found.append(_factorised(made, plan.factorised, members) if plan.factorised else made)
    return found


def _factorised(cell: Cell, parts: Factorised, members: Mapping[str, Sequence[Trial]]) -> Cell:
    """A cell as a factorised study has it. members: trials by the key of their cell."""
    if cell.num_gpus == parts.train_on:
        return cell
    if not cell.counted:
        return infer(cell, members.get(key_of({**cell.params, "num_gpus": parts.train_on}), ()))
    disturbed = any(DISTURBED in (trial.get("flags") or ()) for trial in cell.trials)
    return cell if disturbed else replace(cell, timing=None)  # what was measured stands


def infer(cell: Cell, trainings: Sequence[Trial]) -> Cell:
    """The cell as it is by the same trainings with another num_gpus.

    One that ran out of memory tells nothing of a cell with more workers, each of which has fewer examples.
    """
    lent = [trial for trial in trainings if trial["status"] != "out_of_memory" or _has_less(cell, trial)]
    return replace(cell, planned=0, trials=tuple(lent), inferred=True, not_lent=len(trainings) - len(lent))


def _has_less(cell: Cell, trial: Trial) -> bool:
    return cell.num_gpus <= trial["params"]["num_gpus"]


def cell_row(cell: Cell) -> dict[str, Any]:
    """The cell's own figures, medians over seeds with their range: metric, seconds an epoch, samples/s, phases.

    test_accuracy (or test_ and the name of another metric) is the one after the last epoch, as in the book;
    best_test_accuracy the best after any epoch; both over finished and stopped trials. epoch_seconds: median over a
    trial's epochs, evaluation not included. timed_apart: whether times are those of a timing run. kind: factorised
    where the cell is inferred from trainings with another num_gpus. details: what training picked by itself, only where
    it picked something. stopped_after: of each trial that a scheduler stopped, the epochs that it had made: its metric
    after the last of them is not that of a whole training. repeats: epoch_seconds and samples_per_second over
    the single epochs of all trials, or of the run that timed it apart.
    """
    untimed, metric = why_untimed(cell), cell.metric
    return {
        "label": cell.label,
        "params": dict(cell.params),
        "kind": "factorised" if cell.inferred else "measured",
        "trials": {"planned": cell.planned, **count_statuses(cell.own)},
        metric.key: spread((final_value(trial, metric) for trial in cell.timed), untimed),
        metric.best_key: spread((best_value(trial, metric) for trial in cell.timed), untimed),
        **_times(cell),
        **worker_device(cell.trials),
        "flags": cell.flags,
        "stopped_after": sorted(len(epochs_of(trial)) for trial in cell.with_status(("stopped",))),
        **picked(cell.own),
    }


def _times(cell: Cell) -> dict[str, Any]:
    """Seconds an epoch, samples/s and seconds a step: of the cell's trials, or of the run that timed it apart."""
    timing = cell.timing if cell.timed else None
    untimed = why_no_time(cell)
    if timing is not None:
        return {
            "epoch_seconds": spread([cell.undisturbed_epoch_seconds], untimed),
            "samples_per_second": spread([records.rate(timing)], untimed),
            "step_seconds": records.phase_seconds(timing),
            "timed_apart": True,
            "repeats": _repeats(records.repeats(timing, cell.steps)),
        }
    timed = cell.timed if cell.is_timed else []
    if timed and not any(timed_epochs(trial) for trial in timed):
        untimed = WARMING_UP if any(trial.get(WITHOUT_FIRST) for trial in timed) else NO_TIMES
    return {
        "epoch_seconds": spread((epoch_seconds(trial) for trial in timed), untimed),
        "samples_per_second": spread((throughput(trial) for trial in timed), untimed),
        "step_seconds": step_seconds(timed),
        "timed_apart": False,
        "repeats": _repeats([_repeat(epoch) for trial in timed for epoch in timed_epochs(trial)]),
    }


def _repeat(epoch: Mapping[str, Any]) -> tuple[float | None, float | None]:
    return positive(epoch.get("train_seconds")), samples_per_second(epoch)


def _repeats(found: Sequence[tuple[float | None, float | None]]) -> dict[str, Part]:
    """Seconds an epoch and samples/s over every epoch of every trial: their median, range and number."""
    seconds, rates = zip(*found, strict=True) if found else ((), ())
    return {"epoch_seconds": spread(seconds, NO_TIMES), "samples_per_second": spread(rates, NO_TIMES)}


def picked(trials: Sequence[Trial]) -> dict[str, Any]:
    """`details` of a row: by name every value that training picked by itself in some trial; nothing where none did."""
    found: dict[str, dict[str, Any]] = {}
    for trial in trials:
        for name, value in (trial.get("details") or {}).items():
            found.setdefault(name, {})[json.dumps(value, sort_keys=True)] = value
    return {"details": {name: list(values.values()) for name, values in found.items()}} if found else {}


def count_statuses(trials: Sequence[Trial]) -> dict[str, int]:
    """Trials by the way they ended."""
    counts = Counter(trial["status"] for trial in trials)
    return {status: counts[status] for status in STATUSES}


def why_no_time(cell: Cell) -> str:
    """Why a cell has no times, in words."""
    return NO_TIMING_RUN if cell.trials and not cell.is_timed else why_untimed(cell)


def why_untimed(cell: Cell) -> str:
    """Why a cell has no figures, in words."""
    if cell.not_lent and not cell.trials:
        return (
            "its trainings ran out of memory with fewer workers, which tells nothing of this cell: train it with its "
            "own num_gpus"
        )
    ended = [f"{count} {status.replace('_', ' ')}" for status, count in count_statuses(cell.trials).items() if count]
    return f"no trial of this cell finished ({', '.join(ended)})" if ended else "no trial of this cell was run"


def epoch_seconds(trial: Trial) -> float | None:
    """Median training seconds an epoch."""
    seconds = [float(epoch["train_seconds"]) for epoch in timed_epochs(trial)]
    return statistics.median(seconds) if seconds else None


def throughput(trial: Trial) -> float | None:
    """Median samples/s over all workers."""
    rates = [rate for epoch in timed_epochs(trial) if (rate := samples_per_second(epoch)) is not None]
    return statistics.median(rates) if rates else None


def step_seconds(trials: Sequence[Trial]) -> Part:
    """Median seconds a step of each phase, over all epochs of the trials; the exposed part of gradient_sync."""
    measured = [phases for trial in trials for epoch in timed_epochs(trial) if (phases := epoch_phases(epoch))]
    if not measured:
        return missing("phases were not measured")
    return {name: statistics.median(phases[name] for phases in measured) for name in PHASES}


def worker_device(trials: Sequence[Trial]) -> dict[str, Any]:
    """Device and threads of the workers, as the trials saw them; None where no trial started."""
    workers = [worker for trial in trials for worker in (trial.get("world") or {}).get("workers") or ()]
    devices = {(trial.get("world") or {}).get("device") for trial in trials} - {None}
    threads = {worker.get("threads") for worker in workers} - {None}
    return {
        "device": "/".join(sorted(str(device) for device in devices)) or None,
        "threads": max(threads, default=None),
    }


USUAL = ("num_gpus", "batch_size", "learning_rate", "seed")


@dataclass(frozen=True, kw_only=True)
class Combination:
    """The cells that share every swept key but the usual ones. settings: these keys; of: their label, "" for none."""

    settings: Mapping[str, Any]
    cells: tuple[Cell, ...]

    @property
    def of(self) -> str:
        """`gradient_sync=ddp`."""
        return label(self.settings)

    @property
    def trials(self) -> int:
        """How many trainings it has."""
        return sum(len(cell.trials) for cell in self.cells)


def combinations(cells: Sequence[Cell], recommendation: Part | None = None) -> list[Combination]:
    """The combinations of a study, the recommended cell's first, then by their number of trainings.

    recommendation: of `recommendation.choose`; None or without a choice: the one with most trainings stands first.
    """
    members: dict[str, list[Cell]] = {}
    for cell in cells:
        members.setdefault(key_of(cell.params, without=USUAL), []).append(cell)
    found = [Combination(settings=_settings(group[0].params), cells=tuple(group)) for group in members.values()]
    choice = (recommendation or {}).get("choice")
    wanted = _settings(choice["params"]) if choice is not None and present(choice) else None
    return sorted(found, key=lambda each: (each.settings != wanted, -each.trials))


def _settings(params: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in params.items() if key not in USUAL}
