"""The timed steps of a combination of swept keys, by num_gpus, batch size and nodes.

Trials of any seed and learning rate are repeats, since neither changes the time of a step. If a size has a timing run
(docs/concepts.md: Timed alone), that run stands for its trials.
"""

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from scalestudy.experiments.analysis.laws.step_terms import Place
from scalestudy.experiments.analysis.measures.cells import Cell, Combination
from scalestudy.experiments.analysis.measures.parts import present
from scalestudy.experiments.analysis.measures.trial import Trial
from scalestudy.experiments.analysis.measures.usable import (
    undisturbed_phase_seconds,
    undisturbed_rates,
    undisturbed_step_seconds,
)
from scalestudy.experiments.plan.timing_flags import doubts

SHORTEST_STEP, LONGEST_STEP = 1e-7, 1e6
"""Limits of a step's seconds. Anything beyond is a damaged record."""
ROUNDING = 1e-6


@dataclass(frozen=True, kw_only=True)
class StepTiming:
    """What one trial says about a step."""

    seconds: float
    examples: float  # of all workers, the mean over an epoch, whose last step may be smaller
    data_seconds: float | None  # the part of its seconds that waited for data; None if phases were not measured
    warm_up: float | None = None  # by how many seconds its first epoch took longer; None of a timing run


@dataclass(frozen=True, kw_only=True)
class TimedSize:
    """The steps of one num_gpus and batch size."""

    num_gpus: int
    batch_size: int
    nodes: int
    timings: tuple[StepTiming, ...]  # one or more repeats
    doubtful: bool = False  # whether flags put all of its timings in doubt

    @property
    def across_nodes(self) -> bool:
        """Whether the workers were on several nodes."""
        return self.nodes > 1

    @property
    def examples(self) -> float:
        """Examples of a step, of all workers. They are below batch_size if epochs end in a smaller step."""
        return statistics.fmean(timing.examples for timing in self.timings)

    @property
    def seconds(self) -> tuple[float, ...]:
        """Seconds of a step, a value a repeat."""
        return tuple(timing.seconds for timing in self.timings)

    @property
    def data_seconds(self) -> float | None:
        """The exposed wait for data in a step: median of the repeats, or None if one was not measured."""
        waits = [timing.data_seconds for timing in self.timings]
        known = [wait for wait in waits if wait is not None]
        return statistics.median(known) if len(known) == len(waits) else None

    @property
    def warm_up(self) -> float:
        """By how many seconds a first epoch takes longer, 0 or above: median of the repeats, 0 for timing runs."""
        known = [timing.warm_up for timing in self.timings if timing.warm_up is not None]
        return max(statistics.median(known), 0.0) if known else 0.0

    def place(self, *, with_data: bool) -> Place:
        """Return the size as a law takes it. with_data: whether the wait for data is separate."""
        return Place(
            num_gpus=self.num_gpus,
            per_worker_batch=self.examples / self.num_gpus,
            seconds=self.seconds,
            data_seconds=(self.data_seconds or 0.0) if with_data else 0.0,
            nodes=self.nodes,
        )


@dataclass(frozen=True, kw_only=True)
class TimedSteps:
    """The timed sizes of one combination of swept keys."""

    of: str  # the combination's label
    sizes: tuple[TimedSize, ...]  # in order
    left_out: Mapping[str, int]  # how many trials each flag kept out of the law
    flagged: bool  # whether trials with such a flag are in the law

    @cached_property
    def lawful(self) -> tuple[TimedSize, ...]:
        """The sizes that a law may be fitted to."""
        return tuple(size for size in self.sizes if not size.doubtful)

    @cached_property
    def phases_measured(self) -> bool:
        """Whether the wait for data is known at every size."""
        return all(size.data_seconds is not None for size in self.sizes)

    @property
    def places(self) -> list[Place]:
        """The sizes as a law takes them."""
        return [size.place(with_data=self.phases_measured) for size in self.sizes]

    @property
    def why_left_out(self) -> str:
        """What flags kept out, in brackets; empty if nothing was."""
        if not self.left_out:
            return ""
        counts = ", ".join(f"{count} {flag}" for flag, count in sorted(self.left_out.items()))
        return f" (left out by their flags: {counts})"


