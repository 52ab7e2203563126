"""Two figures of the time to the target: by size, and predicted."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from scalestudy.experiments.analysis.answers.recommendation import ROLES
from scalestudy.experiments.analysis.measures.cells import combination_of
from scalestudy.experiments.analysis.measures.parts import Row, Summary, part_of, present, why_of
from scalestudy.experiments.analysis.measures.units import (
    FLAGGED,
    plural,
    seconds_text,
    three_digits,
)
from scalestudy.experiments.report.drawing import (
    INK,
    LINES,
    MUTED,
    PALETTE,
    PAPER,
    Drawn,
    canvas,
    export,
    legend_below,
    line_handle,
    log_sizes_axis,
    not_drawn,
    patch_handle,
    plain_log_axes,
    sentences,
)
from scalestudy.experiments.report.flags import flag_words
from scalestudy.experiments.report.maps import MOST_COLUMNS, MOST_ROWS, Bins, Square, draw_map, height_of, shades


def roles_of(recommendation: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the roles of each recommended cell, by its label."""
    names: dict[str, list[str]] = {}
    for role in ROLES:
        if present(recommendation[role]):
            names.setdefault(recommendation[role]["label"], []).append(role)
    return names


def flagged_labels(summary: Summary) -> dict[str, Row]:
    """Return the cells whose timings carry a flag, by label."""
    return {row["label"]: row for row in summary["cells"] if row["flags"]}


def time_map_figure(summary: Summary) -> Drawn:
    """Draw seconds to the target over num_gpus and batch size, each at its best learning rate."""
    name, recommendation = "time_to_target", summary["recommendation"]
    fastest, target = recommendation["fastest"], recommendation["target"]
    title = "Time to the target by size"
    if not present(fastest):
        return not_drawn(name, title, why_of(fastest))
    combination = combination_of(fastest["params"])
    rows = [row for row in summary["time_to_target"] if row["target"] == target]
    rows = [row for row in rows if combination_of(row["params"]) == combination]
    columns = Bins.of((row["params"]["num_gpus"] for row in rows), MOST_COLUMNS)
    lines = Bins.of((row["params"]["batch_size"] for row in rows), MOST_ROWS)
    best = _best_in_squares(rows, columns, lines)
    flagged = flagged_labels(summary)
    lent = {row["label"] for row in summary["cells"] if row["kind"] == "lent"}
    trained = [row for row in best.values() if row["label"] not in lent]
    squares = _time_squares(best, roles_of(recommendation), flagged)
    with canvas(height=height_of(len(lines.names), 2)) as (figure, axes):
        draw_map(axes, squares, columns.names, lines.names)
        axes.set(xlabel=columns.axis("workers"), ylabel=lines.axis("batch size (all workers)"))
        touched = [flagged[row["label"]] for row in best.values() if row["label"] in flagged]
        of = f"With {combination}: from" if combination else "From"
        ranges = "Where a column or row is a range, the soonest of it. " if columns.ranges or lines.ranges else ""
        caption = (
            f"{of} {_reached_words(best, flagged, trained)} Each square: training seconds to {target:g} at the rate "
            f"(lr) that is soonest there; the stronger the colour, the sooner. {ranges}"
        )
        return export(figure, name, f"Time to {target:g} by size", sentences(caption.rstrip(), flag_words(touched)))


def _best_in_squares(rows: Sequence[Row], columns: Bins, lines: Bins) -> dict[tuple[int, int], Row]:
    """Return the soonest row of each square. If none reached the target, it is a row that did not."""
    best: dict[tuple[int, int], Row] = {}
    for row in rows:
        key = columns.place(row["params"]["num_gpus"]), lines.place(row["params"]["batch_size"])
        if key not in best or _seconds(row) < _seconds(best[key]):
            best[key] = row
    return best


def _seconds(row: Row) -> float:
    return math.inf if row["seconds"] is None else float(row["seconds"])


