"""Stage 9, report: time to the target over num_gpus and batch, and time against GPU-seconds."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.analysis.parts import present
from experiments.analysis.reading import why_of
from experiments.analysis.words import marked_seconds, seconds_text, three_digits, work_unit
from experiments.report.bins import Bins
from experiments.report.drawing import (
    INK,
    MUTED,
    PAPER,
    Drawn,
    canvas,
    export,
    legend_below,
    not_drawn,
    plain_log_axes,
    sentences,
)
from experiments.report.heat_map import MOST_COLUMNS, MOST_ROWS, Square, draw_map, height_of, shades
from experiments.report.law_curves import combination_of
from experiments.report.styles import DAGGER, MOST_CELLS, Styles, flag_words

Summary = Mapping[str, Any]
Row = Mapping[str, Any]
ROLES = ("fastest", "cheapest", "knee")


def roles_of(recommendation: Mapping[str, Any]) -> dict[str, list[str]]:
    """What each recommended cell is recommended as, by its label."""
    names: dict[str, list[str]] = {}
    for role in ROLES:
        if present(recommendation[role]):
            names.setdefault(recommendation[role]["label"], []).append(role)
    return names


def flagged_labels(summary: Summary) -> dict[str, Row]:
    """The cells whose timings carry a flag, by label."""
    return {row["label"]: row for row in summary["cells"] if row["flags"]}


def time_map_figure(summary: Summary) -> Drawn:
    """Seconds to the target over num_gpus and batch size, each at its best learning rate."""
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
    squares = _time_squares(best, roles_of(recommendation), flagged)
    with canvas(height=height_of(len(lines.names), 2)) as (figure, axes):
        draw_map(axes, squares, columns.names, lines.names)
        axes.set(xlabel=columns.axis("num_gpus (workers)"), ylabel=lines.axis("batch size (all workers)"))
        touched = [flagged[row["label"]] for row in best.values() if row["label"] in flagged]
        of = f"With {combination}: from" if combination else "From"
        ranges = "Where a column or row is a range, the soonest of it. " if columns.ranges or lines.ranges else ""
        caption = (
            f"{of} {_reached_words(best, flagged)} Each square: training seconds to {target:g} at the rate (lr) that "
            f"is soonest there; the stronger the colour, the sooner. {ranges}"
        )
        return export(figure, name, f"Time to {target:g} by size", sentences(caption.rstrip(), flag_words(touched)))


def _best_in_squares(rows: Sequence[Row], columns: Bins, lines: Bins) -> dict[tuple[int, int], Row]:
    """The soonest row of each square; one that never reached the target where none did."""
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
        number = _time_words(row, flagged) if row["seconds"] is not None else "not reached"
        rate = [f"lr {row['params']['learning_rate']:g}"] if row["seconds"] is not None else []
        role = [" + ".join(roles[row["label"]])] if row["label"] in roles else []
        squares.append(
            Square(
                column=column, row=line, lines=[number, *rate, *role], shade=strength.get((column, line)),
                chosen=bool(role),
            )
        )  # fmt: skip
    return squares


def _time_words(row: Row, flagged: Mapping[str, Row]) -> str:
    """A time to the target, marked where its timings have flags."""
    return f"{seconds_text(row['seconds'])}{DAGGER if row['label'] in flagged else ''}"


def _reached_words(best: Mapping[tuple[int, int], Row], flagged: Mapping[str, Row]) -> str:
    """From when to when the target is reached."""
    times = [row for row in best.values() if row["seconds"] is not None]
    soonest, latest = min(times, key=_seconds), max(times, key=_seconds)
    missed = len(best) - len(times)
    words = f"{_time_words(soonest, flagged)} ({soonest['label']})"
    words += f" to {_time_words(latest, flagged)} ({latest['label']})" if len(times) > 1 else ""
    return f"{words}; {missed} of {len(best)} sizes never got there." if missed else f"{words}."


def pareto_figure(summary: Summary, styles: Styles) -> Drawn:
    """Time to the target against GPU-seconds, a point a cell; the front joined."""
    name, recommendation, unit = "pareto", summary["recommendation"], work_unit(summary)
    if not present(recommendation["fastest"]):
        return not_drawn(name, f"Time against {unit}", why_of(recommendation["fastest"]))
    target = recommendation["target"]
    reached = [row for row in summary["time_to_target"] if row["target"] == target and row["seconds"] is not None]
    by_label = {row["label"]: row for row in reached}
    front = [by_label[wanted] for wanted in recommendation["pareto"] if wanted in by_label]
    rows = _nearest(reached, front)
    flagged = flagged_labels(summary)
    with canvas(height=3.2) as (figure, axes):
        axes.step([r["seconds"] for r in front], [r["gpu_seconds"] for r in front], where="post", color=MUTED, zorder=1)
        for row in rows:
            grey = styles.is_grey(row["params"])
            style: dict[str, Any] = {"color": styles.colour(row["params"]), "marker": styles.marker(row["params"])}
            style |= {"markersize": 5.5, "alpha": 0.7, "zorder": 2} if grey else {"markersize": 7.5, "zorder": 3}
            axes.plot(row["seconds"], row["gpu_seconds"], linestyle="none", **style)
            if row["label"] in flagged:
                axes.annotate(
                    DAGGER, (row["seconds"], row["gpu_seconds"]), xytext=(5, 3), textcoords="offset points", fontsize=8
                )
        axes.margins(0.18)
        plain_log_axes(axes, "xy")
        _name_winners(axes, recommendation)
        axes.set(xlabel=f"training seconds to {target:g}", ylabel=f"{unit} to {target:g}")
        legend_below(figure, styles.point_handles([row["params"] for row in rows]))
        few = f"Of {len(reached)} cells the {len(rows)} nearest to the front are drawn." if rows != reached else ""
        touched = [flagged[row["label"]] for row in rows if row["label"] in flagged]
        caption = sentences(_pareto_caption(recommendation, len(reached), unit), few, flag_words(touched))
        return export(figure, name, f"Time against {unit} to {target:g}", caption)


def _nearest(rows: Sequence[Row], front: Sequence[Row]) -> list[Row]:
    """Of many rows those that are beaten by least, and the front."""
    if len(rows) <= 2 * MOST_CELLS:
        return list(rows)

    def behind(row: Row) -> float:
        return min(
            max(math.log(row["seconds"] / best["seconds"]), math.log(row["gpu_seconds"] / best["gpu_seconds"]))
            for best in front
        )

    return sorted(rows, key=behind)[: 2 * MOST_CELLS]


def _name_winners(axes: Any, recommendation: Mapping[str, Any]) -> None:
    """A ring around each recommended cell, and what it is recommended as."""
    for label, roles in roles_of(recommendation).items():
        choice = next(recommendation[role] for role in roles if recommendation[role]["label"] == label)
        place = (choice["seconds"], choice["gpu_seconds"])
        ring = {"marker": "o", "markersize": 13, "fillstyle": "none", "markeredgewidth": 1.2}
        axes.plot(*place, linestyle="none", color=INK, zorder=4, **ring)
        above = roles[0] == "fastest"
        axes.annotate(
            " and ".join(roles), place, xytext=(-3, 11) if above else (3, -18), textcoords="offset points",
            ha="left" if above else "right", fontsize=8.5, fontweight="bold", color=INK, zorder=5,
            bbox={"boxstyle": "round,pad=0.1", "facecolor": PAPER, "edgecolor": "none", "alpha": 0.75},
        )  # fmt: skip


def _pareto_caption(recommendation: Mapping[str, Any], count: int, unit: str) -> str:
    fastest, cheapest, knee = (recommendation[role] for role in ROLES)
    if fastest["label"] == cheapest["label"]:
        of_all = f"Of {count} cells that reach {recommendation['target']:g}, " if count > 1 else ""
        return f"{of_all}{fastest['label']} is both fastest and cheapest: no trade to make."
    more = fastest["gpu_seconds"] / cheapest["gpu_seconds"]
    less = cheapest["seconds"] / fastest["seconds"]
    between = (
        f" The knee between them, {knee['label']}, takes {marked_seconds(knee)} and "
        f"{three_digits(knee['gpu_seconds'])} {unit}."
        if present(knee) and knee["label"] not in (fastest["label"], cheapest["label"])
        else ""
    )
    return (
        f"{fastest['label']} is {less:.2f}× as fast as {cheapest['label']} ({marked_seconds(fastest)} against "
        f"{marked_seconds(cheapest)}) and uses {more:.2f}× the {unit}.{between}"
    )
