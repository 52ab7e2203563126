"""What Prometheus would read of a study from the agent of a node."""

from __future__ import annotations

import threading
from contextlib import suppress
from types import TracebackType
from urllib.request import urlopen


def gauge_lines(study: str = "") -> set[str]:
    """The lines of a study, or of all, that the only node's agent has now."""
    import ray

    (node,) = ray.nodes()
    address = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
    text = urlopen(address, timeout=5).read().decode()
    return {line for line in text.splitlines() if line.startswith("ray_scalestudy_") and f'study="{study}' in line}


class Scraping:
    """Reads them once a second, for as long as something runs; `lines` has all that were seen."""

    def __init__(self) -> None:
        self.lines: set[str] = set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._scrape, daemon=True)

    def __enter__(self) -> Scraping:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _scrape(self) -> None:
        while not self._ended.wait(1):
            with suppress(OSError):
                self.lines |= gauge_lines()
