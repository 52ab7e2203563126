"""The timed steps of a study, and the law of a step's time through them (docs/formulas.md §4).

Trials of any seed and learning rate are repeats, since neither changes the time of a step. If a size has a timing run
(docs/concepts.md: Timed alone), that run stands for its trials.
"""

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from scalestudy.experiments.analysis.laws.least_squares import NoLawError
from scalestudy.experiments.analysis.laws.step_terms import Constants, Place
from scalestudy.experiments.analysis.laws.step_time import (
    MEASURE,
    StepTimeLaw,
    StepTimes,
    fit_step_time,
    held_out_errors,
)
from scalestudy.experiments.analysis.measures.cells import Cell, Combination, combinations
from scalestudy.experiments.analysis.measures.parts import Figure, estimate_part, missing, present
from scalestudy.experiments.analysis.measures.trial import Trial
from scalestudy.experiments.analysis.measures.usable import (
    undisturbed_phase_seconds,
    undisturbed_rates,
    undisturbed_step_seconds,
)

DOUBTFUL = frozenset(
    {"oversubscribed", "shared_node", "starved", "resumed", "warm_up_included", "throttled", "shared_gpu"}
)
"""No law is fitted to timings with these flags unless asked."""
SHORTEST_STEP, LONGEST_STEP = 1e-7, 1e6
"""Limits of a step's seconds. Anything beyond is a damaged record."""
ROUNDING = 1e-6
ACROSS_NODES = ("alpha_n", "beta_n")
NO_PHASES = "phases were not measured: waiting for data is part of the other constants"


@dataclass(frozen=True, kw_only=True)
class StepTiming:
    """What one trial says about a step."""

    seconds: float
    examples: float  # of all workers, the mean over an epoch, whose last step may be smaller
    data_seconds: float | None  # the part of its seconds that waited for data; None if phases were not measured


@dataclass(frozen=True, kw_only=True)
class TimedSize:
    """The steps of one num_gpus and batch size."""

    num_gpus: int
    batch_size: int
    nodes: int
    timings: tuple[StepTiming, ...]  # one or more repeats

    @property
    def across_nodes(self) -> bool:
        """Whether the workers were on several nodes."""
        return self.nodes > 1

    @property
    def per_worker_batch(self) -> float:
        """A worker's examples of a step. It is below batch_size ÷ num_gpus if epochs end in a smaller step."""
        return statistics.fmean(timing.examples for timing in self.timings) / self.num_gpus

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

    def place(self, *, with_data: bool) -> Place:
        """Return the size as a law takes it. with_data: whether the wait for data is separate."""
        return Place(
            num_gpus=self.num_gpus,
            per_worker_batch=self.per_worker_batch,
            seconds=self.seconds,
            data_seconds=(self.data_seconds or 0.0) if with_data else 0.0,
            nodes=self.nodes,
        )


@dataclass(frozen=True, kw_only=True)
class TimedSteps:
    """The timed sizes of one combination of swept keys."""

    of: str  # the combination's label
    sizes: tuple[TimedSize, ...]
    left_out: Mapping[str, int]  # how many trials each flag kept out
    flagged: bool  # whether trials with such a flag are among the timings

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
    cells: Sequence[Cell], *, include_flagged: bool = False, recommendation: Figure | None = None
) -> list[TimedSteps]:
    """Return a study's step timings by combination of swept keys.

    The recommended cell's stands first, then the one of most timings.

    cells: from `cells.gather`. include_flagged: whether to use timings that a flag puts in doubt. recommendation: from
    `Analysis.recommend`.
    """
    found = [_timed_steps(combination, include_flagged) for combination in combinations(cells, recommendation)]
    choice = (recommendation or {}).get("choice")
    first = found[:1] if choice is not None and present(choice) else []
    return first + sorted(found[len(first) :], key=lambda steps: -sum(len(size.timings) for size in steps.sizes))


