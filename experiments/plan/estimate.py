"""What a plan will cost, from trainings that were timed earlier. Pure."""

import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from scalestudy.experiments.plan.plan import Plan, TrialPlan, at_size
from scalestudy.experiments.plan.timing_runs import DISTURBED, TIMED_SECONDS, TIMING_RUNS, timed_steps, timing_kinds
from scalestudy.experiments.spec.sections import length_of, step_keys
from scalestudy.training.config import Train, Workload

SLOWED = 1.5
"""How many times longer a step may take with more workers, all else equal: on small networks summing outweighs."""

Between = tuple[float, float]
"""The least and the most that is likely."""
Period = tuple[str, int]
"""Of a training, the unit of its length, and how many of it lie between two evaluations."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What a plan will cost.

    epochs: or evaluations, where a period is no epoch. worker_epochs: epochs times workers, summed. seconds: training
    and evaluation, one trial at a time, without start-up. worker_seconds: each trial's seconds times its num_gpus,
    summed. Both are None unless each trial's like was timed; `why` tells it. seconds_between, worker_seconds_between:
    their intervals; where only some were timed, the others are scaled from the nearest of these. None if no timing is
    of use. timed: trials whose like was timed. timings: timing runs that follow a factorised study's trials; seconds
    include them. grid: of the whole grid.
    """

    trials: int
    epochs: int
    worker_epochs: int
    seconds: float | None
    worker_seconds: float | None
    why: str | None = None
    timings: int = 0
    grid: "Estimate | None" = None
    timed: int = 0
    seconds_between: Between | None = None
    worker_seconds_between: Between | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for --json."""
        return asdict(self)


class Span(NamedTuple):
    """Seconds: the least likely, the median, the most likely. timed: by runs like this; else scaled from others."""

    low: float
    middle: float
    high: float
    timed: bool = True

    @classmethod
    def of(cls, values: Sequence[float]) -> "Span":
        """Nine in ten of the values lie in it; of one value, what a machine's speed may differ by (`ONE_TIMING`)."""
        if len(values) < 2:
            return cls(values[0] / ONE_TIMING, values[0], values[0] * ONE_TIMING)
        ends = statistics.quantiles(values, n=20, method="inclusive")
        return cls(ends[0], statistics.median(values), ends[-1])

    def times(self, low: float, high: float | None = None) -> "Span":
        """Each bound times its own factor."""
        high = low if high is None else high
        return Span(self.low * low, self.middle * math.sqrt(low * high), self.high * high, self.timed)

    def at_least(self, seconds: float) -> "Span":
        """Each bound, or so many seconds if that is more."""
        return Span(max(self.low, seconds), max(self.middle, seconds), max(self.high, seconds), self.timed)

    def plus(self, other: "Span") -> "Span":
        """Both, one after the other."""
        return Span(
            self.low + other.low, self.middle + other.middle, self.high + other.high, self.timed and other.timed
        )


ONE_TIMING = 1.5
"""By which factor one timing may be off: the same loop took 1.3 to 2.8 s within hours on a shared machine."""
NO_TIME = Span(0.0, 0.0, 0.0)


@dataclass
class Timed:
    """What earlier periods of one num_gpus and batch_size say. Lists hold seconds, an item a period.

    periods: whole ones of whole trainings, with their evaluation, by what a period is. steps: of one step.
    evaluations: of those that were evaluated. quiet: of runs that had the machine to themselves. counts: steps of an
    epoch. tokens: of an example.
    """

    periods: dict[Period, list[float]] = field(default_factory=dict)
    quiet_periods: dict[Period, list[float]] = field(default_factory=dict)
    steps: list[float] = field(default_factory=list)
    quiet: list[float] = field(default_factory=list)
    evaluations: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    tokens: list[float] = field(default_factory=list)

    def take(self, trial: Mapping[str, Any]) -> None:
        """Adds the periods of a record of trials.jsonl. A timing run's step is taken from its rate after the warm-up.

        A record may also have `epoch_steps`, the steps of a whole epoch, and `evaluations`, bounds in seconds.
        """
        whole, alone = trial.get("kind") != "timing", DISTURBED not in (trial.get("flags") or ())
        length = length_of(trial["train"])
        self.counts += [trial["epoch_steps"]] if trial.get("epoch_steps") else []
        self.evaluations += trial.get("evaluations") or []
        for epoch in trial.get("epochs") or ():
            seconds, evaluation, count = epoch["train_seconds"], epoch.get("eval_seconds"), epoch.get("steps") or 1
            rate, samples = epoch.get("samples_per_second"), epoch.get("samples")
            self.tokens += [epoch["tokens"] / samples] if epoch.get("tokens") and samples else []
            step = samples / count / rate if rate and samples and not whole else seconds / count
            self.steps.append(step)
            self.quiet += [step] if alone else []
            self.evaluations += [evaluation] if whole and evaluation is not None else []
            if whole and epoch.get("epoch", 1) * length.period <= length.length:  # the last may be shorter
                self.counts += [round(count / length.period)] if length.unit == "epochs" else []
                for known in [self.periods, self.quiet_periods] if alone else [self.periods]:
                    known.setdefault(as_period(length), []).append(seconds + (evaluation or 0.0))

    @property
    def step(self) -> Span:
        """Seconds of a step; undisturbed ones if there are any."""
        return Span.of(self.quiet or self.steps)


