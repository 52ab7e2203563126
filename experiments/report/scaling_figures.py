"""Stage 9, report: speed-up, efficiency, the phases of a step, and time against GPU-seconds."""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.analysis.parts import present
from experiments.analysis.scaling import BASE, STRONG
from experiments.analysis.trial_measures import PHASES
from experiments.analysis.verdicts import phase_share
from experiments.analysis.words import seconds_text, work_unit
from experiments.plan import label
from experiments.report.curves import Styles
from experiments.report.drawing import (
    HATCHES,
    INK,
    LINES,
    MARKERS,
    MUTED,
    PALETTE,
    Drawn,
    canvas,
    export,
    legend_below,
    plain_log_axes,
)

Summary = Mapping[str, Any]
Row = Mapping[str, Any]

PHASE_NAMES = {
    "data": "data",
    "forward_backward": "forward + backward",
    "gradient_sync": "gradient sync (exposed)",
    "optimizer": "optimizer",
}
MOST_BARS = 16
MOST_LINES = len(PALETTE)


def _lines_of_batches(summary: Summary) -> list[tuple[str, list[Row]]]:
    """Timings of strong scaling, a line for what is equal but num_gpus; only lines with more than one point."""
    lines: dict[str, list[Row]] = {}
    for row in summary["timings"]:
        if row["scaling"] in (BASE, STRONG) and row["speedup"] is not None:
            rest = {key: value for key, value in row["params"].items() if key != "num_gpus"}
            lines.setdefault(label(rest), []).append(row)
    several = [(name, rows) for name, rows in lines.items() if any(row["scaling"] == STRONG for row in rows)]
    return sorted(several, key=lambda line: -max(row["speedup"] for row in line[1]))


def speedup_figure(summary: Summary) -> Drawn:
    """Speed-up over one GPU against num_gpus at the same batch, with the ideal."""
    title = "Speed-up at the same batch"
    return _scaling_figure(summary, "speedup", title, "speed-up over num_gpus = 1 (times)", _speedup_caption(summary))


def efficiency_figure(summary: Summary) -> Drawn:
    """Speed-up divided by num_gpus."""
    title = "Efficiency at the same batch"
    return _scaling_figure(
        summary, "efficiency", title, "efficiency (speed-up ÷ num_gpus)", _efficiency_caption(summary)
    )


def _scaling_figure(summary: Summary, quantity: str, title: str, y_label: str, caption: str) -> Drawn:
    lines = _lines_of_batches(summary)
    if not lines:
        return Drawn(name=quantity, title=title, caption=f"Not drawn: {_why(summary['scaling'])}.")
    workers = sorted({row["params"]["num_gpus"] for _, rows in lines for row in rows})
    with canvas() as (figure, axes):
        ideal = workers if quantity == "speedup" else [1.0 for _ in workers]
        axes.plot(workers, ideal, color=MUTED, linewidth=1.0, linestyle=(0, (2, 2)), label="ideal")
        last: list[tuple[float, float]] = []
        for place, (name, rows) in enumerate(lines[:MOST_LINES]):
            rows = sorted(rows, key=lambda row: row["params"]["num_gpus"])
            x, y = [row["params"]["num_gpus"] for row in rows], [row[quantity] for row in rows]
            style = {"color": PALETTE[place], "marker": MARKERS[place], "linestyle": LINES[place % len(LINES)]}
            axes.plot(x, y, label=f"{name}{_flag_mark(rows)}", **style)
            last.append((x[-1], y[-1]))
        _label_ends(axes, last)
        axes.set(xlabel="num_gpus (workers)", ylabel=y_label, xticks=workers, ylim=(0, None))
        axes.margins(x=0.12)
        legend_below(figure, axes.get_legend_handles_labels()[0])
        return export(figure, quantity, title, caption)


def _label_ends(axes: Any, ends: Sequence[tuple[float, float]]) -> None:
    """The value at each line's end, except where it would be printed over the one above."""
    room = 0.06 * max(y for _, y in ends)
    above: tuple[float, float] | None = None
    for x, y in sorted(ends, reverse=True):
        if above is None or x != above[0] or above[1] - y >= room:
            axes.annotate(f"{y:.2f}", (x, y), xytext=(6, 0), textcoords="offset points", va="center", fontsize=8.5)
            above = (x, y)


def _flag_mark(rows: Sequence[Row]) -> str:
    return " †" if any(row["flags"] for row in rows) else ""


def _why(part: Mapping[str, Any]) -> str:
    return str(part.get("why") or "no timings to compare")


def _speedup_caption(summary: Summary) -> str:
    scaling = summary["scaling"]
    if not present(scaling):
        return ""
    lines = _lines_of_batches(summary)
    shown = f" The {MOST_LINES} best of {len(lines)} lines are shown." if len(lines) > MOST_LINES else ""
    return f"{scaling['words']}{shown}"


def _efficiency_caption(summary: Summary) -> str:
    scaling = summary["scaling"]
    if not present(scaling):
        return ""
    best = scaling["best"]
    return (
        f"At best ({best['label']}) each of {scaling['num_gpus']} workers does {best['efficiency']:.0%} of the work "
        "that one alone would do in the same time."
    )


