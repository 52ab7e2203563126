"""What a search learns from the trials of a point.

The median over a point's seeds counts, so that one lucky seed does not lead a search.
"""

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from scalestudy.experiments.analysis.measures.cells import epoch_seconds
from scalestudy.experiments.analysis.measures.metric import StudyMetric
from scalestudy.experiments.analysis.measures.parts import median
from scalestudy.experiments.analysis.measures.trial import Line, Trial
from scalestudy.experiments.analysis.measures.usable import best_value, curve, time_to_target
from scalestudy.experiments.spec.study_spec import StudySpec

SAYS_NOTHING = ("failed", "skipped")
"""Statuses that say nothing about the point if another of its seeds came through."""
WORST = ("diverged", "out_of_memory")
"""Statuses after which the metric of earlier epochs does not count."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """How good a point is.

    Points without a value count too. Else their place looks unexplored, and a search returns to it for ever.
    """

    value: float | None = None
    """The value of the objective.

    None is worse than every value: the point diverged, ran out of memory, missed the target, or failed with all its
    seeds.
    """
    progress: float | None = None
    """Orders points without a value, in the objective's direction, if anything is known of them."""


@dataclass(frozen=True, kw_only=True)
class Objective:
    """What a search looks for."""

    name: str
    metric: StudyMetric
    target: float | None  # of the time and the cost; None: for the metric

    @classmethod
    def of(cls, spec: StudySpec) -> "Objective":
        """Return the objective of a spec. Its target is the hardest one."""
        return cls(
            name=spec.search.objective,
            metric=StudyMetric.of(spec.workload),
            target=None if spec.search.objective == "metric" else spec.hardest_target,
        )

    @property
    def mode(self) -> Literal["max", "min"]:
        """Whether more or less of it is better."""
        return self.metric.mode if self.target is None else "min"

    def score(self, lines: Iterable[Line]) -> Score:
        """Score a point by the lines in `trials.jsonl` of all of its trials, one a seed.

        A trial that ran on more nodes than another of them takes the seconds an epoch of the trials on fewest nodes.
        """
        telling = [trial for trial in map(Trial.of, lines) if trial.status not in SAYS_NOTHING]
        fewest = min((trial.nodes for trial in telling), default=1)
        epochs = [epoch_seconds(trial) for trial in telling if trial.nodes == fewest]
        usual = median([seconds for seconds in epochs if seconds is not None])
        costs = [self._cost(trial, usual if trial.nodes > fewest else None) for trial in telling]
        middle = statistics.median(costs) if costs else math.inf
        if math.isfinite(middle):
            return Score(value=middle if self.mode == "min" else -middle)
        return Score(progress=None if self.target is None else self._progress(telling))

    def _cost(self, trial: Trial, usual: float | None) -> float:
        """Return the objective of one trial, less is better; infinity for the worst.

        usual: seconds an epoch; None: as measured.
        """
        if self.target is None:
            best = None if trial.status in WORST else best_value(trial, self.metric)
            return math.inf if best is None else self.metric.order(best)
        seconds = time_to_target(curve(trial, self.metric, usual), self.target, self.metric)
        return seconds * trial.num_gpus if self.name == "cost_to_target" else seconds

    def _progress(self, trials: Iterable[Trial]) -> float | None:
        """Return how near trials that missed the target came to it, less is better."""
        reached = [best for trial in trials if (best := best_value(trial, self.metric)) is not None]
        return statistics.median(map(self.metric.order, reached)) if reached else None
