"""A study analysed: what its records say, each worked out once, for the report, `recommend` and the predictions."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from scalestudy.experiments.analysis.answers.efficiency import Tuning, statistical_efficiency, tunings
from scalestudy.experiments.analysis.answers.evidence import Evidence
from scalestudy.experiments.analysis.answers.judged import predictions_known, row_known, why_no_law
from scalestudy.experiments.analysis.answers.posterior import Posterior
from scalestudy.experiments.analysis.answers.predictions import MOST_WORKERS, predictions_part
from scalestudy.experiments.analysis.answers.recommendation import By, choose
from scalestudy.experiments.analysis.answers.target_times import TargetTimes, times_to
from scalestudy.experiments.analysis.answers.throughput import throughput_part
from scalestudy.experiments.analysis.measures.cells import Cell, cell_row, examples_of, gather
from scalestudy.experiments.analysis.measures.metric import StudyMetric
from scalestudy.experiments.analysis.measures.parts import Figure, missing
from scalestudy.experiments.analysis.measures.progress import Progress, with_updates
from scalestudy.experiments.analysis.measures.scaling import Bases, scaling_part, timing_rows
from scalestudy.experiments.analysis.measures.trial import Line, Trial
from scalestudy.experiments.analysis.measures.usable import usable
from scalestudy.experiments.plan.plan import Plan
from scalestudy.experiments.spec.study_spec import StudySpec


class Analysis:
    """What a study's records say.

    lines: of `trials.jsonl`, any number of them, ended in any way. include_flagged: fit the law of a step's time also
    to timings whose flags say that they were disturbed.
    """

    def __init__(self, spec: StudySpec, plan: Plan, lines: Sequence[Line], *, include_flagged: bool = False) -> None:
        known = usable(lines)
        self.spec, self.plan, self.progress = spec, plan, Progress.of(spec, known.trials)
        self.usable = with_updates(known, spec, self.progress)
        self.metric = StudyMetric.of(spec.workload)
        self._include_flagged = include_flagged
        self._times: dict[float, TargetTimes] = {}

    @property
    def trials(self) -> tuple[Trial, ...]:
        """The trials that count."""
        return self.usable.trials

    @cached_property
    def cells(self) -> list[Cell]:
        """The study's cells, in the plan's order."""
        return gather(self.plan, self.usable, self.metric)

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """The `cells` of `summary.json`."""
        rows = [row_known(self.spec, self.progress, cell_row(cell)) for cell in self.cells]
        if self.spec.train.unit != "epochs" or self.spec.judged or self.spec.workload.loop:
            rows = [{**row, "examples": examples_of([cell])} for row, cell in zip(rows, self.cells, strict=True)]
        bases = Bases(rows)
        return [{**row, **scaling_part(row, bases)} for row in rows]

    @cached_property
    def timings(self) -> list[dict[str, Any]]:
        """The `timings` of `summary.json`."""
        return timing_rows(self.cells, {row["label"]: row["epoch_seconds"] for row in self.rows})

    @cached_property
    def posterior(self) -> Posterior:
        """Steps to each target and seconds of a step."""
        # seconds that stand for updates differ with num_gpus, whatever the updates learn
        pools = self.progress.unit != "seconds"
        return Posterior(
            self.spec,
            self.cells,
            include_flagged=self._include_flagged,
            pools=pools,
            timing_runs=self.usable.timing_runs if self.plan.is_adaptive else None,
        )

    def times(self, target: float) -> TargetTimes:
        """Return the times of all cells to a target."""
        if target not in self._times:
            self._times |= times_to(self.posterior, [target], self.spec.targets.price_per_gpu_hour)
        return self._times[target]

    def recommend(self, *, accuracy: float | None = None, max_gpus: int | None = None, by: By = None) -> Figure:
        """Choose a cell for the hardest of the spec's targets that some cell reaches (`recommend`)."""
        targets = self.spec.targets.accuracy if accuracy is None else (accuracy,)
        by_target = {target: self.times(target) for target in targets}
        searched = self.searched if accuracy is None else None
        return choose(
            self.spec, self.cells, self.rows, self.timings, by_target, max_gpus=max_gpus, by=by, searched=searched
        )

    @cached_property
    def evidence(self) -> Evidence | None:
        """The records as an adaptive search takes them; None if none made the study's trials."""
        return Evidence.of(self.spec, self.plan, self.usable) if self.plan.is_adaptive else None

    @property
    def searched(self) -> str | None:
        """The label of the cell that an adaptive search believes best by its looks; None: there is no such cell."""
        beliefs = self.evidence.beliefs if self.evidence else None
        return self.evidence.label_of(beliefs.places[beliefs.best]) if self.evidence and beliefs else None

    @cached_property
    def recommendation(self) -> Figure:
        """The `recommendation` of `summary.json`."""
        return self.recommend()

    def throughput(self, recommendation: Figure) -> Figure:
        """Return the law of a step's time (`throughput_part`), of the recommended cell's combination first."""
        return throughput_part(self.posterior, recommendation)

    def tunings(self, recommendation: Figure) -> list[Tuning]:
        """Return the steps to the recommendation's target by batch size (`efficiency.tunings`)."""
        return tunings(self.posterior, recommendation)

    def predict(self, recommendation: Figure, *, most_workers: int = MOST_WORKERS) -> Figure:
        """Return the `predictions` of `summary.json` for a recommendation.

        The settings of its choice are predicted, for its target. Without a choice, the target is the hardest that is
        known well enough. most_workers: up to which to predict.
        """
        efficiency = statistical_efficiency(self.spec, self.tunings(recommendation))
        return self.predictions(self.throughput(recommendation), efficiency, most_workers=most_workers)

    def predictions(self, throughput: Figure, efficiency: Figure, *, most_workers: int = MOST_WORKERS) -> Figure:
        """Return what `predict` does, of parts that were made before."""
        if (why := why_no_law(self.progress)) is not None:
            return missing(why)
        target, price = efficiency.get("target"), self.spec.targets.price_per_gpu_hour
        times = None if target is None else self.times(target)
        found = predictions_part(self.posterior, throughput, efficiency, price, times=times, most_workers=most_workers)
        return predictions_known(self.progress, found)