def timed_steps(
    combination: Combination, *, include_flagged: bool = False, runs: Sequence[Trial] | None = None
) -> TimedSteps:
    """Return the step timings of a combination.

    A size of which every timing is in doubt is doubtful; of any other, the sound ones stand. include_flagged: take all
    timings as sound. runs: timing runs that stand for all timings, also of sizes that no training had; None: trainings
    are timed too.
    """
    left_out: Counter[str] = Counter()
    sound: dict[tuple[int, int, int], list[StepTiming]] = defaultdict(list)
    doubtful: dict[tuple[int, int, int], list[StepTiming]] = defaultdict(list)
    flagged = False
    pairs = _trials(combination.cells) if runs is None else ((trial, trial) for trial in runs)
    for cell, trial in pairs:
        timing = step_timing(replace(trial, on_more_nodes=False))  # the law knows about nodes
        found = doubts(trial.flags)
        kept_out = [] if include_flagged else found
        left_out.update(kept_out)
        if timing is not None:
            (doubtful if kept_out else sound)[cell.num_gpus, cell.batch_size, trial.nodes].append(timing)
            flagged |= include_flagged and bool(found)
    sizes = [
        TimedSize(
            num_gpus=size[0],
            batch_size=size[1],
            nodes=size[2],
            timings=tuple(sound[size] or doubtful[size]),
            doubtful=not sound[size],
        )
        for size in sorted({*sound, *doubtful})
    ]
    return TimedSteps(of=combination.of, sizes=tuple(sizes), left_out=dict(left_out), flagged=flagged)


def _trials(cells: Sequence[Cell]) -> Iterator[tuple[Cell, Trial]]:
    """Return the trials that timings are taken from, each once, though all learning rates share timing runs."""
    seen: set[str] = set()
    for cell in cells:
        if not cell.timings:
            yield from ((cell, trial) for trial in cell.timed if trial.num_gpus == cell.num_gpus)
        for timing in cell.timings if cell.timed else ():
            if timing.trial_id not in seen:
                seen.add(timing.trial_id)
                yield cell, timing


def step_timing(trial: Trial) -> StepTiming | None:
    """Return the time of a trial's steps, or None if no epoch has credible steps, examples and time.

    For a training these are medians over its epochs. For a timing run, whose epochs differ in length, they are means
    over its steps.
    """
    step = _of_timing_run(trial) if trial.is_timing else _of_training(trial)
    if step is None:
        return None
    from_one_to_all = 1 <= step.examples <= trial.batch_size * (1 + ROUNDING)
    if not from_one_to_all or not SHORTEST_STEP <= step.seconds <= LONGEST_STEP:
        return None
    if step.data_seconds is not None and step.data_seconds >= step.seconds:
        return replace(step, data_seconds=None)
    return step


def _of_training(trial: Trial) -> StepTiming | None:
    rows: list[tuple[float, float, float | None]] = []
    for epoch in trial.timed:
        steps, rate = epoch.steps_at(trial.batch_size), epoch.samples_per_second
        if steps and epoch.train_seconds:
            examples = epoch.samples / steps if epoch.samples else float(trial.batch_size)
            seconds = examples / rate if rate and not trial.whole_periods else epoch.train_seconds / steps
            rows.append((seconds, examples, epoch.phases["data"] if epoch.phases else None))
    if not rows:
        return None
    seconds_of, examples_of, waits = zip(*rows, strict=True)
    known = [wait for wait in waits if wait is not None]
    step, first = statistics.median(seconds_of), trial.epochs[0]
    steps = first.steps_at(trial.batch_size)
    return StepTiming(
        seconds=step,
        examples=statistics.median(examples_of),
        data_seconds=statistics.median(known) if len(known) == len(waits) else None,
        warm_up=first.train_seconds - step * steps if first.train_seconds and steps else None,
    )


def _of_timing_run(trial: Trial) -> StepTiming | None:
    seconds, rate = undisturbed_step_seconds([trial]), undisturbed_rates([trial])
    if not seconds or not rate:
        return None
    phases = undisturbed_phase_seconds([trial])
    waited = phases["data"] if present(phases) else None
    return StepTiming(seconds=seconds[0], examples=seconds[0] * rate[0], data_seconds=waited)
