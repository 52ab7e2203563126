"""Usable records, and the figures of one trial.

A trial is one line of `trials.jsonl` (docs/concepts.md: Words). A damaged line does not stop a report: one that does
not say what ran, or how it ended, is left out of every figure, and a caveat says so. A missing, zero or negative
measurement counts as not measured.

A timing run makes a fixed number of steps, so its last epoch is cut off, and it is not evaluated. Its figures are means
over its steps: such runs are short, and epochs of different lengths have no useful median.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scalestudy.experiments.analysis.measures.metric import StudyMetric
from scalestudy.experiments.analysis.measures.parts import Figure, median, missing
from scalestudy.experiments.analysis.measures.trial import EPOCHS_WITHOUT_FIRST, Line, Trial
from scalestudy.experiments.analysis.measures.units import plural
from scalestudy.experiments.plan.plan import cell_of, label
from scalestudy.experiments.plan.timing_runs import TIMED, step_key
from scalestudy.training.config import PHASES as PHASES

STATUSES = ("finished", "at_target", "stopped", "diverged", "out_of_memory", "failed", "skipped")
"""How trials end. A scheduler ended those that are `stopped`, or the limit that an adaptive search had set them.

`targets.stop` ended those `at_target` when they reached the study's hardest target.
"""
CUT = ("at_target", "stopped")
"""Statuses of trainings that ended before their last epoch, so that their last metric is no whole training's."""
COUNTED = (*TIMED, "diverged", "out_of_memory")
"""Statuses that say something about the cell: such a trial misses the targets that it did not reach."""


@dataclass(frozen=True, kw_only=True)
class Usable:
    """What `usable` has chosen of the lines of `trials.jsonl`."""

    trials: tuple[Trial, ...]
    ended: frozenset[str]  # ids in all lines, those that are left out too
    left_out: int  # number of lines

    @property
    def timing_runs(self) -> list[Trial]:
        """The timing runs that came to their end."""
        return [trial for trial in self.trials if trial.is_timing and trial.status in TIMED]


def usable(lines: Sequence[Line] | Usable) -> Usable:
    """Read the lines with an id, a known status and whole parameters.

    A training that was cut is marked `without_first` if its siblings' timings leave out the first epoch. Siblings have
    the same steps, whatever their rate and seed. A training that was cut has too few epochs to leave out the first,
    slow one by itself, so its timings could not be compared with theirs.

    A trial is marked `on_more_nodes` if another of its cell, or for a timing run of its kind of step, was timed on
    fewer nodes: workers are placed on as few as can hold them, and times on one node and on two have no common mean.
    """
    if isinstance(lines, Usable):
        return lines
    complete = [Trial.of(line) for line in lines if _complete(line)]
    trainings = [trial for trial in without_timing_runs(complete) if trial.status in TIMED]
    warmed = {step_key(each.params) for each in trainings if len(each.with_time) >= EPOCHS_WITHOUT_FIRST}
    kinds = [_like(trial) for trial in complete]
    fewest: dict[str, int] = {}
    for trial, like in zip(complete, kinds, strict=True):
        if trial.status in TIMED and trial.with_time:
            fewest[like] = min(trial.nodes, fewest.get(like, trial.nodes))
    marked = []
    for trial, like in zip(complete, kinds, strict=True):
        without_first = trial.status in CUT and step_key(trial.params) in warmed
        more_nodes = trial.nodes > fewest.get(like, trial.nodes)
        told = replace(trial, without_first=without_first, on_more_nodes=more_nodes)
        marked.append(told if without_first or more_nodes else trial)
    ids = [line.get("trial_id") for line in lines if isinstance(line, Mapping)]
    return Usable(
        trials=tuple(marked),
        ended=frozenset(each for each in ids if isinstance(each, str)),
        left_out=len(lines) - len(marked),
    )


def _like(trial: Trial) -> str:
    """Return the key of trials whose timings are repeats: their cell; for timing runs, their kind of step."""
    return step_key(trial.params) if trial.is_timing else label(cell_of(trial.params))


