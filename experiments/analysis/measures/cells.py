"""Trials gathered into cells, and cells into combinations.

A cell is one choice of swept values; its trials differ in the seed. A combination is the cells that differ only in
num_gpus, batch size and learning rate. Any other swept key (gradient_sync, the optimizer …) may change both the time of
a step and what a step learns, so each combination has separate laws.
"""

import json
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from scalestudy.experiments.analysis.measures.intervals import ENOUGH_SEEDS
from scalestudy.experiments.analysis.measures.metric import StudyMetric
from scalestudy.experiments.analysis.measures.parts import (
    Figure,
    Row,
    median,
    missing,
    present,
    spread,
)
from scalestudy.experiments.analysis.measures.trial import Line, Trial
from scalestudy.experiments.analysis.measures.units import plural
from scalestudy.experiments.analysis.measures.usable import (
    COUNTED,
    CUT,
    PHASES,
    STATUSES,
    TIMED,
    Usable,
    accelerators_of,
    best_value,
    curve,
    elapsed_seconds,
    final_value,
    timings_by_step,
    undisturbed_phase_seconds,
    undisturbed_rates,
    undisturbed_step_seconds,
    undisturbed_token_rates,
    usable,
    without_timing_runs,
)
from scalestudy.experiments.plan.plan import Plan, WithParams, cell_of, label
from scalestudy.experiments.plan.timing_flags import TimingFlag, doubts
from scalestudy.experiments.plan.timing_runs import step_key

WARMING_UP = "its trials were stopped at their first evaluation, before which they warmed up"
NO_TIMES = "its trials have recorded no time"
NO_TIMING_RUN = "no timing run of its workers and batch size ended well"
FLAG_WORDS: Mapping[str, str] = {
    TimingFlag.OVERSUBSCRIBED: "more threads than cores",
    TimingFlag.SHARED_NODE: "other work ran on the same node",
    TimingFlag.STARVED: "other work, or a limit on CPUs, took cores from its workers{}",
    TimingFlag.RESUMED: "resumed from a checkpoint",
    TimingFlag.WARM_UP_INCLUDED: "too few steps to leave the warm-up out",
    TimingFlag.THROTTLED: "heat or too little power held a GPU's clocks down",
    TimingFlag.SHARED_GPU: "other processes computed on a GPU",
}
USUAL = ("num_gpus", "batch_size", "learning_rate", "seed")
NUM_GPUS = ("num_gpus",)


@dataclass(frozen=True, kw_only=True)
class Cell(WithParams):
    """The trials of one cell."""

    params: Mapping[str, Any]  # without the seed
    planned: int  # how many trials the plan has for it
    trials: tuple[Trial, ...]
    metric: StudyMetric  # what the study compares its trials by
    timings: tuple[Trial, ...] = ()
    """The runs that timed its steps apart, in order."""
    lent: bool = False
    """Whether its trials ran with another num_gpus. Their epochs count, their times do not (docs/formulas.md §7)."""
    not_lent: int = 0
    """How many trainings with fewer workers ran out of memory, which says nothing about this cell."""

    @cached_property
    def label(self) -> str:
        """`workers=2 batch=256 lr=0.2`."""
        return label(self.params)

    def with_status(self, statuses: Sequence[str]) -> list[Trial]:
        """Return the trials that ended in one of these statuses."""
        return [trial for trial in self.trials if trial.status in statuses]

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
        """Its trials that ran with its num_gpus: none if they are lent."""
        return () if self.lent else self.trials

    @property
    def is_timed(self) -> bool:
        """Whether its times can be known. With lent trials it needs a timing run."""
        return not self.lent or self.undisturbed_epoch_seconds is not None

    @property
    def flags(self) -> list[str]:
        """Every flag of some trial, sorted. If there are timing runs, doubts about timings come from them alone."""
        flags = {flag for trial in self.own for flag in trial.flags}
        if self.timings:
            flags = flags.difference(doubts(flags)) | {flag for timing in self.timings for flag in timing.flags}
        return sorted(flags)

    @property
    def starved_share(self) -> float | None:
        """The share of their computing time in which the most starved of the trials that are timed had no core."""
        starved = [trial for trial in self.timings or self.own if TimingFlag.STARVED in trial.flags]
        shares = [[epoch.starved_share for epoch in trial.epochs] for trial in starved]
        medians = [median([share for share in each if share is not None]) for each in shares]
        return max((share for share in medians if share is not None), default=None)

    @property
    def undisturbed_epoch_seconds(self) -> float | None:
        """Seconds an epoch: the median step of the timing runs, times the steps of an epoch. None without such runs."""
        seconds = undisturbed_step_seconds(self.timings)
        return None if not seconds or self.steps is None else statistics.median(seconds) * self.steps

    @property
    def nodes(self) -> int:
        """The number of nodes of the workers that its times come from."""
        timed = self.timings if self.timings and self.timed else self.own
        return max((trial.nodes for trial in timed if trial.timed), default=1)

    @cached_property
    def steps(self) -> float | None:
        """Steps of a whole epoch, or None if none was recorded."""
        epochs = [epoch for trial in self.trials for epoch in trial.epochs]
        return max((count for epoch in epochs if (count := epoch.steps_at(self.batch_size))), default=None)

    def curve(self, trial: Trial) -> list[tuple[float, float]]:
        """Return `usable.curve` of one of its trials, in the cell's own time; empty if that can't be known."""
        return self._curves.get(trial.trial_id, [])

    @cached_property
    def _curves(self) -> dict[str, list[tuple[float, float]]]:
        """The curves of all its trials, by their ids: every target asks for them."""
        trials = self.trials if self.is_timed else ()
        return {trial.trial_id: curve(trial, self.metric, self._epoch_seconds(trial)) for trial in trials}

    def elapsed_seconds(self, trial: Trial) -> list[float]:
        """Return `usable.elapsed_seconds` of one of its trials, as `curve` has them."""
        return elapsed_seconds(trial, self._epoch_seconds(trial)) if self.is_timed else []

    def _epoch_seconds(self, trial: Trial) -> float | None:
        """Return the undisturbed seconds of an epoch, None for those of the trial itself.

        A trial that ran on more nodes than others takes the others' seconds.
        """
        seconds = self.undisturbed_epoch_seconds
        if seconds is None and trial.on_more_nodes:
            seconds = median([known for other in self.timed if (known := epoch_seconds(other)) is not None])
        return seconds


