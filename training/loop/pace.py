"""How often all ranks look at something together: a look costs a collective, so not in every step."""

from __future__ import annotations

import time
from collections.abc import Callable

MOST_BETWEEN = 64  # moments from one look to the next


class Pace:
    """Counts moments of a training, such as its steps. All ranks look after the same ones.

    Rank 0 measures how long the last ones took and says, in a look, after how many moments the next one is due. That
    distance at most doubles each time, and is at most `MOST_BETWEEN`: steps that become slower delay one look.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`seconds`: about how long from one look to the next; `clock`: in seconds, read on rank 0 alone."""
        self._seconds, self._clock = seconds, clock
        self._looked_at = clock()
        self._moments = 0  # since the last look
        self._between = 1

    def is_due(self) -> bool:
        """Count a moment. Whether all ranks look now."""
        self._moments += 1
        return self._moments >= self._between

    def measured(self) -> int:
        """On rank 0, in a look: moments to the next."""
        now = self._clock()
        passed, self._looked_at = now - self._looked_at, now
        in_time = self._seconds * max(self._moments, 1) / max(passed, 1e-9)
        return max(1, int(min(in_time, 2 * self._between, MOST_BETWEEN)))

    def looked(self, between: int) -> None:
        """On every rank, at the end of a look. `between`: what rank 0 has measured."""
        self._moments, self._between = 0, between
