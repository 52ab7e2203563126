"""Time that goes on only where a test says so, however busy the machine is."""

from __future__ import annotations


class Clock:
    """In the place of the module `time`. now: seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def process_time(self) -> float:
        return self.now