def key_of(params: Mapping[str, Any], without: Sequence[str] = ()) -> str:
    """Return parameters as a canonical string. without: keys that are left out."""
    return _canonical({key: value for key, value in params.items() if key not in without})


_canonical = json.JSONEncoder(
    sort_keys=True
).encode  # `json.dumps` would make an encoder for each of many thousand keys


def gather(plan: Plan, lines: Sequence[Line] | Usable, metric: StudyMetric) -> list[Cell]:
    """Gather the cells of a study, in the plan's order, each with its timing runs that ended well.

    Trials that the plan lacks make further cells, last. An adaptive study gets each batch size and rate that it trained
    with every num_gpus. lines: of `trials.jsonl`; only usable ones count (`usable.usable`).
    """
    trials = usable(lines).trials
    timings = timings_by_step(trials)
    planned = Counter(key_of(trial.cell) for trial in plan.trials)
    params = {key_of(cell): cell for cell in plan.cells}
    members: dict[str, list[Trial]] = {}
    for trial in without_timing_runs(trials):
        cell = cell_of(trial.params)
        params.setdefault(key_of(cell), cell)
        members.setdefault(key_of(cell), []).append(trial)
    lent: dict[str, list[Trial]] = {}  # of an adaptive study, by batch size and rate
    if plan.is_adaptive:
        for key, trained_there in members.items():
            lent.setdefault(key_of(params[key], without=NUM_GPUS), []).extend(trained_there)
        trained = {key_of(cell, without=NUM_GPUS): cell for cell in params.values()}
        stated = [{**cell, "num_gpus": size} for cell in trained.values() for size in plan.sizes]
        params = {key_of(cell): cell for cell in stated if cell["batch_size"] >= cell["num_gpus"]} | params
    cells = []
    for key, cell in params.items():
        own = tuple(members.get(key, ()))
        made = Cell(
            params=cell, planned=planned[key], trials=own, metric=metric, timings=timings.get(step_key(cell), ())
        )
        if plan.is_adaptive and not own:
            made = _lent(made, lent.get(key_of(cell, without=NUM_GPUS), ()))
        cells.append(made)
    return cells


def _lent(cell: Cell, trainings: Sequence[Trial]) -> Cell:
    """Return the cell with the same trainings with another num_gpus.

    A training that ran out of memory says nothing about a cell with more workers, each of which has fewer examples.
    """
    lent = [trial for trial in trainings if trial.status != "out_of_memory" or cell.num_gpus <= trial.num_gpus]
    return replace(cell, planned=0, trials=tuple(lent), lent=True, not_lent=len(trainings) - len(lent))


def learnt_label(params: Mapping[str, Any]) -> str:
    """Return `batch=256 lr=0.2`: a cell's label without num_gpus, for what does not depend on them."""
    return label({key: value for key, value in params.items() if key != "num_gpus"})