def _time_squares(
    best: Mapping[tuple[int, int], Row], roles: Mapping[str, Sequence[str]], flagged: Mapping[str, Row]
) -> list[Square]:
    reached = [key for key, row in best.items() if row["seconds"] is not None]
    strength = dict(zip(reached, shades([-math.log(best[key]["seconds"]) for key in reached]), strict=True))
    squares = []
    for (column, line), row in best.items():
        if row["seconds"] is not None:
            told = [_time_words(row, flagged), f"lr {row['params']['learning_rate']:g}"]
        else:
            told = ["met at the last", "evaluation"] if row.get("met_last") else ["not reached"]
        role = [roles[row["label"]][0]] if row["label"] in roles else []  # a square has room for the first
        squares.append(
            Square(
                column=column,
                row=line,
                lines=[*told, *role],
                shade=strength.get((column, line)),
                chosen=bool(role),
            )
        )
    return squares


def _time_words(row: Row, flagged: Mapping[str, Row]) -> str:
    """Return a time to the target, marked if its timings have flags."""
    return f"{seconds_text(row['seconds'])}{FLAGGED if row['label'] in flagged else ''}"


def _reached_words(best: Mapping[tuple[int, int], Row], flagged: Mapping[str, Row], trained: Sequence[Row]) -> str:
    """Say between which times the target is reached, and how many seeds missed it.

    trained: the rows of cells that were trained themselves.
    """
    times = [row for row in best.values() if row["seconds"] is not None]
    soonest, latest = min(times, key=_seconds), max(times, key=_seconds)
    seeds = sum(row["n_seeds"] for row in trained)
    missed = seeds - sum(row["reached"] for row in trained)
    words = f"{_time_words(soonest, flagged)} ({soonest['label']})"
    words += f" to {_time_words(latest, flagged)} ({latest['label']})" if len(times) > 1 else ""
    return f"{words}; {missed} of {plural(seeds, 'seed')} at these rates never got there." if missed else f"{words}."


def predictions_figure(summary: Summary) -> Drawn:
    """Draw seconds to the target over num_gpus, predicted and measured, on log axes."""
    name, title = "predictions", "Beyond the cluster at hand"
    part = part_of(summary, "predictions")
    rows = valid_rows(part)
    if not rows:
        lack = part.get("breaks_at") if present(part) else part
        return not_drawn(name, title, why_of(lack) if lack else "no size can be predicted")
    measured = _measured(summary, part)
    flagged = flagged_labels(summary)
    with canvas(height=3.2) as (figure, axes):
        mark = f" {FLAGGED}" if part.get("flagged") else ""
        handles = [*_draw_rows(axes, rows, mark), *_draw_measured(axes, measured, flagged)]
        broken = part.get("breaks_at")
        sizes = [row["num_gpus"] for row in rows] + [row["params"]["num_gpus"] for row in measured]
        handles += _draw_limits(axes, rows, broken)
        axes.margins(y=0.15)
        plain_log_axes(axes, "y")
        log_sizes_axis(axes, [*sizes, *([broken["num_gpus"]] if broken else [])])
        axes.set(xlabel="workers", ylabel=f"training seconds to {part['target']:g}")
        legend_below(figure, handles)
        touched = [flagged[row["label"]] for row in measured if row["label"] in flagged]
        caption = sentences(_prediction_caption(part, rows), flag_words(touched))
        return export(figure, name, f"Time to {part['target']:g} beyond the cluster", caption)


def valid_rows(part: Mapping[str, Any]) -> list[Row]:
    """Return the sizes with a predicted time, fewest workers first."""
    rows = part["rows"] if present(part) else []
    known = [row for row in rows if row["valid"] and row["seconds_to_target"] is not None]
    return sorted(known, key=lambda row: float(row["num_gpus"]))


def _measured(summary: Summary, part: Mapping[str, Any]) -> list[Row]:
    """Return the soonest measured cell of each num_gpus, for the same target and combination."""
    soonest: dict[int, Row] = {}
    for row in summary["time_to_target"]:
        alike = row["target"] == part["target"] and combination_of(row["params"]) == part.get("of", "")
        size = row["params"]["num_gpus"]
        if alike and row["seconds"] is not None and row["seconds"] < soonest.get(size, {"seconds": 1e300})["seconds"]:
            soonest[size] = row
    return [soonest[size] for size in sorted(soonest)]