def phases_figure(summary: Summary) -> Drawn:
    """Milliseconds a step by phase, a stacked bar a (num_gpus, batch_size)."""
    name, title = "phases", "Where a step's time goes"
    rows = [row for row in summary["timings"] if present(row["step_seconds"])][:MOST_BARS]
    if not rows:
        return Drawn(name=name, title=title, caption="Not drawn: no trial measured the phases of its steps.")
    with canvas(height=0.9 + 0.42 * len(rows)) as (figure, axes):
        left = [0.0 for _ in rows]
        for place, phase in enumerate(PHASES):
            widths = [row["step_seconds"][phase] * 1000 for row in rows]
            axes.barh(
                range(len(rows)), widths, left=left, height=0.44, color=PALETTE[place], hatch=HATCHES[place],
                edgecolor="white", linewidth=0.6, label=PHASE_NAMES[phase],
            )  # fmt: skip
            left = [start + width for start, width in zip(left, widths, strict=True)]
        for place, total in enumerate(left):
            axes.annotate(
                f"{total:.3g}", (total, place), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8
            )
            name_of_bar = f"{rows[place]['label']}{_flag_mark([rows[place]])}"
            axes.annotate(name_of_bar, (0, place - 0.27), xytext=(1, 1), textcoords="offset points", fontsize=8)
        axes.set_yticks([])
        axes.set_ylim(len(rows) - 0.6, -0.75)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("milliseconds a step (median)")
        axes.margins(x=0.12)
        legend_below(figure, axes.get_legend_handles_labels()[0])
        return export(figure, name, title, _phases_caption(summary, rows))


def _phases_caption(summary: Summary, rows: Sequence[Row]) -> str:
    of_all = len([row for row in summary["timings"] if present(row["step_seconds"])])
    cut = f" The first {MOST_BARS} of {of_all} sizes are shown." if of_all > MOST_BARS else ""
    several = [row for row in rows if row["params"]["num_gpus"] > 1] or list(rows)
    phase = "gradient_sync" if several[0]["params"]["num_gpus"] > 1 else "forward_backward"
    shares = {row["label"]: phase_share(row, phase) or 0.0 for row in several}
    top = max(shares, key=lambda name: shares[name])
    low = min(shares, key=lambda name: shares[name])
    between = "" if len(shares) == 1 else f" and {shares[low]:.0%} of one at {low}"
    words = {"gradient_sync": "Summing gradients", "forward_backward": "Forward and backward"}[phase]
    return f"{words} takes {shares[top]:.0%} of a step at {top}{between}.{cut}"


def pareto_figure(summary: Summary) -> Drawn:
    """Time to the target against GPU-seconds, a point a cell; the front joined."""
    name, recommendation = "pareto", summary["recommendation"]
    title = f"Time against {work_unit(summary)}"
    if not present(recommendation["fastest"]):
        return Drawn(name=name, title=title, caption=f"Not drawn: {_why(recommendation['fastest'])}.")
    target = recommendation["target"]
    title = f"Time against {work_unit(summary)} to {target:g}"
    rows = [row for row in summary["time_to_target"] if row["target"] == target and row["seconds"] is not None]
    front = [row for wanted in recommendation["pareto"] for row in rows if row["label"] == wanted]
    styles = Styles.of(summary)
    with canvas(height=3.2) as (figure, axes):
        axes.step([r["seconds"] for r in front], [r["gpu_seconds"] for r in front], where="post", color=MUTED, zorder=1)
        for row in rows:
            place = styles.workers.index(row["params"]["num_gpus"])
            style: dict[str, Any] = {"color": styles.colour(row["params"]), "marker": MARKERS[place % len(MARKERS)]}
            axes.plot(row["seconds"], row["gpu_seconds"], linestyle="none", markersize=7, **style)
        _name_winners(axes, recommendation)
        axes.margins(0.18)
        plain_log_axes(axes, "xy")
        axes.set(xlabel=f"training seconds to {target:g}", ylabel=f"{work_unit(summary)} to {target:g}")
        grey = any(styles.colour(row["params"]) == MUTED for row in rows)
        legend_below(figure, styles.handles(grey))
        return export(figure, name, title, _pareto_caption(recommendation, len(rows), work_unit(summary)))


def _name_winners(axes: Any, recommendation: Mapping[str, Any]) -> None:
    names: dict[str, list[str]] = {}
    for role in ("fastest", "cheapest", "knee"):
        if present(recommendation[role]):
            names.setdefault(recommendation[role]["label"], []).append(role)
    for roles in names.values():
        choice = recommendation[roles[0]]
        above = roles[0] == "fastest"
        axes.annotate(
            " and ".join(roles), (choice["seconds"], choice["gpu_seconds"]), xytext=(-3, 9) if above else (3, -15),
            textcoords="offset points", ha="left" if above else "right", fontsize=8.5, fontweight="bold", color=INK,
        )  # fmt: skip


def _pareto_caption(recommendation: Mapping[str, Any], count: int, unit: str) -> str:
    fastest, cheapest = recommendation["fastest"], recommendation["cheapest"]
    if fastest["label"] == cheapest["label"]:
        of_all = f"Of {count} cells that reach {recommendation['target']:g}, " if count > 1 else ""
        return f"{of_all}{fastest['label']} is both fastest and cheapest: no trade to make."
    more = fastest["gpu_seconds"] / cheapest["gpu_seconds"]
    less = cheapest["seconds"] / fastest["seconds"]
    return (
        f"{fastest['label']} is {less:.2f}× as fast as {cheapest['label']} ({seconds_text(fastest['seconds'])} against "
        f"{seconds_text(cheapest['seconds'])}) and uses {more:.2f}× the {unit}."
    )