def asked(
    spec: StudySpec, *, accuracy: float | None = None, price: float | None = None, tolerance: float | None = None
) -> StudySpec:
    """Return a study's spec with another target, price of a GPU-hour and tolerance; None: the spec's."""
    wishes = {
        "accuracy": None if accuracy is None else (accuracy,),
        "price_per_gpu_hour": price,
        "tolerance": tolerance,
    }
    update = {key: value for key, value in wishes.items() if value is not None}
    return spec.model_copy(update={"targets": spec.targets.model_copy(update=update)})


def recommend(
    spec: StudySpec,
    plan: Plan,
    trials: Sequence[Line],
    *,
    accuracy: float | None = None,
    max_gpus: int | None = None,
    price: float | None = None,
    tolerance: float | None = None,
    by: By = None,
) -> Figure:
    """Choose a cell from a study's trials.

    Args:
        spec: the answer is for the hardest of its targets that some cell reaches.
        plan: the study's.
        trials: lines of `trials.jsonl`.
        accuracy: a target in place of the spec's, of whatever metric.
        max_gpus: cells with more workers are not chosen.
        price: of a GPU-hour; None: the spec's.
        tolerance: in place of the spec's.
        by: whether `choice` is the fastest or the cheapest; None: the recommended.

    Returns:
        metric, target, missed_targets, max_gpus, tolerance, confidence, choice, recommended, fastest, cheapest,
        best_accuracy, pareto (labels), settle, untrained and provisional. A choice is `{label, named, params, num_gpus,
        batch_size, learning_rate, seconds, worker_seconds, cost, interval, measured_seconds, ratio, probability,
        n_seeds, test_accuracy, flags, evidence, ties, caveats, strong_speedup, …}`, or null with a why. Another
        metric's name replaces accuracy in best_accuracy and test_accuracy.

        ratio: `{value}` of its time to the fastest's. probability: the chance that its time is within the tolerance
        of the least that any cell takes.
        evidence: `{cells (labels), seeds, kind}`. ties: labels of the cells that it can't be told apart from,
        `tie_count` in all. caveats: `{kind, words}`. strong_speedup: of its workers over one at the same batch; null if
        that was not timed. settle: `{label, probability, beside, seeds, worker_seconds}`: so many more seeds of that
        cell, the recommended or a cheaper one, and of the cell `beside` are more likely than not to bring its
        probability above 0.9 or below 0.1; null if there is no such cell. untrained, only where it is so: label
        of the cell that an adaptive search believes best, of which no training has ended.
    """
    wanted = asked(spec, accuracy=accuracy, price=price, tolerance=tolerance)
    return Analysis(wanted, plan, trials).recommend(max_gpus=max_gpus, by=by)


def predict(
    spec: StudySpec,
    plan: Plan,
    trials: Sequence[Line],
    recommendation: Figure,
    *,
    price: float | None = None,
    most_workers: int = MOST_WORKERS,
) -> Figure:
    """Return the `predictions` of a study alone, as `predictions.predictions_part` gives them.

    recommendation: from `recommend`. The settings of its choice are predicted, for its target. Without a choice, the
    target is the hardest that is known well enough. price: of a GPU-hour; None: the spec's. most_workers: up to which
    to predict.
    """
    return Analysis(asked(spec, price=price), plan, trials).predict(recommendation, most_workers=most_workers)