def cell_row(cell: Cell) -> dict[str, Any]:
    """Return medians over seeds, with their range, of the cell's metric, seconds an epoch, samples/s and phases.

    test_accuracy (or test_ with another metric's name) is the metric after the last epoch, as in the book.
    best_test_accuracy is the best after any epoch. Both are over trials that did not fail. epoch_seconds is a median
    over a trial's epochs, without evaluation. timed_apart says whether timing runs measured the times. kind is
    lent if the trials are another num_gpus's. nodes, if there are several, counts the nodes of the workers that were
    timed. details holds what training picked by itself, if it picked anything. stopped_after lists the epochs of each
    trial that was cut, early or at its target: its last metric is no whole training's. starved_share, if the cell has
    the flag, is the cell's. tokens_per_second is there if the task counts tokens.
    """
    untimed, metric = why_untimed(cell), cell.metric
    picked: dict[str, dict[str, Any]] = {}
    for trial in cell.own:
        for name, value in trial.details.items():
            picked.setdefault(name, {})[json.dumps(value, sort_keys=True)] = value
    details = {name: list(values.values()) for name, values in picked.items()}
    return {
        "label": cell.label,
        "params": dict(cell.params),
        "kind": "lent" if cell.lent else "measured",
        "trials": {"planned": cell.planned, **count_statuses(cell.own)},
        metric.key: spread((final_value(trial, metric) for trial in cell.timed), untimed),
        metric.best_key: spread((best_value(trial, metric) for trial in cell.timed), untimed),
        **_times(cell),
        **worker_device(cell.trials),
        **({"nodes": cell.nodes} if cell.nodes > 1 else {}),
        "flags": cell.flags,
        **({"starved_share": cell.starved_share} if TimingFlag.STARVED in cell.flags else {}),
        "stopped_after": sorted(len(trial.epochs) for trial in cell.with_status(CUT)),
        **({"details": details} if details else {}),
    }


def examples_of(cells: Iterable[Cell]) -> int | None:
    """Return the training examples of a whole period, such as an epoch, or None if no training recorded them."""
    periods = [period for cell in cells for trial in cell.trials for period in trial.epochs]
    return max((int(period.samples) for period in periods if period.samples), default=None)


def _times(cell: Cell) -> dict[str, Any]:
    """Return seconds an epoch, samples/s and seconds a step: from the timing runs, else from its trials."""
    if cell.timings and cell.timed:
        untimed, steps = why_no_time(cell), cell.steps
        seconds = [] if steps is None else [each * steps for each in undisturbed_step_seconds(cell.timings)]
        return {
            "epoch_seconds": spread(seconds, untimed),
            "samples_per_second": spread(undisturbed_rates(cell.timings), untimed),
            **_token_rate(undisturbed_token_rates(cell.timings)),
            "step_seconds": undisturbed_phase_seconds(cell.timings),
            "timed_apart": True,
        }
    timed, untimed = cell.timed if cell.is_timed else [], why_no_time(cell)
    if timed and not any(trial.timed for trial in timed):
        untimed = WARMING_UP if any(trial.without_first for trial in timed) else NO_TIMES
    return {
        "epoch_seconds": spread((epoch_seconds(trial) for trial in timed), untimed),
        "samples_per_second": spread((throughput(trial) for trial in timed), untimed),
        **_token_rate([rate for trial in timed if (rate := token_throughput(trial)) is not None]),
        "step_seconds": step_seconds(timed),
        "timed_apart": False,
    }


def _token_rate(rates: Sequence[float]) -> dict[str, Figure]:
    """Return tokens/s as a part of a row; nothing where no task counts tokens."""
    return {"tokens_per_second": spread(rates, NO_TIMES)} if rates else {}


def count_statuses(trials: Sequence[Trial]) -> dict[str, int]:
    """Return how many trials ended in each status."""
    counts = Counter(trial.status for trial in trials)
    return {status: counts[status] for status in STATUSES}


def why_no_time(cell: Cell) -> str:
    """Return why a cell has no times, as a clause."""
    return NO_TIMING_RUN if cell.trials and not cell.is_timed else why_untimed(cell)


def why_untimed(cell: Cell) -> str:
    """Return why a cell has no figures, as a clause."""
    if cell.not_lent and not cell.trials:
        return (
            "its trainings ran out of memory with fewer workers, which says nothing about this cell: train it with its "
            "own workers"
        )
    ended = [f"{count} {status.replace('_', ' ')}" for status, count in count_statuses(cell.trials).items() if count]
    return f"no trial of this cell finished ({', '.join(ended)})" if ended else "no trial of this cell was run"


