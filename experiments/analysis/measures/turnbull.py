"""The median of times of which some are known as intervals (Turnbull 1976, docs/formulas.md §6).

It is that of the nonparametric maximum-likelihood estimate, found by self-consistency (expectation and maximisation).
Where times are known or censored on the right, the estimate is Kaplan and Meier's.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

from scalestudy.experiments.analysis.measures.arrivals import Arrival

CONVERGED, MOST_ROUNDS = 1e-10, 2000
"""Greatest change of a probability in the last round, and how many rounds there are at most."""
ROUNDING = 1e-6
"""Share of the arrivals by which the estimate is off at most after the last round."""
Span = tuple[tuple[float, int], tuple[float, int]]
"""A set of times. Ends at one time are in this order: of a known time, closed on the right, open on the left."""


def median_arrival(arrivals: Sequence[Arrival]) -> float:
    """Return the median; infinity where it lies beyond what was observed, or one more evaluation would decide that."""
    if any(arrival.chance < 1 for arrival in arrivals) and math.isinf(_median([_unmet(each) for each in arrivals])):
        return math.inf
    return _median(arrivals)


def _unmet(arrival: Arrival) -> Arrival:
    """Return the arrival of a training whose last evaluation alone met the target, had the next one missed it."""
    return arrival if arrival.chance == 1 else replace(arrival, low=arrival.high, high=math.inf, chance=1.0, value=None)


def _median(arrivals: Sequence[Arrival]) -> float:
    below, half = 0.0, None  # the time at which exactly half have arrived: the median is the middle of it and the next
    for time, probability in estimate(arrivals):
        if half is not None:
            return (half + time) / 2
        below += probability
        if below > 0.5 + ROUNDING:
            return time
        half = time if below > 0.5 - ROUNDING else None
    return math.inf


def estimate(arrivals: Sequence[Arrival]) -> list[tuple[float, float]]:
    """Return times and their probabilities, the earliest first. Infinity: it comes later than was observed, or never.

    An arrival with a value is known to be there, by its chance; one without lies anywhere between low and high. Where
    the probability is that of a whole interval, its upper end stands for it: the time is an upper bound.
    """
    spans = [_spans(arrival) for arrival in arrivals]
    ends = {end for each in spans for (low, high), _ in each for end in ((low, True), (high, False))}
    order = sorted(ends, key=lambda end: (*end[0], not end[1]))
    # only an innermost interval, from a left end to a right end next to it, has a probability
    inner = [(a, b) for (a, left), (b, other) in itertools.pairwise(order) if left and not other]
    rows = [
        [
            (place, weight)
            for place, (low, high) in enumerate(inner)
            if (weight := sum(part for (first, last), part in each if first <= low and high <= last))
        ]
        for each in spans
    ]
    share = 1 / max(len(rows), 1)
    known = [0.0] * len(inner)
    for row in rows:
        if len(row) == 1:
            known[row[0][0]] += share
    open_rows = [row for row in rows if len(row) > 1]
    found = [1 / max(len(inner), 1)] * len(inner)
    for _ in range(MOST_ROUNDS):
        before, found = found, known[:]
        for row in open_rows:
            each_share = [before[place] * weight for place, weight in row]
            factor = share / sum(each_share)
            for (place, _), part in zip(row, each_share, strict=True):
                found[place] += part * factor
        if max((abs(new - old) for new, old in zip(found, before, strict=True)), default=0.0) < CONVERGED:
            break
    return [(high[0], part) for (_, high), part in zip(inner, found, strict=True) if part > ROUNDING]


def _spans(arrival: Arrival) -> list[tuple[Span, float]]:
    """Return where an arrival lies, and by which chance."""
    low, high, value = arrival.low, arrival.high, arrival.value
    if math.isinf(high):
        value = math.inf if math.isinf(low) else None  # what a stopped training would have taken is not observed
    between: Span = ((low, 2), (high, 1)) if value is None else ((value, 0), (value, 1))
    later: Span = ((high, 2), (math.inf, 1))
    return [(between, arrival.chance), (later, 1 - arrival.chance)] if arrival.chance < 1 else [(between, 1.0)]