def _complete(line: Any) -> bool:
    if not isinstance(line, Mapping) or line.get("status") not in STATUSES:
        return False
    params = line.get("params")
    if not isinstance(line.get("trial_id"), str) or not isinstance(params, Mapping):
        return False
    if not all(_whole(params.get(key)) and params[key] >= 1 for key in ("num_gpus", "batch_size")):
        return False
    # any rate and seed have the same steps
    return line.get("kind") == "timing" or (_number(params.get("learning_rate")) and _whole(params.get("seed")))


def _number(value: Any) -> bool:
    """Whether a parameter is a finite number. It may be huge, since a user may ask for that."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _whole(value: Any) -> bool:
    return _number(value) and value == int(value)


def test_values(trial: Trial, metric: StudyMetric) -> list[float]:
    """Return the metric after each epoch that has it."""
    key = metric.key
    return [epoch.tested[key] for epoch in trial.epochs if key in epoch.tested]


def final_value(trial: Trial, metric: StudyMetric) -> float | None:
    """Return the metric after the last epoch, as in the book."""
    values = test_values(trial, metric)
    return values[-1] if values else None


def best_value(trial: Trial, metric: StudyMetric) -> float | None:
    """Return the best value of the metric after any epoch."""
    return metric.best(test_values(trial, metric))


def curve(trial: Trial, metric: StudyMetric, epoch_seconds: float | None = None) -> list[tuple[float, float]]:
    """Return (training seconds so far, value of the metric) after each epoch that has both. See `elapsed_seconds`."""
    key, seconds = metric.key, elapsed_seconds(trial, epoch_seconds)
    points = [
        (elapsed, epoch.tested[key])
        for epoch, elapsed in zip(trial.epochs, seconds, strict=False)
        if key in epoch.tested
    ]
    return curve_of_result(trial, points, metric) if trial.result_alone else points


def curve_of_result(
    trial: Trial, points: Sequence[tuple[float, float]], metric: StudyMetric
) -> list[tuple[float, float]]:
    """Return the curve that says of a target what a result alone says. points: seconds, or steps, and the result.

    The result is confirmed, so it comes twice: where it meets a target, that was met by then at the latest. A training
    that ended as it met a target was just below it until then.
    """
    if len(points) != 1:
        return list(points)
    [(at, value)] = points
    curve = [(at, value), (at, value)]
    if trial.stopped_at is None or metric.better(trial.stopped_at, value):
        return curve
    worse = -math.inf if metric.mode == "max" else math.inf
    return [(at, math.nextafter(trial.stopped_at, worse)), *curve]


def elapsed_seconds(trial: Trial, epoch_seconds: float | None = None) -> list[float]:
    """Return the training seconds so far after each epoch, up to the first epoch without a time.

    Evaluation is not timed (docs/formulas.md §6). epoch_seconds: duration of an undisturbed epoch, of unequal periods
    of the longest; None: as measured.
    """
    found: list[float] = []
    elapsed = 0.0
    most = max((epoch.steps for epoch in trial.epochs if epoch.steps), default=None)
    for epoch in trial.epochs:
        seconds = epoch.train_seconds
        if seconds is None:
            break
        if epoch_seconds is not None:
            seconds = epoch_seconds * (epoch.steps / most) if epoch.steps and most else epoch_seconds
        elapsed += seconds
        found.append(elapsed)
    return found


def time_to_target(points: Sequence[tuple[float, float]], target: float, metric: StudyMetric) -> float:
    """Return the training seconds until the target is reached (`StudyMetric.arrival`); infinity if it never is.

    points: from `curve`. The time is interpolated between the evaluation that reaches it and the one before. The first
    evaluation's time is an upper bound and stands for the time (docs/formulas.md §6).
    """
    place = metric.arrival([value for _, value in points], target)
    if place is None:
        return math.inf
    return points[0][0] if place == 0 else crossing(points, place, target)


def crossing(points: Sequence[tuple[float, float]], place: int, target: float) -> float:
    """Return when a target is met between the evaluation at this place, 1 or more, and the one before, interpolated."""
    (before, value_before), (after, value) = points[place - 1 : place + 1]
    return before + (target - value_before) / (value - value_before) * (after - before)


def reached_at_once(points: Sequence[tuple[float, float]], target: float, metric: StudyMetric) -> bool:
    """Whether the first evaluation reaches the target, so that `time_to_target` is an upper bound."""
    return metric.arrival([value for _, value in points], target) == 0


def censored(status: str, cost: float) -> bool:
    """Whether a trial ended before a target on purpose, so that it says nothing. cost: to it, infinity if missed."""
    return status in CUT and not math.isfinite(cost)


def without_timing_runs(trials: Iterable[Trial]) -> list[Trial]:
    """Return the lines of trainings."""
    return [trial for trial in trials if not trial.is_timing]


def timings_by_step(trials: Sequence[Trial]) -> dict[str, tuple[Trial, ...]]:
    """Return the timing runs that ended well, in their order, by the step that they timed (`step_key`)."""
    runs: dict[str, tuple[Trial, ...]] = {}
    for trial in trials:
        if trial.is_timing and trial.status in TIMED and _rated(trial):
            key = step_key(trial.params)
            runs[key] = (*runs.get(key, ()), trial)
    return runs


def _rated(timing: Trial) -> list[tuple[float, float, float]]:
    """Return examples, steps and their seconds (`Trial.seconds_of`), for each timed epoch."""
    return [
        (epoch.samples, epoch.steps, seconds)
        for epoch in timing.timed
        if epoch.samples and epoch.steps and (seconds := timing.seconds_of(epoch))
    ]


def undisturbed_rates(timings: Iterable[Trial]) -> list[float]:
    """Return the samples/s over all workers, of each run."""
    runs = [_rated(timing) for timing in timings]
    return [sum(samples for samples, _, _ in run) / sum(seconds for _, _, seconds in run) for run in runs if run]


def undisturbed_token_rates(timings: Iterable[Trial]) -> list[float]:
    """Return the tokens/s over all workers, of each run whose task counts tokens."""
    rates = []
    for timing in timings:
        known = [
            (epoch.tokens_per_second, epoch.samples / epoch.samples_per_second)
            for epoch in timing.timed
            if epoch.tokens_per_second and epoch.samples and epoch.samples_per_second
        ]
        if known:
            rates.append(sum(rate * seconds for rate, seconds in known) / sum(seconds for _, seconds in known))
    return rates


def undisturbed_step_seconds(timings: Iterable[Trial]) -> list[float]:
    """Return the seconds a step, of each run."""
    runs = [_rated(timing) for timing in timings]
    return [sum(seconds for _, _, seconds in run) / sum(steps for _, steps, _ in run) for run in runs if run]


def undisturbed_phase_seconds(timings: Sequence[Trial]) -> Figure:
    """Return seconds a step of each phase: the undisturbed step, divided as the profiled steps were."""
    timed = [epoch for timing in timings for epoch in timing.timed]
    epochs = [(epoch.phases, epoch.steps) for epoch in timed if epoch.phases and epoch.steps]
    sums: Mapping[str, float] = {name: math.fsum(phases[name] * steps for phases, steps in epochs) for name in PHASES}
    whole, seconds = math.fsum(sums.values()), median(undisturbed_step_seconds(timings))
    if not whole or not seconds:
        return missing("phases were not measured")
    return {name: value / whole * seconds for name, value in sums.items()}


def timing_counts(trials: Sequence[Trial]) -> dict[str, int]:
    """Return how many timing runs there were, and how many of them gave figures."""
    runs = [trial for trial in trials if trial.is_timing]
    return {"runs": len(runs), "used": sum(map(len, timings_by_step(runs).values()))}


def unusable_caveat(count: int) -> str | None:
    """Return a sentence about the lines that were left out, or None. count: how many."""
    if not count:
        return None
    records, lack = ("record", "lacks") if count == 1 else ("records", "lack")
    return (
        f"{count} {records} of trials.jsonl {lack} an id, a known status, or whole parameters (num_gpus, batch_size, "
        "learning_rate, seed): left out of every figure."
    )


def cut_caveats(trials: Sequence[Trial]) -> list[str]:
    """Return sentences about the trainings that ended before their last epoch."""
    counts = Counter("limited" if trial.limited else trial.status for trial in without_timing_runs(trials))
    words = {
        "limited": "stopped where the prediction ended. Of such a one it is only known that it takes longer to the "
        "target.",
        "stopped": "stopped early. When one that had not met a target would have met it is estimated from those that "
        "came further; where fewer than three did, it is only known to take longer. It never counts as a miss.",
        "at_target": "stopped at the target. The last metric of one is not that of a whole training.",
    }
    return [
        f"{'1 training was' if counts[status] == 1 else f'{counts[status]} trainings were'} {said}"
        for status, said in words.items()
        if counts[status]
    ]


def spanning_caveats(rows: Sequence[Mapping[str, Any]], trials: Sequence[Trial]) -> list[str]:
    """Return sentences about trials whose workers were on several nodes. rows: from `cells.cell_row`."""
    left_out = sum(trial.on_more_nodes for trial in trials)
    spanning = sum(row.get("nodes", 1) > 1 for row in rows)
    caveats = []
    if left_out:
        whose, like = ("1 trial", "it") if left_out == 1 else (f"{left_out} trials", "them")
        caveats.append(
            f"The times of {whose} are left out, whose workers were on more nodes than those of others like {like}. "
            "What was learnt counts."
        )
    if spanning:
        cells = "1 cell" if spanning == 1 else f"{spanning} cells"
        caveats.append(f"The times of {cells} are of workers on several nodes, and include the network between these.")
    return caveats


def accelerators_of(trials: Iterable[Trial]) -> dict[str, int]:
    """Count the trials on each type of GPUs. Trials that don't say, as of earlier versions, are left out."""
    named = [trial.world.accelerator for trial in trials if trial.world.accelerator]
    return dict(sorted(Counter(named).items()))