def epoch_seconds(trial: Trial) -> float | None:
    """Return the median training seconds an epoch, or of the longest period.

    Periods of a training in tokens differ by a step.
    """
    timed = [(epoch.train_seconds, epoch.steps) for epoch in trial.timed if epoch.train_seconds]
    counts = {steps for _, steps in timed}
    if None in counts or len(counts) < 2:
        return median([seconds for seconds, _ in timed])
    a_step = statistics.median([seconds / steps for seconds, steps in timed if steps])
    return a_step * max(steps for steps in counts if steps)


def throughput(trial: Trial) -> float | None:
    """Return the median samples/s over all workers."""
    rates = [epoch.samples_per_second for epoch in trial.timed if epoch.samples_per_second]
    return statistics.median(rates) if rates else None


def token_throughput(trial: Trial) -> float | None:
    """Return the median tokens/s over all workers; None: the task counts none."""
    return median([epoch.tokens_per_second for epoch in trial.timed if epoch.tokens_per_second])


def step_seconds(trials: Sequence[Trial]) -> Figure:
    """Return the median seconds a step of each phase, over all epochs of the trials.

    gradient_sync is its exposed part.
    """
    measured = [epoch.phases for trial in trials for epoch in trial.timed if epoch.phases]
    if not measured:
        return missing("phases were not measured")
    return {name: statistics.median(phases[name] for phases in measured) for name in PHASES}


def worker_device(trials: Sequence[Trial]) -> dict[str, Any]:
    """Return device and threads of the workers, as the trials recorded them; None if no trial started.

    accelerator, where trials record it: the type of their GPUs.
    """
    devices = {trial.world.device for trial in trials if trial.world.device}
    threads = [trial.world.threads for trial in trials if trial.world.threads]
    types = accelerators_of(trials)
    return {
        "device": "/".join(sorted(devices)) or None,
        "threads": max(threads, default=None),
        **({"accelerator": "/".join(types)} if types else {}),
    }


def seed_caveat(rows: Sequence[Row], metric: StudyMetric, *, brief: bool = False) -> str | None:
    """Say that a cell has fewer seeds than an interval needs; else None. brief: without what follows from it."""
    seeds = [row[metric.key]["n"] for row in rows if present(row[metric.key])]
    if not seeds or min(seeds) >= ENOUGH_SEEDS:
        return None
    count = plural(min(seeds), "seed") if min(seeds) == max(seeds) else f"{min(seeds)} to {max(seeds)} seeds"
    if brief:
        return f"Provisional: {count} a cell."
    return (
        f"Provisional: {count} a cell. Below five seeds, small differences in {metric.name} and in time to "
        "target may be chance."
    )


def flag_caveats(rows: Sequence[Row]) -> dict[str, str]:
    """Return, by flag, a sentence about the cells that carry it."""
    flagged = Counter(flag for row in rows for flag in row["flags"])
    most = max((found for row in rows if (found := row.get("starved_share")) is not None), default=None)
    share = "" if most is None else f", up to {most:.0%} of their computing time"
    words = {**FLAG_WORDS, TimingFlag.STARVED: FLAG_WORDS[TimingFlag.STARVED].format(share)}
    return {
        flag: f"Marked {flag} ({words.get(flag, 'see the trials')}): {plural(count, 'cell')} of {len(rows)}."
        for flag, count in sorted(flagged.items())
    }


@dataclass(frozen=True, kw_only=True)
class Combination:
    """The cells that share the value of every swept key but the usual ones."""

    settings: Mapping[str, Any]  # these keys and values
    cells: tuple[Cell, ...]

    @property
    def of(self) -> str:
        """Its label, `gradient_sync=ddp`; empty without such keys."""
        return label(self.settings)

    @property
    def trials(self) -> int:
        """How many trainings it has."""
        return sum(len(cell.trials) for cell in self.cells)


def settings_of(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the swept keys but the usual ones."""
    return {key: value for key, value in params.items() if key not in USUAL}


def combination_of(params: Mapping[str, Any]) -> str:
    """Return the label of the combination that a row with these parameters belongs to."""
    return label(settings_of(params))


def combinations(cells: Sequence[Cell], recommendation: Figure | None = None) -> list[Combination]:
    """Return the combinations of a study: the recommended cell's first, then by their number of trainings.

    recommendation: from `Analysis.recommend`. Without a choice the combination of most trainings stands first.
    """
    members: dict[str, list[Cell]] = {}
    for cell in cells:
        members.setdefault(key_of(cell.params, without=USUAL), []).append(cell)
    groups = [Combination(settings=settings_of(group[0].params), cells=tuple(group)) for group in members.values()]
    choice = (recommendation or {}).get("choice")
    wanted = settings_of(choice["params"]) if choice is not None and present(choice) else None
    return sorted(groups, key=lambda each: (each.settings != wanted, -each.trials))
