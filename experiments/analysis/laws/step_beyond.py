"""The time of a step where nothing near was timed.

Several laws may fit the timings equally well and differ beyond them: there an interval holds what every law says that
the timings do not reject. Among all coefficients zero or above, and overlaps that fit about as well as the best, these
are the laws whose sum of squares is at most t² variances above the least: the interval is the profile likelihood's. No
overlap is taken where it fits as well as any.
"""

import math

from scalestudy.experiments.analysis.laws.least_squares import Vector
from scalestudy.experiments.analysis.laws.step_choice import WORTH_AN_OVERLAP, Timings
from scalestudy.experiments.analysis.laws.step_terms import OVERLAPS, step

FIRST_OFFSET, LARGEST_OFFSET = 0.02, 2.5
"""Offsets of the logarithm of a step's time between which the end of its interval is searched."""
FINENESS = 0.03


def interval_beyond(
    timings: Timings, features: Vector, data_seconds: float, *, noise: float, t: float
) -> tuple[float, float]:
    """Return the least and the most seconds of a step at a place (c,).

    noise: standard deviation of a timing. t: by how many standard deviations a law may be off.
    """
    laws = timings.by_overlap()
    squares = {gamma: timings.squares(law, gamma) for gamma, law in laws.items()}
    least = min(squares.values())
    alike = [gamma for gamma in laws if squares[gamma] <= least + WORTH_AN_OVERLAP * noise**2]

    def seconds(law: Vector, gamma: float) -> float:
        return float(step(law, features, gamma)) + data_seconds

    def end(gamma: float, sign: int) -> float:
        """Return the least (sign −1) or most seconds by a law of this overlap."""
        found, inside, outside, offset = laws[gamma], 0.0, math.inf, FIRST_OFFSET
        nearest = seconds(found, gamma)
        while inside < LARGEST_OFFSET and outside - inside > FINENESS * inside:
            # the nearest law if a step at this place were known to take so long
            tried = timings.beside(features, nearest * math.exp(sign * offset), data_seconds).nearest(gamma, found)
            if timings.squares(tried, gamma) <= least + (t * noise) ** 2:
                inside, found = offset, tried
            else:
                outside = offset
            offset = 2 * inside if outside == math.inf else (inside + outside) / 2
            if offset < FINENESS * FIRST_OFFSET:
                break
        return seconds(found, gamma)

    chosen = alike[:1] if alike[0] == OVERLAPS[0] else alike
    ends = [(end(gamma, -1), end(gamma, 1)) for gamma in chosen]
    return min(low for low, _ in ends), max(high for _, high in ends)