class Timings:
    """What earlier trials say of the time that others will take.

    Of trials alike those on the fewest nodes count: a study places its workers on as few as can hold them.
    """

    def __init__(self, earlier_trials: Iterable[Mapping[str, Any]]) -> None:
        self._ways: dict[str, dict[tuple[int, int], Timed]] = {}
        nodes: dict[tuple[str, int, int], int] = {}
        for trial in earlier_trials:
            if "workload" in trial and "train" in trial and trial.get("epochs"):
                way, size = way_of(trial["workload"], trial["train"]), _size(trial["params"])
                here, alike = (trial.get("world") or {}).get("nodes") or 1, self._ways.setdefault(way, {})
                if here < nodes.setdefault((way, *size), here):
                    nodes[way, *size] = here
                    del alike[size]
                if here == nodes[way, *size]:
                    alike.setdefault(size, Timed()).take(trial)

    def step(self, trial: TrialPlan) -> Span | None:
        """Seconds of a step; None if nothing of this way of training was timed."""
        alike = self._alike(trial)
        if known := alike.get((trial.num_gpus, trial.batch_size)):
            return known.step
        if not alike:
            return None
        (workers, batch), nearest = _nearest(trial, alike)
        low, high = step_ratios(workers, batch, trial.num_gpus, trial.batch_size)
        return nearest.step.times(low, high)._replace(timed=False)

    def period(self, trial: TrialPlan) -> Span | None:
        """Seconds of a period with its evaluation; None if nothing of this way of training was timed."""
        alike, key, length = self._alike(trial), (trial.num_gpus, trial.batch_size), length_of(trial.train)
        if known := alike.get(key):
            quiet, all_ = (each.get(as_period(length)) for each in (known.quiet_periods, known.periods))
            if quiet or (all_ and not known.quiet):
                return Span.of(quiet or all_ or ())
        step, count = self.step(trial), _steps_a_unit(length.unit, trial, alike)
        if step is None or count is None:
            return None
        return step.times(count * length.period).plus(_evaluation(trial, alike))

    def training(self, trial: TrialPlan) -> Span | None:
        """Seconds of a whole training with its evaluations."""
        period, length = self.period(trial), length_of(trial.train)
        return None if period is None else period.times(length.length / length.period)

    def _alike(self, trial: TrialPlan) -> Mapping[tuple[int, int], Timed]:
        return self._ways.get(way_of(trial.workload, trial.train), {})


def as_period(length: Train) -> Period:
    """What a training's period is."""
    return length.unit, length.period


def _size(params: Mapping[str, Any]) -> tuple[int, int]:
    return params["num_gpus"], params["batch_size"]


def step_ratios(workers: int, batch: int, num_gpus: int, batch_size: int) -> Between:
    """The least and the most by which a step's time may change from (workers, batch) to (num_gpus, batch_size).

    A step may keep its time, or go with the batch, or with the batch of each worker: the ends are the extremes of the
    three. With more workers it may also take up to SLOWED times longer, with fewer that much less.
    """
    grown = batch_size / batch
    ratios = (1.0, grown, grown * workers / num_gpus)
    slower = SLOWED if num_gpus > workers else 1.0
    faster = SLOWED if num_gpus < workers else 1.0
    return min(ratios) / faster, max(ratios) * slower


