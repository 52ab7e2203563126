"""Stage 8, analysis: trials gathered into cells – every swept parameter except the seed (METHODS §6)."""

import json
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.analysis.metric import StudyMetric
from experiments.analysis.parts import Part, missing, spread
from experiments.analysis.trial_measures import (
    COUNTED,
    PHASES,
    TIMED,
    Trial,
    best_value,
    epoch_phases,
    final_value,
    samples_per_second,
    timed_epochs,
)
from experiments.plan import Plan, cell_of, label

STATUSES = ("finished", "stopped", "diverged", "out_of_memory", "failed", "skipped")


@dataclass(frozen=True, kw_only=True)
class Cell:
    """The trials of one cell. params: without the seed. planned: how many trials the plan has for it. metric: what
    the study compares its trials by.
    """

    params: Mapping[str, Any]
    planned: int
    trials: tuple[Trial, ...]
    metric: StudyMetric

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
    def flags(self) -> list[str]:
        """Every flag that some trial of the cell carries, sorted."""
        return sorted({flag for trial in self.trials for flag in trial.get("flags") or ()})


def key_of(params: Mapping[str, Any], without: Sequence[str] = ()) -> str:
    """Parameters as a canonical string, the ones in `without` left out."""
    return json.dumps({key: value for key, value in params.items() if key not in without}, sort_keys=True)


def gather(plan: Plan, trials: Sequence[Trial], metric: StudyMetric) -> list[Cell]:
    """The cells of a study, in the plan's order. Trials that the plan does not have make cells of their own, last."""
    planned = Counter(key_of(trial.cell) for trial in plan.trials)
    params = {key_of(trial.cell): trial.cell for trial in plan.trials}
    members: dict[str, list[Trial]] = {}
    for trial in trials:
        cell = cell_of(trial["params"])
        params.setdefault(key_of(cell), cell)
        members.setdefault(key_of(cell), []).append(trial)
    return [
        Cell(params=cell, planned=planned[key], trials=tuple(members.get(key, ())), metric=metric)
        for key, cell in params.items()
    ]


def cell_row(cell: Cell) -> dict[str, Any]:
    """The cell's own figures, medians over seeds with their range: metric, seconds an epoch, samples/s, phases.

    test_accuracy (or test_ and the name of another metric) is the one after the last epoch, as in the book;
    best_test_accuracy the best after any epoch; both over finished and stopped trials. epoch_seconds: median over a
    trial's epochs, evaluation not included. details: what training picked by itself, only where it picked something.
    """
    untimed, metric = why_untimed(cell), cell.metric
    return {
        "label": cell.label,
        "params": dict(cell.params),
        "trials": {"planned": cell.planned, **count_statuses(cell.trials)},
        metric.key: spread((final_value(trial, metric) for trial in cell.timed), untimed),
        metric.best_key: spread((best_value(trial, metric) for trial in cell.timed), untimed),
        "epoch_seconds": spread((epoch_seconds(trial) for trial in cell.timed), untimed),
        "samples_per_second": spread((throughput(trial) for trial in cell.timed), untimed),
        "step_seconds": step_seconds(cell.timed),
        **worker_device(cell.trials),
        "flags": cell.flags,
        **picked(cell.trials),
    }


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


def why_untimed(cell: Cell) -> str:
    """Why a cell has no figures, in words."""
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