def _draw_rows(axes: Any, rows: Sequence[Row], mark: str) -> list[Any]:
    """Draw the prediction with its band: solid within the measured sizes, dotted and hollow beyond.

    mark: ends its names.
    """
    x, y = [row["num_gpus"] for row in rows], [row["seconds_to_target"] for row in rows]
    within = sum(not row["beyond"] for row in rows)
    axes.plot(x[:within], y[:within], color=PALETTE[0], zorder=2)
    axes.plot(x[max(within - 1, 0) :], y[max(within - 1, 0) :], color=PALETTE[0], linestyle=LINES[2], zorder=2)
    for row in rows:
        face = PAPER if row["beyond"] else PALETTE[0]
        axes.plot(row["num_gpus"], row["seconds_to_target"], marker="s", color=PALETTE[0], markerfacecolor=face)
    handles: list[Any] = [line_handle(color=PALETTE[0], marker="s", label=f"predicted{mark}")]
    if any(row["beyond"] for row in rows):
        handles.append(
            line_handle(color=PALETTE[0], marker="s", markerfacecolor=PAPER, linestyle=LINES[2], label=f"beyond{mark}")
        )
    banded = [row for row in rows if row["low"] is not None and row["high"] is not None]
    if len(banded) > 1:
        ends = [[row[end] for row in banded] for end in ("low", "high")]
        axes.fill_between([row["num_gpus"] for row in banded], *ends, color=PALETTE[0], alpha=0.15, linewidth=0)
        handles.append(patch_handle(color=PALETTE[0], alpha=0.15, linewidth=0, label="its 90% band"))
    return handles


def _draw_measured(axes: Any, rows: Sequence[Row], flagged: Mapping[str, Row]) -> list[Any]:
    looks = {"linestyle": "none", "marker": "X", "markersize": 7, "color": PALETTE[1]}
    for row in rows:
        axes.plot(row["params"]["num_gpus"], row["seconds"], zorder=4, **looks)
        if row["label"] in flagged:
            place = (row["params"]["num_gpus"], row["seconds"])
            axes.annotate(FLAGGED, place, xytext=(5, 3), textcoords="offset points", fontsize=8)
    return [line_handle(label="measured, soonest", **looks)] if rows else []


def _draw_limits(axes: Any, rows: Sequence[Row], broken: Mapping[str, Any] | None) -> list[Any]:
    """Draw upright lines at the largest measured size, and where the prediction ends."""
    handles = []
    within = [row["num_gpus"] for row in rows if not row["beyond"]]
    if within and any(row["beyond"] for row in rows):
        axes.axvline(max(within), color=MUTED, linewidth=1, linestyle=(0, (2, 2)), zorder=1)
        handles.append(line_handle(color=MUTED, linewidth=1, linestyle=(0, (2, 2)), label="largest measured"))
    if broken:
        axes.axvline(broken["num_gpus"], color=INK, linewidth=1.2, zorder=1)
        axes.annotate(
            "ends here",
            (broken["num_gpus"], 1),
            xycoords=("data", "axes fraction"),
            xytext=(-4, -3),
            textcoords="offset points",
            rotation=90,
            ha="right",
            va="top",
            fontsize=8,
        )
    return handles


def _prediction_caption(part: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """Name the soonest size. The lead above the figure says where the prediction ends, and what is in doubt."""
    best = (part.get("best") or {}).get("fastest")
    best = best if best and present(best) else min(rows, key=lambda row: float(row["seconds_to_target"]))
    mark = FLAGGED if part.get("flagged") else ""
    wide = best["low"] is not None and best["high"] is not None
    interval = f" ({seconds_text(best['low'])} to {seconds_text(best['high'])})" if wide else ""
    return (
        f"Predicted soonest: {plural(best['num_gpus'], 'worker')} at batch {best['batch_size']:g}, "
        f"{seconds_text(best['seconds_to_target'])}{mark}{interval} and {three_digits(best['worker_seconds'])} "
        "worker-seconds."
    )
