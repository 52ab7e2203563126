"""How often all ranks check something together: a check costs a collective, so not in every step."""

from __future__ import annotations

import time
from collections.abc import Callable

MOST_BETWEEN = 64  # moments from one check to the next
SMOOTHING = 0.2  # weight of the last check in the mean seconds of a check
COSTS_AT_MOST = 0.01  # of the time: slow checks, mostly waits for the slowest rank, are rarer
LONGEST_SECONDS = 1.0  # to which slow checks stretch the distance


class Pace:
    """A count of moments of a training, such as its steps. All ranks check after the same moments.

    Rank 0 measures how long the last moments took. In each check it sends after how many moments the next check is due.
    That distance at most doubles each time, and is at most `MOST_BETWEEN`: steps that become slower delay one check. It
    is longer than asked, up to a second, where checks take more than `COSTS_AT_MOST` of the time.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Aim at `seconds` from one check to the next; `clock`: in seconds."""
        self._seconds, self._clock = seconds, clock
        self._looked_at = clock()
        self._took = 0.0  # seconds of a check: a running mean
        self._moments = 0  # since the last check
        self._between = 1

    def is_due(self) -> bool:
        """Count a moment; return whether all ranks look now."""
        self._moments += 1
        return self._moments >= self._between

    def measured(self) -> int:
        """Return, on rank 0 and as a look begins, the moments to the next one."""
        now = self._clock()
        passed, self._looked_at = now - self._looked_at, now
        seconds = max(self._seconds, min(self._took / COSTS_AT_MOST, LONGEST_SECONDS))
        in_time = seconds * max(self._moments, 1) / max(passed, 1e-9)
        return max(1, int(min(in_time, 2 * self._between, MOST_BETWEEN)))

    def looked(self, between: int) -> None:
        """End a look, on every rank. `between`: what rank 0 has measured."""
        self._moments, self._between = 0, between
        self._took += SMOOTHING * (self._clock() - self._looked_at - self._took)