def _nearest(trial: TrialPlan, alike: Mapping[tuple[int, int], Timed]) -> tuple[tuple[int, int], Timed]:
    """The timed num_gpus and batch_size from which the least has to be concluded."""

    def uncertainty(key: tuple[int, int]) -> float:
        low, high = step_ratios(*key, trial.num_gpus, trial.batch_size)
        return high / low

    key = min(alike, key=uncertainty)
    return key, alike[key]


def _steps_a_unit(unit: str, trial: TrialPlan, alike: Mapping[tuple[int, int], Timed]) -> float | None:
    """Steps of one unit of a training's length; None: not known."""
    if unit == "tokens":
        tokens = [each for timed in alike.values() for each in timed.tokens]
        return 1 / (statistics.fmean(tokens) * trial.batch_size) if tokens else None
    return 1 if unit == "steps" else _steps_an_epoch(trial, alike)


def _steps_an_epoch(trial: TrialPlan, alike: Mapping[tuple[int, int], Timed]) -> int | None:
    """Steps of one epoch: as timed with this batch, else by the examples of another."""
    for (_, batch), timed in sorted(alike.items(), key=lambda item: item[0][1] != trial.batch_size):
        if timed.counts:
            count = statistics.median_high(timed.counts)
            return count if batch == trial.batch_size else max(1, math.ceil(count * batch / trial.batch_size))
    return None


def _evaluation(trial: TrialPlan, alike: Mapping[tuple[int, int], Timed]) -> Span:
    """Seconds of an evaluation: as timed with this num_gpus, else of the nearest, which share it or don't."""
    found = [(workers, timed.evaluations) for (workers, _), timed in alike.items() if timed.evaluations]
    if not found:
        return NO_TIME
    workers, seconds = min(found, key=lambda each: abs(math.log(each[0] / trial.num_gpus)))
    shared = workers / trial.num_gpus
    return Span.of(seconds).times(min(1.0, shared), max(1.0, shared))


def estimate(
    plan: Plan,
    earlier_trials: Iterable[Mapping[str, Any]],
    timing_runs: int = TIMING_RUNS,
    corners: Sequence[TrialPlan] = (),
) -> Estimate:
    """Estimates what the plan will cost, from periods measured earlier: at most, if a search makes the trials or stops
    some, or if they stop at a target.

    earlier_trials: lines of trials.jsonl, each with its `workload` and `train` (`StudyFolder.measured_trials`).
    A trial's steps count for every trial with the same workload, num_gpus, batch_size and way of training. Learning
    rate, schedule, seed and length may differ: they don't change the time of a step. Of another num_gpus or
    batch_size they give an interval (`step_ratios`). corners: trials at the corners of a search's space, which bound
    what it will come to.
    """
    timings = Timings(earlier_trials)
    coming = plan.to_suggest
    if coming:
        epochs = coming.trials * coming.epochs
        at_corners = [_of_trials([trial], timings) for trial in corners]
        return Estimate(
            trials=coming.trials,
            epochs=epochs,
            worker_epochs=epochs * max(coming.sizes),
            seconds=None,
            worker_seconds=None,
            why=f"{coming.method} chooses the points while the study runs; these figures are the maximum",
            seconds_between=_extremes([each.seconds_between for each in at_corners], coming.trials),
            worker_seconds_between=_extremes([each.worker_seconds_between for each in at_corners], coming.trials),
        )
    return _of_factorised(plan, timings, timing_runs) if plan.factorised else _of_trials(plan.trials, timings)


def trial_spans(trials: Iterable[TrialPlan], earlier_trials: Iterable[Mapping[str, Any]]) -> list[Span | None]:
    """Seconds of training and evaluation of each trial, as `estimate` finds them. None if nothing is of use for it.

    earlier_trials: as for `estimate`.
    """
    timings = Timings(earlier_trials)
    return [timings.training(trial) for trial in trials]


def _of_trials(trials: Iterable[TrialPlan], timings: Timings) -> Estimate:
    trials = list(trials)
    epochs = [trial.evaluations for trial in trials]
    workers = [trial.num_gpus for trial in trials]
    spans = [span for trial in trials if (span := timings.training(trial))]
    timed = sum(span.timed for span in spans)
    complete, bounded = bool(trials) and timed == len(trials), bool(trials) and len(spans) == len(trials)
    unknown = len(trials) - timed
    on_gpus = [span.times(number) for span, number in zip(spans, workers, strict=True)] if bounded else []
    return Estimate(
        trials=len(trials),
        epochs=sum(epochs),
        worker_epochs=sum(count * number for count, number in zip(epochs, workers, strict=True)),
        seconds=sum(span.middle for span in spans) if complete else None,
        worker_seconds=sum(span.middle for span in on_gpus) if complete else None,
        why=None if complete else f"no earlier timing for {unknown} of {len(trials)} trials",
        timed=timed,
        seconds_between=_sum(spans) if bounded else None,
        worker_seconds_between=_sum(on_gpus) if bounded else None,
    )


