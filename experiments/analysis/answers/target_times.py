"""The estimated and measured times of all cells to a target, and which of them is near enough to the fastest."""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from scalestudy.experiments.analysis.answers.posterior import Posterior, Times
from scalestudy.experiments.analysis.laws.estimate import ENDS, LEVEL
from scalestudy.experiments.analysis.laws.shrinkage import Vector
from scalestudy.experiments.analysis.measures.cells import combination_of, key_of
from scalestudy.experiments.analysis.measures.targets import cost_of, target_row
from scalestudy.experiments.analysis.measures.units import plural

Option = Mapping[str, Any]
"""A row of `TargetTimes` whose seconds are known."""
SAME_TIME = 1e-3
"""Share of a time by which others may be longer and are still the same: far less than any study tells apart."""
ROUNDING = 1e-9
"""Of an octave: 0.1 and 0.2 are one apart."""
NO_RATIO = 1e-12
"""Standard deviation of a ratio's logarithm below which the ratio counts as exact."""
SETTLED = 0.9
"""Chance of being near enough from which on the question is settled; below one minus it, it is settled as well."""
MOST_SEEDS = 50
"""The most seeds that are worth advising."""
FUTURES, FUTURE_DRAWS = 1000, 500
"""What seeds may show is so often drawn, and the times after each from so many draws."""
SELDOM = 0.01
"""A cell that is the fastest in a smaller share of the draws is left out there."""


@dataclass(frozen=True, kw_only=True)
class TargetTimes:
    """The times of all cells to one target."""

    target: float
    rows: Sequence[dict[str, Any]]  # as `times_to` says, in the cells' order
    times: Times  # what they rest on

    @property
    def options(self) -> list[dict[str, Any]]:
        """The rows with an estimate."""
        return [row for row in self.rows if row["seconds"] is not None]


def times_to(posterior: Posterior, targets: Sequence[float], price: float | None = None) -> dict[float, TargetTimes]:
    """Time all cells to each target: measured, and estimated from all cells of a combination together.

    Rows come from `targets.target_row`, with what was measured as `measured_seconds`; seconds, worker_seconds, cost and
    interval (90 %) are estimates, null with a why in a cell whose median over seeds is not known. There is no interval
    where trainings were stopped for being behind and no other shows what they still had before them: `unseen` of them.
    """
    return {target: _told(posterior, target, price) for target in targets}


def _told(posterior: Posterior, target: float, price: float | None) -> TargetTimes:
    times = posterior.times(target)
    ends = np.quantile(times.draws, ENDS, axis=0) if times.labels else np.empty((2, 0))
    found = {label: place for place, label in enumerate(times.labels)}
    rows = []
    for cell in posterior.cells:
        of = combination_of(cell.params)
        row = target_row(cell, target, posterior.confirmed(of, target))
        measured, place = row["seconds"], found.get(cell.label) if row["seconds"] is not None else None
        seconds = None if place is None else math.exp(times.mean[place])
        learnt = None if place is None else posterior.learnt(of, target)
        unseen = learnt.unseen if learnt else 0
        interval = None
        if place is not None and not unseen:
            interval = {"kind": "estimate", "low": math.exp(ends[0, place]), "high": math.exp(ends[1, place])}
        worker_seconds = None if seconds is None else seconds * cell.num_gpus
        why = row["why"]
        if why is None and seconds is None:
            missed = row["n_seeds"] - row["reached"]
            why = "its records do not tell its steps"
            if cell.learning_rate <= 0:
                why = f"its learning rate is {cell.learning_rate:g}"
            elif missed:
                why = f"{missed} of {plural(row['n_seeds'], 'seed')} did not reach {target:g}"
        rows.append(
            {
                **row,
                "seconds": seconds,
                "worker_seconds": worker_seconds,
                "cost": cost_of(worker_seconds, price),
                "interval": interval,
                "measured_seconds": measured,
                "unseen": unseen,
                "why": why,
            }
        )
    return TargetTimes(target=target, rows=rows, times=times)


def pareto(options: Sequence[Option]) -> list[Option]:
    """Return the options that no other beats in both seconds and worker-seconds, fastest first.

    Of equals the first stays.
    """
    front: list[Option] = []
    for option in sorted(options, key=lambda option: (option["seconds"], option["worker_seconds"])):
        if not front or option["worker_seconds"] < front[-1]["worker_seconds"]:
            front.append(option)
    return front


