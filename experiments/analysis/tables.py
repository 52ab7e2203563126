"""Stage 8, analysis: the summary as the book's table, the same for terminal and report."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.analysis.metric import StudyMetric
from experiments.analysis.parts import present
from experiments.analysis.reading import NOTHING
from experiments.analysis.scaling import NEITHER, WEAK
from experiments.analysis.words import FLAGGED, metric_of, other_parameters, plain_text, three_digits
from experiments.plan import short_name

MARKS: Mapping[str, str] = {WEAK: "weak scaling", NEITHER: "neither strong nor weak scaling"}
"""How a speed-up is marked whose comparison is not strong scaling."""

Summary = Mapping[str, Any]
Row = Mapping[str, Any]


def book_table(summary: Summary) -> tuple[list[str], list[list[str]]]:
    """The table in the book's form, a row a cell: header and rows of text.

    num_gpus, batch, lr, other swept parameters, epoch s, test acc, speed-up, efficiency, where a target was reached the
    training seconds to it, and notes: comparisons that are not strong scaling, trials that did not finish, flags. On
    CPU the first column says so. A number that comes from flagged timings is marked †.
    """
    cpu = "cpu" in (summary["study"]["device"] or "")
    others, metric = other_parameters(summary), metric_of(summary["study"])
    header = ["num_gpus (CPU)" if cpu else "num_gpus", "batch", "lr", *(short_name(key) for key in others)]
    header += ["epoch s", metric.heading, "speed-up", "efficiency"]
    target = summary["recommendation"]["target"]
    header += [*([] if target is None else [f"s to {target:g}"]), "notes"]
    times = {row["label"]: [row["seconds"]] for row in summary["time_to_target"] if row["target"] == target}
    rows = summary["cells"]
    flagged = {row["label"] for row in rows if row["flags"]}
    return header, [
        [
            *_settings(row["params"], others),
            *_figures(row, metric, flagged),
            *(_marked(_seconds(seconds), row["label"] in flagged) for seconds in times.get(row["label"], [])),
            ", ".join(_row_notes(row)),
        ]
        for row in rows
    ]


def _settings(params: Mapping[str, Any], others: Sequence[str]) -> list[str]:
    """What was set: the usual three, and what else was swept."""
    usual = [str(params["num_gpus"]), str(params["batch_size"]), f"{params['learning_rate']:g}"]
    return [*usual, *(plain_text(params[key]) for key in others)]


def _figures(row: Row, metric: StudyMetric, flagged: set[str]) -> list[str]:
    """What was measured: seconds an epoch, the metric, speed-up and efficiency."""
    value, doubtful = row[metric.key], row["label"] in flagged
    gains = [NOTHING if row[key] is None else f"{row[key]:.2f}" for key in ("speedup", "efficiency")]
    return [
        _marked(_seconds(row["epoch_seconds"]["value"]), doubtful),
        metric.text(value["value"]) if present(value) else NOTHING,
        *(_marked(gain, doubtful or row["base"] in flagged) for gain in gains),
    ]


def _marked(text: str, touched: bool) -> str:
    return f"{text}{FLAGGED}" if touched and text != NOTHING else text


def best_rows(summary: Summary, count: int) -> list[int]:
    """Positions, in their order, of the cells that are best: those recommended, then soonest at the target, then by the
    metric's value.
    """
    metric, recommendation = metric_of(summary["study"]), summary["recommendation"]
    target = recommendation["target"]
    chosen = [recommendation[role] for role in ("fastest", "cheapest", "knee", metric.choice_key)]
    recommended = {choice["label"] for choice in chosen if present(choice)}
    seconds = {row["label"]: row["seconds"] for row in summary["time_to_target"] if row["target"] == target}
    turned = -1.0 if metric.mode == "max" else 1.0

    def rank(position: int) -> tuple[bool, float, float]:
        row = summary["cells"][position]
        reached, value = seconds.get(row["label"]), row[metric.key]
        return (
            row["label"] not in recommended,
            math.inf if reached is None else reached,
            turned * value["value"] if present(value) else math.inf,
        )

    return sorted(sorted(range(len(summary["cells"])), key=rank)[:count])


def _seconds(seconds: float | None) -> str:
    return NOTHING if seconds is None else three_digits(seconds)


def _row_notes(row: Mapping[str, Any]) -> list[str]:
    """What marks a cell: a comparison that is not strong scaling, that it is the product of trainings with another
    num_gpus and a timing run, trials that did not finish (a stopped one ends before the last epoch), flags.
    """
    trials = row["trials"]
    ended = [
        f"{trials[status]} {status.replace('_', ' ')}"
        for status in ("stopped", "diverged", "out_of_memory", "failed", "skipped")
        if trials[status]
    ]
    kind = [MARKS[row["scaling"]]] if row["scaling"] in MARKS else []
    inferred = ["inferred"] if row.get("kind") == "factorised" else []
    return [*(kind if row["speedup"] is not None else []), *inferred, *ended, *row["flags"]]
