"""What a recommendation is worth in a world whose truth is known."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from unittest.mock import patch

import numpy as np

from scalestudy.experiments.analysis.answers.analysis import Analysis
from scalestudy.experiments.analysis.answers.posterior import Posterior
from scalestudy.experiments.analysis.answers.target_times import times_to
from scalestudy.experiments.analysis.laws import shrinkage, step_seconds
from scalestudy.experiments.analysis.measures.parts import present
from tests.bench.oracle import fastest
from tests.support.worlds import TARGET, World, place_of

NEAR = 1.05
"""A choice is right if it takes at most so many times as long as the best of the cells that ran."""
STRAIGHT = 1e-4
"""Standard deviation of cells from the law, in logarithms, if only the law is believed."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A draw judged. None where there was nothing to judge.

    right, and of_oracle, of_cells (each cell's own median), of_law: whether the fastest cell is. told: its time as
    reported over the true one. covered: whether its interval holds that. width: its upper over its lower end. near:
    whether the recommended cell is truly within the tolerance of the one named fastest. saved: its true cost over that
    one's.
    """

    right: bool
    of_oracle: bool
    of_cells: bool | None = None
    of_law: bool | None = None
    told: float | None = None
    covered: bool | None = None
    width: float | None = None
    near: bool | None = None
    saved: float | None = None


def judge(world: World, *, by_law: bool = False) -> Verdict:
    """A world's recommendation judged. by_law: also that of the law alone."""
    trials = world.trials()
    best = min(world.seconds(place_of(trial["params"])) for trial in trials)
    oracle = fastest(world, trials)
    of_oracle = oracle is not None and world.seconds(oracle) <= NEAR * best
    analysis = Analysis(world.spec, world.plan, trials)
    found, rows = analysis.recommendation, analysis.times(TARGET).rows
    if not present(found["fastest"]):
        return Verdict(right=False, of_oracle=of_oracle)
    places = {cell.label: place_of(cell.params) for cell in analysis.cells}

    def is_right(times: Mapping[str, float]) -> bool:
        return world.seconds(places[min(times, key=lambda name: times[name])]) <= NEAR * best

    of_law = None
    if by_law:
        straight = {"LIKELY_DEVIATION": STRAIGHT, "DEVIATION_FACTOR": 0.01}
        with (
            patch.multiple(shrinkage, **straight, SPREADS=(STRAIGHT, *shrinkage.SPREADS)),
            patch.multiple(step_seconds, **straight),
        ):
            options = times_to(Posterior(world.spec, analysis.cells), [TARGET])[TARGET].options
        of_law = is_right({row["label"]: row["seconds"] for row in options})
    named, chosen = (place_of(found[role]["params"]) for role in ("fastest", "recommended"))
    true, interval = world.seconds(named), found["fastest"]["interval"]
    return Verdict(
        right=true <= NEAR * best,
        of_oracle=of_oracle,
        of_cells=is_right(
            {row["label"]: row["measured_seconds"] for row in rows if row["measured_seconds"] is not None}
        ),
        of_law=of_law,
        told=found["fastest"]["seconds"] / true,
        covered=interval["low"] <= true <= interval["high"],
        width=interval["high"] / interval["low"],
        near=world.seconds(chosen) <= (1 + found["tolerance"]) * true * (1 + 1e-9),
        saved=world.seconds(chosen) * chosen[0] / (true * named[0]) if math.isfinite(true) else None,
    )


def judged(
    seed: int, draws: Iterable[int], draw: Callable[[np.random.Generator], World], *, by_law: bool = False
) -> list[Verdict]:
    """Verdicts of worlds, each drawn by a generator of its own."""
    return [judge(draw(np.random.default_rng([seed, number])), by_law=by_law) for number in draws]


def share(values: Iterable[bool | None]) -> float:
    """Of those that were judged, how many are true."""
    return fmean([float(value) for value in values if value is not None])


def middle(verdicts: Sequence[Verdict]) -> float:
    """Median of the reported time over the true one."""
    return median([each.told for each in verdicts if each.told is not None])
