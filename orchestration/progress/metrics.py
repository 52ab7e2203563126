"""A running study's progress as Ray metrics, which every node's agent serves to Prometheus."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from scalestudy.orchestration.groups.model import PoolSnapshot
from scalestudy.orchestration.progress.progress import StudyProgress

logger = logging.getLogger(__name__)

PERIOD_SECONDS = 5.0
GAUGES: Mapping[str, str] = {
    "scalestudy_trials": "Trials by status: waiting, running, or how they ended",
    "scalestudy_samples_per_second": "Training examples a second, all running trials together, by their last epochs",
    "scalestudy_busy_workers": "Share of the workers that the cluster has room for that train now",
    "scalestudy_tracking_backlog": "Journal entries that MLflow does not have yet",
}
"""Names and meanings; Prometheus sees them as `ray_scalestudy_trials` and so on, with the tags study and status."""


@dataclass(frozen=True)
class Gauged:
    """One value of a gauge."""

    name: str
    value: float
    status: str = ""  # a tag; "" for gauges without it


def gauged(progress: StudyProgress, pool: PoolSnapshot | None, backlog: int) -> list[Gauged]:
    """Return the values of a study's gauges. pool: its snapshot; None: it does not answer."""
    running, statuses = list(progress.running.values()), Counter(list(progress.statuses.values()))
    waiting = max(0, progress.total - len(progress.statuses) - len(running))
    trials = {"waiting": waiting, "running": len(running), **statuses}
    rates = [rate for each in running if (rate := each.samples_per_second)]
    return [
        *(Gauged("scalestudy_trials", count, status) for status, count in trials.items()),
        Gauged("scalestudy_samples_per_second", sum(rates)),
        Gauged("scalestudy_busy_workers", busy_share(pool)),
        Gauged("scalestudy_tracking_backlog", backlog),
    ]


def busy_share(pool: PoolSnapshot | None) -> float:
    """Return the share of the workers with a trial among those that the cluster has room for."""
    if pool is None or not sum(pool.room.values()):
        return 0.0
    busy = sum(sum(group.nodes.values()) for group in pool.groups if group.trial)
    return busy / sum(pool.room.values())


class ProgressMetrics:
    """A thread that sets the gauges every few seconds: `with ProgressMetrics(…): …`."""

    def __init__(
        self,
        study_id: str,
        progress: StudyProgress,
        pool: Callable[[], PoolSnapshot | None],
        backlog: Callable[[], int],
    ) -> None:
        """Prepare the thread. pool: asks for the pool's snapshot. backlog: counts the entries that wait for MLflow."""
        self._study, self._progress, self._pool, self._backlog = study_id, progress, pool, backlog
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)

    def __enter__(self) -> ProgressMetrics:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        from ray.util.metrics import Gauge

        gauges = {name: Gauge(name, description=text, tag_keys=("study", "status")) for name, text in GAUGES.items()}
        while True:
            try:
                for each in gauged(self._progress, self._pool(), self._backlog()):
                    gauges[each.name].set(each.value, tags={"study": self._study, "status": each.status})
            except Exception as error:  # a study does not end because its gauges fail
                logger.info("no metrics: %s", error)
            if self._closed.wait(PERIOD_SECONDS):
                return