def accelerator_caveat(trials: Sequence[Trial]) -> str | None:
    """Return a sentence about trials on GPUs of several types, since their times don't compare, or None."""
    counts = accelerators_of(trials)
    if len(counts) < 2:
        return None
    listed = ", ".join(f"{kind} ({plural(count, 'trial')})" for kind, count in counts.items())
    return (
        f"The trials ran on GPUs of {len(counts)} types: {listed}. Their times are pooled and compared as if these "
        "were one: no speed-up, law or cost here can be relied on. Run the study on nodes of one type."
    )


def versions_caveat(trials: Sequence[Trial]) -> str | None:
    """Return a sentence about trials of different code or data of the user's, since they don't compare, or None.

    What a trial does not say, as of an earlier version, is left out.
    """
    versions: dict[str, set[str]] = {}
    for trial in trials:
        for name, digests in trial.fingerprint.items() if trial.status in COUNTED else ():
            versions.setdefault(name, set()).update(digests)
    changed = " and ".join(dict.fromkeys(name.split()[0] for name, found in versions.items() if len(found) > 1))
    if not changed:
        return None
    return (
        f"Trials ran with different versions of {changed}: cells may differ for that alone. A new study compares one "
        "version."
    )


def timed_alone_caveat(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Return a sentence about cells whose timings come from separate runs, or None."""
    timed = sum(row["timed_apart"] for row in rows)
    if not timed:
        return None
    return (
        f"Timings of {timed} of {len(rows)} cells are from short runs with the node to themselves; their time to a "
        "target is steps to target times undisturbed seconds a step."
    )
