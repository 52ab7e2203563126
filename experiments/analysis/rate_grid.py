"""Stage 8, analysis: the best learning rate of a batch size, and how well the seeds single it out.

Source: docs/formulas.md §2 and §3.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from experiments.analysis.intervals import ENOUGH_SEEDS, t_interval

TUNED = ("finished", "stopped", "diverged")
"""Statuses that say something about a batch size with a rate. Too little memory says something about num_gpus."""

Costs = Mapping[float, Mapping[int, float]]
"""Rate to seed to what is to be as small as can be: steps to a target, say; infinity for a seed that missed."""
Edge = Literal["lowest", "highest"]


@dataclass(frozen=True, kw_only=True)
class BestRate:
    """The rate of the smallest median cost over seeds.

    edge: where it is the lowest or highest of its grid, so that it and its costs are bounds; a rate that is alone is
    the lowest. rates: how many were tried. costs: its own, by seed. fair: a cost a seed that choosing the rate does not
    flatter (`fair_costs`). low, high: the range in which the seeds and the grid leave the best rate: from the lowest to
    the highest of the neighbouring rates that can't be told apart from it, and on to half way to the next ones.
    """

    rate: float
    edge: Edge | None
    rates: int
    costs: tuple[float, ...]
    fair: tuple[float, ...]
    low: float
    high: float

    @property
    def middle(self) -> float:
        """Of the range, on a logarithmic scale: the better estimate where several rates do as well."""
        return math.sqrt(self.low * self.high)

    @property
    def width(self) -> float:
        """Of the range, as a difference of logarithms."""
        return math.log(self.high / self.low)


def best_rate(costs: Costs) -> BestRate | None:
    """The best rate of one batch size; None where at every rate half of the seeds or more missed.

    Of equal medians the lowest rate's counts.
    """
    medians = {rate: statistics.median(seeds.values()) for rate, seeds in sorted(costs.items()) if seeds}
    best = min(medians, key=lambda rate: medians[rate], default=None)
    if best is None or not math.isfinite(medians[best]):
        return None
    rates = list(medians)
    low, high = _range(costs, rates, rates.index(best))
    own = costs[best]
    return BestRate(
        rate=best,
        edge="lowest" if best == rates[0] else "highest" if best == rates[-1] else None,
        rates=len(rates),
        costs=tuple(own[seed] for seed in sorted(own)),
        fair=fair_costs(costs, best),
        low=low,
        high=high,
    )


def fair_costs(costs: Costs, best: float) -> tuple[float, ...]:
    """A cost for each seed of the best rate, at the rate that the other seeds alone would have chosen for it.

    The smallest of several medians is too small: the choice follows the noise of the very seeds that are then reported,
    5 rates that are equally good and 5 seeds with 5 % noise giving 2 % too few steps. A rate chosen by the other seeds
    has no such advantage. A seed without a finite cost at that rate keeps the one at the best rate.
    """
    fair = []
    for seed, own in sorted(costs[best].items()):
        others = {
            rate: [cost for other, cost in seeds.items() if other != seed]
            for rate, seeds in sorted(costs.items())
            if math.isfinite(seeds.get(seed, math.inf))
        }
        medians = {rate: statistics.median(found) for rate, found in others.items() if found}
        chosen = min(medians, key=lambda rate: medians[rate], default=best)
        fair.append(costs[chosen][seed] if math.isfinite(medians.get(chosen, math.inf)) else own)
    return tuple(fair)


def _range(costs: Costs, rates: Sequence[float], best: int) -> tuple[float, float]:
    """Ends of the range in which the best rate lies."""
    if len(rates) == 1:
        return rates[0], rates[0]
    first = last = best
    farthest = 1 if len(costs[rates[best]]) == 1 else len(rates)  # one seed tells nothing apart, so no more than these
    while first > 0 and best - first < farthest and alike(costs[rates[best]], costs[rates[first - 1]]):
        first -= 1
    while last < len(rates) - 1 and last - best < farthest and alike(costs[rates[best]], costs[rates[last + 1]]):
        last += 1
    below = rates[max(first, 1)] / rates[max(first, 1) - 1]
    above = rates[min(last + 1, len(rates) - 1)] / rates[min(last, len(rates) - 2)]
    return rates[first] / math.sqrt(below), rates[last] * math.sqrt(above)


def alike(best: Mapping[int, float], other: Mapping[int, float]) -> bool:
    """Whether the seeds can't tell another rate's costs from those of the best.

    With five seeds or more in common that reached, by the t interval of their differences: they start from the same
    parameters. With fewer where the ranges overlap, with one always; never where half of the other's seeds missed.
    """
    if not math.isfinite(statistics.median(other.values())):
        return False
    if min(len(best), len(other)) == 1:
        return True
    common = [seed for seed in best if seed in other and math.isfinite(best[seed]) and math.isfinite(other[seed])]
    if len(common) < ENOUGH_SEEDS:
        return min(other.values()) <= max(best.values())
    low, high = t_interval([other[seed] - best[seed] for seed in common])
    return low <= 0 <= high
