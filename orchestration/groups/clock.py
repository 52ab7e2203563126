"""The pool's two clocks: one for limits, one for records."""

from __future__ import annotations

import time
from collections.abc import Callable

LONGEST_TICK_SECONDS = 1.0


class PoolClock:
    """Calling it gives the seconds by which limits are kept; `wall` gives seconds since 1970, for records alone.

    A step of the wall clock moves no limit. Nor does a time in which the pool itself did not run (a suspended laptop, a
    starved machine): the caller runs `tick` before each check of the limits, and at most `longest_tick` of the time
    between two ticks counts. So a late check postpones every deadline by its delay.
    """

    def __init__(
        self,
        *,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        longest_tick: float = LONGEST_TICK_SECONDS,
    ) -> None:
        self.wall = wall
        self._monotonic, self._longest_tick = monotonic, longest_tick
        self._counted, self._ticked_at = 0.0, monotonic()  # seconds until the last tick

    def __call__(self) -> float:
        """Return the seconds that count, from an arbitrary moment on."""
        return self._counted + min(self._monotonic() - self._ticked_at, self._longest_tick)

    def tick(self) -> None:
        """Note that the limits are checked now."""
        self._counted, self._ticked_at = self(), self._monotonic()