def _timed_steps(combination: Combination, include_flagged: bool) -> TimedSteps:
    left_out: Counter[str] = Counter()
    groups: dict[tuple[int, int, int], list[StepTiming]] = {}
    flagged = False
    for cell, trial in _trials(combination.cells):
        doubts = DOUBTFUL & trial.flags
        if doubts and not include_flagged:
            left_out.update(doubts)
        elif (timing := step_timing(replace(trial, on_more_nodes=False))) is not None:  # the law knows about nodes
            flagged = flagged or bool(doubts)
            groups.setdefault((cell.num_gpus, cell.batch_size, trial.nodes), []).append(timing)
    sizes = [
        TimedSize(num_gpus=num_gpus, batch_size=batch_size, nodes=nodes, timings=tuple(timings))
        for (num_gpus, batch_size, nodes), timings in sorted(groups.items())
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
    rows = [
        (
            epoch.samples / epoch.steps / epoch.samples_per_second,
            epoch.samples / epoch.steps,
            epoch.phases["data"] if epoch.phases else None,
        )
        for epoch in trial.timed
        if epoch.samples and epoch.steps and epoch.samples_per_second
    ]
    if not rows:
        return None
    seconds, examples, waits = zip(*rows, strict=True)
    known = [wait for wait in waits if wait is not None]
    return StepTiming(
        seconds=statistics.median(seconds),
        examples=statistics.median(examples),
        data_seconds=statistics.median(known) if len(known) == len(waits) else None,
    )


def _of_timing_run(trial: Trial) -> StepTiming | None:
    seconds, rate = undisturbed_step_seconds([trial]), undisturbed_rates([trial])
    if not seconds or not rate:
        return None
    phases = undisturbed_phase_seconds([trial])
    waited = phases["data"] if present(phases) else None
    return StepTiming(seconds=seconds[0], examples=seconds[0] * rate[0], data_seconds=waited)


def throughput_part(steps: Sequence[TimedSteps]) -> Figure:
    """Return the `throughput_model` of `summary.json`, from `timed_steps`, whose first combination stands first.

    Returns:
        `{of, alpha_c, beta_c, alpha_r, beta_r, gamma, data_seconds, alpha_n, beta_n, median_error, held_out, misfit,
        points, law, flagged, others}`, or missing with a why. `others` has a part of the same form for each
        other combination of swept keys.

        Estimates are in seconds: beta_c per example, beta_r per further worker, beta_n per further node. alpha_n and
        beta_n are null unless workers spanned nodes. data_seconds is the median over the sizes with their range; the
        other constants are fitted beside each size's own. median_error is the law's relative error at sizes that it was
        not fitted to, null if none could be `held_out`. misfit: sizes differ from the law by more than their repeats
        explain, so that intervals are over the sizes.

        A point has `num_gpus`, `batch_size`, `per_worker_batch` (as timed, since the last step of an epoch may be
        smaller), `nodes` and `across_nodes`, `data_seconds`, measured_seconds (geometric mean of n repeats, one that is
        far off moved nearer), fitted_seconds with low and high. law: what `times_of` needs beside the points.
    """
    if not steps:
        return missing("the study has no cells")
    parts = [_part(each) for each in steps]
    return {**parts[0], "others": parts[1:]}


def _part(steps: TimedSteps) -> Figure:
    try:
        law = fit_step_time(steps.places)
    except NoLawError as error:
        return {"of": steps.of, **missing(f"{error}{steps.why_left_out}"), "flagged": steps.flagged}
    spans = any(size.across_nodes for size in steps.sizes)
    errors = held_out_errors(law)
    waits = [size.data_seconds for size in steps.sizes if size.data_seconds is not None]
    data_seconds: Figure = {**missing(NO_PHASES), "low": None, "high": None, "identified": False}
    if steps.phases_measured:
        data_seconds = {"value": statistics.median(waits), "low": min(waits), "high": max(waits)}
    return {
        "of": steps.of,
        **{name: _constant(law, name) for name in MEASURE if spans or name not in ACROSS_NODES},
        **({} if spans else dict.fromkeys(ACROSS_NODES)),
        "data_seconds": data_seconds,
        "median_error": statistics.median(errors) if errors else None,
        "held_out": len(errors),
        "misfit": law.fit.misfit,
        "points": [_point(size, place, law.times) for size, place in zip(steps.sizes, law.times.places, strict=True)],
        "law": {
            "constants": {name: getattr(law.times.constants, name) for name in law.times.names},
            "covariance": law.times.covariance.tolist(),
            "t": law.times.t,
            "noise": law.times.noise,
        },
        "flagged": steps.flagged,
    }


def _constant(law: StepTimeLaw, name: str) -> Figure:
    estimate = law.estimate(name)
    if estimate is not None:
        return estimate_part(estimate)
    return {**missing(law.why_absent(name)), "low": None, "high": None, "identified": False}


def _point(size: TimedSize, place: Place, times: StepTimes) -> dict[str, Any]:
    fitted = times.seconds(place.num_gpus, place.per_worker_batch, data_seconds=place.data_seconds, nodes=place.nodes)
    return {
        "num_gpus": size.num_gpus,
        "batch_size": size.batch_size,
        "per_worker_batch": place.per_worker_batch,
        "nodes": size.nodes,
        "across_nodes": size.across_nodes,
        "data_seconds": place.data_seconds,
        "measured_seconds": place.seconds[0],  # all are their mean
        "fitted_seconds": fitted.value,
        "low": fitted.low,
        "high": fitted.high,
        "n": len(place.seconds),
    }


def times_of(part: Mapping[str, Any]) -> StepTimes:
    """Return the law of a part that is there, for the time of any other step."""
    law = part["law"]
    places = tuple(
        Place(
            num_gpus=point["num_gpus"],
            per_worker_batch=point["per_worker_batch"],
            seconds=(point["measured_seconds"],) * point["n"],
            data_seconds=point["data_seconds"],
            nodes=point["nodes"],
        )
        for point in part["points"]
    )
    return StepTimes(
        constants=Constants(**law["constants"]),
        names=tuple(law["constants"]),
        covariance=np.array(law["covariance"]),
        t=law["t"],
        noise=law["noise"],
        places=places,
    )


def part_of_combination(part: Mapping[str, Any], of: str) -> Mapping[str, Any] | None:
    """Return the part of one combination of swept keys, from the part or its `others`. None if it is missing."""
    alike = [each for each in (part, *(part.get("others") or ())) if each.get("of") == of and present(each)]
    return alike[0] if alike else None