@dataclass(frozen=True, kw_only=True)
class Compared:
    """The options' times compared, draw by draw (docs/formulas.md §6)."""

    options: Sequence[Option]
    times: Times  # of the options, in their order
    tolerance: float  # how much longer than the fastest is near enough, as a share
    confidence: float  # from which chance on an option counts as near enough

    @classmethod
    def of(cls, options: Sequence[Option], times: Times, *, tolerance: float, confidence: float) -> "Compared":
        """Compare options that are among the times."""
        own = times.only([option["label"] for option in options])
        return cls(options=options, times=own, tolerance=tolerance, confidence=confidence)

    @cached_property
    def fastest(self) -> Option:
        """The option of the least time; of those that take as long, but for `SAME_TIME`, the cheapest."""
        least = min(option["seconds"] for option in self.options)
        soonest = [option for option in self.options if option["seconds"] <= least * (1 + SAME_TIME)]
        return min(soonest, key=lambda option: (option["worker_seconds"], option["seconds"]))

    @cached_property
    def recommended(self) -> Option:
        """The cheapest option that is near enough with the confidence: the fastest itself, if no cheaper one is.

        The fastest counts whatever its chance, so that nothing is recommended that is both slower and dearer.
        """
        near = [option for option in self.options if self.probability[option["label"]] >= self.confidence]
        return min((*near, self.fastest), key=lambda option: (option["worker_seconds"], option["seconds"]))

    @cached_property
    def probability(self) -> Mapping[str, float]:
        """Of each option, the share of the draws in which its time is within the tolerance of the least one."""
        shares = (self.times.draws <= self._enough[:, np.newaxis]).mean(axis=0).tolist()
        return {option["label"]: share for option, share in zip(self.options, shares, strict=True)}

    @cached_property
    def _enough(self) -> Vector:
        """The longest time (logarithm) that is near enough, by draw (k,)."""
        return np.asarray(self.times.draws[:, self._apart].min(axis=1) + math.log1p(self.tolerance))

    @cached_property
    def _apart(self) -> list[int]:
        """The places of options an octave apart in batch size and rate, by which the least time is told.

        Of options nearer to one another it is the one of the least estimate. The least of many draws that hardly differ
        would fall with their number, and a finer range would change the answer.
        """
        nearest: dict[str, int] = {}
        for place in sorted(range(len(self.options)), key=lambda place: float(self.options[place]["seconds"])):
            params = self.options[place]["params"]
            octaves = {key: math.floor(math.log2(params[key]) + ROUNDING) for key in ("batch_size", "learning_rate")}
            nearest.setdefault(key_of({**params, **octaves}), place)
        return sorted(nearest.values())

    @cached_property
    def _place(self) -> Mapping[str, int]:
        return {option["label"]: place for place, option in enumerate(self.options)}

    def ratio(self, option: Option) -> float:
        """Return its estimated time over the fastest's."""
        return float(option["seconds"] / self.fastest["seconds"])

    def rival(self, option: Option) -> Option | None:
        """Return the option that is the fastest in most of the draws in which this one isn't near enough, if any."""
        beaten = self.times.draws[self.times.draws[:, self._place[option["label"]]] > self._enough]
        if not len(beaten):
            return None
        return self.options[self._apart[int(np.bincount(beaten[:, self._apart].argmin(axis=1)).argmax())]]

    def seeds_to_settle(self, option: Option, rival: Option, *, steps_alone: bool) -> int | None:
        """Return the fewest more seeds of an option and its rival that should show whether it is near enough.

        They are more likely than not to bring its probability above 0.9 or below 0.1. What is drawn of the two stands
        for what the seeds may show; all draws are then corrected by what was shown (Matheron's rule).

        Args:
            option: in doubt.
            rival: `rival` of it.
            steps_alone: whether timing runs give the seconds of a step, of which seeds then say nothing.

        Returns:
            None for more than `MOST_SEEDS`.
        """
        two = [self._place[each["label"]] for each in (option, rival)]
        least = np.bincount(self.times.draws[:, self._apart].argmin(axis=1)) / len(self.times.draws)
        fast = [self._apart[index] for index in np.flatnonzero(least >= SELDOM).tolist()]
        columns = [*two, *(place for place in fast if place not in two)]
        draws, learnt = self.times.draws[:, columns], self.times.learnt_of(two)
        seen, noise = learnt, self.times.of_training[two]
        if not steps_alone:
            seen = np.hstack([learnt, draws[:, :2] - learnt])
            noise = np.concatenate([noise, self.times.of_run[two]])
        off = seen - seen.mean(axis=0)
        shared, own = (part.T @ off / len(off) for part in (draws - draws.mean(axis=0), off))
        errors = np.random.default_rng(0).normal(size=seen.shape)

        def settled(seeds: int) -> bool:
            spread = noise / math.sqrt(seeds)
            gain = shared @ np.linalg.pinv(own + np.diag(spread**2), hermitian=True)
            shown = (seen + spread * errors) @ gain.T
            left = (draws - shown)[-FUTURE_DRAWS:]  # what is open, whatever is shown
            near = np.full((FUTURES, FUTURE_DRAWS), True)
            for other in range(1, len(columns)):  # one comparison of all draws in all futures at a time
                room = math.log1p(self.tolerance) - (shown[:FUTURES, 0] - shown[:FUTURES, other])
                near &= left[:, 0] - left[:, other] <= room[:, np.newaxis]
            return bool((np.abs(near.mean(axis=1) - 1 / 2) >= SETTLED - 1 / 2).mean() >= 1 / 2)

        if not settled(MOST_SEEDS):
            return None
        return 1 + bisect_left(range(1, MOST_SEEDS), True, key=settled)

    def ties(self, option: Option, role: str) -> list[str]:
        """Return labels of the options that it can't be told apart from, the nearest first: 90 %, all at once.

        The role decides the figure that is compared.
        """
        power, figure = (1, "worker_seconds") if role == "cheapest" else (0, "seconds")
        others = sorted(
            (other for other in self.options if other["label"] != option["label"]), key=lambda other: other[figure]
        )
        if not others:
            return []
        workers = [other["params"]["num_gpus"] / option["params"]["num_gpus"] for other in others]
        scores = self.times.draws[:, [self._place[other["label"]] for other in others]]  # a copy, worked on in place
        scores -= self.times.draws[:, [self._place[option["label"]]]]
        scores += power * np.log(workers)
        mean, deviation = scores.mean(axis=0), np.maximum(scores.std(axis=0), NO_RATIO)
        scores -= mean
        scores /= deviation
        most = np.quantile(np.abs(scores, out=scores).max(axis=1), LEVEL)
        apart = np.abs(mean) > most * deviation
        return [other["label"] for other, differs in zip(others, apart, strict=True) if not differs]
