"""The page of a running study, as text."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from scalestudy.experiments.analysis.measures.units import metric_of
from scalestudy.experiments.plan.plan import label
from scalestudy.experiments.report.analysed import AnalysedStudy
from scalestudy.experiments.report.explorer import brief
from scalestudy.experiments.report.page import Live, render_page


@dataclass(frozen=True, kw_only=True)
class TrialNow:
    """A trial that trains now."""

    name: str
    cell: Mapping[str, Any]
    """The parameters of its cell."""
    attempt: int
    period: str
    """The word for the steps between two of its evaluations, such as "epoch"."""
    last: int
    """The number of its last evaluation."""
    evaluations: Sequence[tuple[int, float, float | None]]
    """Evaluations so far: number, training seconds since the one before, and the study's metric."""

    @property
    def words(self) -> str:
        """How far it is."""
        again = f", attempt {self.attempt}" if self.attempt > 1 else ""
        return f"{self.name}: {self.period} {len(self.evaluations)} of {self.last}{again}"


def live_page(study: AnalysedStudy, running: Sequence[TrialNow], *, ended: int, planned: int, progress: str) -> str:
    """Return the page from the trials that have ended, with the curves of those that run.

    ended, planned: numbers of trials. progress: a sentence.
    """
    live = Live(
        written=time.time(), ended=ended, planned=planned, progress=progress, running=[each.words for each in running]
    )
    data = study.page_data(more_targets=False)
    data["curves"] += running_curves(running, metric_of(study.summary["study"]).key, data["cells"]["label"])
    return render_page(study.summary, study.spec_yaml, data, live)


def running_curves(running: Sequence[TrialNow], key: str, labels: Sequence[str]) -> list[dict[str, Any]]:
    """Return curves of trials that run, as the page's script draws them: columns over their evaluations.

    key: of the metric. labels: of the study's cells, in order.
    """
    found = []
    for trial in running:
        seconds = accumulate(took for _, took, _ in trial.evaluations)
        points = [
            (number, at, value)
            for (number, _, value), at in zip(trial.evaluations, seconds, strict=True)
            if value is not None
        ]
        name = label(trial.cell)
        if points and name in labels:
            numbers, times, values = ([brief(each) for each in column] for column in zip(*points, strict=True))
            found.append({"cell": labels.index(name), "runs": True, "epochs": numbers, "seconds": times, key: values})
    return found
