"""Why a study names no fastest cell, in one line that says which measurement would give one, and what it costs."""

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

from scalestudy.experiments.analysis.answers.target_times import TargetTimes
from scalestudy.experiments.analysis.measures.cells import Cell
from scalestudy.experiments.analysis.measures.metric import StudyMetric
from scalestudy.experiments.analysis.measures.parts import Row, positive, present
from scalestudy.experiments.analysis.measures.units import plural, seconds_text
from scalestudy.experiments.analysis.measures.usable import test_values


def why_none(
    metric: StudyMetric,
    allowed: Sequence[Cell],
    every: Sequence[Cell],
    cell_rows: Sequence[Row],
    by_target: Mapping[float, TargetTimes],
    *,
    reached: float | None,
    max_gpus: int | None,
) -> str:
    """Return the reason, as a clause.

    allowed: the cells that may be chosen. every: all of the study; cell_rows: theirs, from `cell_row`. reached: the
    target to which some allowed cell's time is known. max_gpus: of the allowed cells; None: no limit.
    """
    tried = [cell for cell in every if cell.counted]
    if not tried:
        return _nothing_ended(every)
    if len(tried) == 1 and reached is not None:
        seconds = statistics.median(trial.train_seconds for trial in tried[0].counted)
        return (
            f"only one cell was run ({tried[0].label}), so there is nothing to compare: add a number of workers, a "
            f"batch size or a learning rate; a training takes some {seconds_text(seconds)}"
        )
    if reached is not None and all(trial.result_alone for cell in allowed for trial in cell.counted):
        return (
            f"each run that reached {reached:g} has its result alone, so when it did is not known: give their "
            "evaluations, or say that they ended there (--set stop=target)"
        )
    if reached is not None:
        harder = _harder_target(metric, allowed, reached)
        return (
            f"the cells that reached {reached:g} met it at their first evaluation, too early to compare times: name a "
            f"harder target{harder}"
        )
    if not by_target:
        return f"the spec names no target {metric.name} (targets.accuracy)"
    labels = {cell.label for cell in allowed}
    for target in metric.hardest_first(by_target):
        for row in by_target[target].rows:
            if row["label"] in labels and row["measured_seconds"] is not None:
                return f"{row['label']} reached {target:g}, but no time to it can be told: {row['why']}"
    easiest = metric.easiest_first(by_target)[0]
    larger = sorted(by_target[easiest].options, key=lambda option: float(option["seconds"]))
    no_cell, did = "no cell", ""
    if larger:
        no_cell, did = f"no cell with at most {plural(max_gpus or 0, 'worker')}", f" ({larger[0]['label']} did)"
    rows = [row for row in cell_rows if row["label"] in labels]
    tail = _how_far(metric, easiest, allowed, rows, {row["label"]: row for row in by_target[easiest].rows})
    values = [row[metric.best_key]["value"] for row in rows if present(row[metric.best_key])]
    met = any(not metric.better(easiest, value) for value in values)
    kept = " in most of its seeds, at two evaluations in a row" if met else ""
    return f"{no_cell} reached a {metric.title} of {easiest:g}{kept}{did}{tail}"


def _nothing_ended(every: Sequence[Cell]) -> str:
    counts = Counter(trial.status.replace("_", " ") for cell in every for trial in cell.own)
    if not counts:
        return "no trial has ended yet"
    ended = ", ".join(f"{count} {status}" for status, count in counts.items())
    return (
        f"no trial ended in a way that can be compared ({ended}): the report says why, under trials that did not finish"
    )


def _harder_target(metric: StudyMetric, cells: Sequence[Cell], easy: float) -> str:
    """Suggest the hardest target that most seeds of some cell reached and none at its first evaluation.

    Empty if there is none.
    """
    found: list[tuple[float, str]] = []
    for cell in cells:
        curves = [test_values(trial, metric) for trial in cell.counted]
        # a target is reached by two evaluations in a row, so the worse of each two counts
        kept = [
            min((max(map(metric.order, pair)) for pair in itertools.pairwise(values)), default=math.inf)
            for values in curves
        ]
        middle = sorted(kept)[len(kept) // 2] if kept else math.inf
        if not math.isfinite(middle):
            continue
        target = _rounded(metric, middle if metric.mode == "min" else -middle)
        if metric.better(target, easy) and all(metric.better(target, values[0]) for values in curves if values):
            found.append((target, cell.label))
    if not found:
        return ""
    target, label = min(found, key=lambda each: metric.order(each[0]))
    return f", such as {target:g}, which {label} has reached"


def _rounded(metric: StudyMetric, value: float) -> float:
    """Round a value to two digits, or a share to hundredths, in the direction that is easier to reach."""
    if not value:
        return value
    unit = 0.01 if metric.share else 10.0 ** (math.floor(math.log10(abs(value))) - 1)
    whole = math.floor(value / unit) if metric.mode == "max" else math.ceil(value / unit)
    return float(f"{whole * unit:.10g}")


def _how_far(
    metric: StudyMetric, target: float, cells: Sequence[Cell], rows: Sequence[Row], told: Mapping[str, Row]
) -> str:
    """Say how far the best cell came, in how many evaluations, and what one more costs; empty if no cell has a value.

    rows: of these cells. told: rows of `TargetTimes` by label.
    """
    known = [row for row in rows if present(row[metric.best_key])]
    if not known:
        return ""
    best = min(known, key=lambda row: (metric.order(row[metric.best_key]["value"]), row["params"]["num_gpus"]))
    [cell] = [cell for cell in cells if cell.label == best["label"]]
    value, count = best[metric.best_key]["value"], max(len(trial.epochs) for trial in cell.timed)
    came = f"the best, {cell.label}, came to {metric.text(value)} in {plural(count, 'evaluation')}"
    if not metric.better(target, value):
        row = told[cell.label]
        came += f", but {row['reached']} of {plural(row['n_seeds'], 'seed')} met it twice in a row"
    advice = "train longer, or try other rates"
    if cell.with_status(("at_target",)):
        came, advice = f"{came}, where its trainings stopped", "a study with this target would tell"
    seconds = positive(best["epoch_seconds"]["value"])
    cost = f" ({seconds_text(seconds)} from one evaluation to the next)" if seconds else ""
    return f": {came}; {advice}{cost}"