def _of_factorised(plan: Plan, timings: Timings, timing_runs: int) -> Estimate:
    """Estimates trainings, held-out cells and timing runs.

    The held-out cells are not chosen yet. Their epochs are counted with the most workers, their seconds as the mean
    of all candidates. A timing run counts 0 seconds if no step like its own was measured.
    """
    assert plan.factorised is not None
    trainings, others = plan.swept, [size for size in plan.factorised.sizes if size != plan.factorised.train_on]
    trained, count = _of_trials(trainings, timings), plan.held_out_trials
    candidates = _of_trials([at_size(trial, size) for trial in trainings for size in others], timings)
    longest = max((trial.evaluations for trial in trainings), default=0)
    whole = _with_share(trained, candidates, share=count / max(candidates.trials, 1))
    kinds = [at_size(trial, size) for trial in timing_kinds(trainings) for size in plan.factorised.sizes] * timing_runs
    steps = [timings.step(trial) for trial in kinds]
    timed = [
        NO_TIME if step is None else step.times(timed_steps(trial)).at_least(TIMED_SECONDS)
        for step, trial in zip(steps, kinds, strict=True)
    ]
    on_gpus = [span.times(trial.num_gpus) for span, trial in zip(timed, kinds, strict=True)]
    return replace(
        whole,
        trials=trained.trials + count,
        epochs=trained.epochs + count * longest,
        worker_epochs=trained.worker_epochs + count * longest * max(others, default=0),
        seconds=_added(whole.seconds, timed),
        worker_seconds=_added(whole.worker_seconds, on_gpus),
        timings=len(kinds),
        grid=_with_share(trained, candidates, share=1.0),
        timed=trained.timed,
        seconds_between=_joined(whole.seconds_between, _sum(timed)),
        worker_seconds_between=_joined(whole.worker_seconds_between, _sum(on_gpus)),
    )


def _with_share(trained: Estimate, others: Estimate, share: float) -> Estimate:
    """The trainings, plus a share of the grid's other trials."""

    def of(value: Callable[[Estimate], float | None]) -> float | None:
        first, more = value(trained), value(others)
        return None if first is None or more is None else first + share * more

    known = trained.seconds is not None and others.seconds is not None
    return Estimate(
        trials=trained.trials + round(share * others.trials),
        epochs=trained.epochs + round(share * others.epochs),
        worker_epochs=trained.worker_epochs + round(share * others.worker_epochs),
        seconds=of(lambda each: each.seconds),
        worker_seconds=of(lambda each: each.worker_seconds),
        why=None if known else trained.why or f"{others.why} with another num_gpus",
        timed=trained.timed + round(share * others.timed),
        seconds_between=_joined(trained.seconds_between, others.seconds_between, share),
        worker_seconds_between=_joined(trained.worker_seconds_between, others.worker_seconds_between, share),
    )


def _sum(spans: Iterable[Span]) -> Between:
    """The ends, summed: trials alike err alike."""
    spans = list(spans)
    return sum(span.low for span in spans), sum(span.high for span in spans)


def _added(seconds: float | None, spans: Iterable[Span]) -> float | None:
    return None if seconds is None else seconds + sum(span.middle for span in spans)


def _joined(first: Between | None, second: Between | None, share: float = 1.0) -> Between | None:
    if first is None or second is None:
        return None
    return first[0] + share * second[0], first[1] + share * second[1]


def _extremes(found: Sequence[Between | None], count: int) -> Between | None:
    """The ends of so many trials, each of which lies between the least and the most of these."""
    known = [each for each in found if each is not None]
    if not known or len(known) < len(found):
        return None
    return count * min(low for low, _ in known), count * max(high for _, high in known)


def way_of(workload: Mapping[str, Any], train: Mapping[str, Any]) -> str:
    """What trials with comparable steps have in common: workload and way of training."""
    return json.dumps([step_keys(Workload, workload), step_keys(Train, train)], sort_keys=True)
