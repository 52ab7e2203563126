"""Stage 9, report: the predicted time to the target beyond the cluster at hand, and where the prediction breaks."""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.analysis.parts import present
from experiments.analysis.reading import part_of, why_of
from experiments.analysis.words import seconds_text, steps_doubt, three_digits, work_unit
from experiments.report.drawing import (
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
from experiments.report.law_curves import combination_of
from experiments.report.styles import DAGGER, flag_words, used_all_the_same
from experiments.report.target_figures import flagged_labels

Summary = Mapping[str, Any]
Row = Mapping[str, Any]


def predictions_figure(summary: Summary) -> Drawn:
    """Seconds to the target over num_gpus, predicted and measured, on log axes."""
    name, title = "predictions", "Beyond the cluster at hand"
    part = part_of(summary, "predictions")
    rows = valid_rows(part)
    if not rows:
        why = (part.get("breaks_at") or {}).get("why") or "no size can be predicted" if present(part) else why_of(part)
        return not_drawn(name, title, why)
    measured = _measured(summary, part)
    flagged = flagged_labels(summary)
    with canvas(height=3.2) as (figure, axes):
        mark = f" {DAGGER}" if part.get("flagged") else ""
        handles = [*_draw_rows(axes, rows, mark), *_draw_measured(axes, measured, flagged)]
        broken = part.get("breaks_at")
        sizes = [row["num_gpus"] for row in rows] + [row["params"]["num_gpus"] for row in measured]
        handles += _draw_limits(axes, rows, broken)
        axes.margins(y=0.15)
        plain_log_axes(axes, "y")
        log_sizes_axis(axes, [*sizes, *([broken["num_gpus"]] if broken else [])])
        axes.set(xlabel="num_gpus (workers)", ylabel=f"training seconds to {part['target']:g}")
        legend_below(figure, handles)
        touched = [flagged[row["label"]] for row in measured if row["label"] in flagged]
        caption = sentences(_caption(summary, part, rows), flag_words(touched))
        return export(figure, name, f"Time to {part['target']:g} beyond the cluster", caption)


def valid_rows(part: Mapping[str, Any]) -> list[Row]:
    """The sizes for which a time is predicted, fewest workers first."""
    rows = part["rows"] if present(part) else []
    known = [row for row in rows if row["valid"] and row["seconds_to_target"] is not None]
    return sorted(known, key=lambda row: float(row["num_gpus"]))


def _measured(summary: Summary, part: Mapping[str, Any]) -> list[Row]:
    """The soonest measured cell of each num_gpus, of the same target and combination."""
    soonest: dict[int, Row] = {}
    for row in summary["time_to_target"]:
        alike = row["target"] == part["target"] and combination_of(row["params"]) == part.get("of", "")
        size = row["params"]["num_gpus"]
        if alike and row["seconds"] is not None and row["seconds"] < soonest.get(size, {"seconds": 1e300})["seconds"]:
            soonest[size] = row
    return [soonest[size] for size in sorted(soonest)]


def _draw_rows(axes: Any, rows: Sequence[Row], mark: str) -> list[Any]:
    """The prediction with its band: solid within the measured sizes, dotted and hollow beyond. mark: of its names."""

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
            axes.annotate(DAGGER, place, xytext=(5, 3), textcoords="offset points", fontsize=8)
    return [line_handle(label="measured, soonest", **looks)] if rows else []


def _draw_limits(axes: Any, rows: Sequence[Row], broken: Mapping[str, Any] | None) -> list[Any]:
    """Upright lines: the largest measured size, and where the prediction breaks."""

    handles = []
    within = [row["num_gpus"] for row in rows if not row["beyond"]]
    if within and any(row["beyond"] for row in rows):
        axes.axvline(max(within), color=MUTED, linewidth=1, linestyle=(0, (2, 2)), zorder=1)
        handles.append(line_handle(color=MUTED, linewidth=1, linestyle=(0, (2, 2)), label="largest measured"))
    if broken:
        axes.axvline(broken["num_gpus"], color=INK, linewidth=1.2, zorder=1)
        axes.annotate(
            "ends here", (broken["num_gpus"], 1), xycoords=("data", "axes fraction"), xytext=(-4, -3),
            textcoords="offset points", rotation=90, ha="right", va="top", fontsize=8,
        )  # fmt: skip
    return handles


def _caption(summary: Summary, part: Mapping[str, Any], rows: Sequence[Row]) -> str:
    best = (part.get("best") or {}).get("fastest")
    best = best if best and present(best) else min(rows, key=lambda row: float(row["seconds_to_target"]))
    mark = DAGGER if part.get("flagged") else ""
    wide = best["low"] is not None and best["high"] is not None
    interval = f" ({seconds_text(best['low'])} to {seconds_text(best['high'])})" if wide else ""
    words = (
        f"Predicted soonest: num_gpus {best['num_gpus']} at batch {best['batch_size']:g}, "
        f"{seconds_text(best['seconds_to_target'])}{mark}{interval} and {three_digits(best['gpu_seconds'])} "
        f"{work_unit(summary)}."
    )
    broken = part.get("breaks_at")
    ends = f"The prediction ends at num_gpus {broken['num_gpus']}: {why_of(broken)}." if broken else ""
    of = f"With {part['of']}." if part.get("of") else ""
    return sentences(words, ends, of, steps_doubt(part), used_all_the_same(part))
