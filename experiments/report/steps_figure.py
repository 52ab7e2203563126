"""Steps to the target over batch sizes."""

from collections.abc import Mapping, Sequence
from typing import Any

from scalestudy.experiments.analysis.measures.parts import (
    Summary,
    estimate_text,
    identified,
    interval_of,
    number_of,
    part_of,
    present,
    why_of,
)
from scalestudy.experiments.analysis.measures.units import three_digits
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
    plain_log_axes,
    sentences,
)

Point = Mapping[str, Any]
REGIMES = {"perfect scaling": "o", "diminishing returns": "s", "flat": "^", None: "D"}
NEAR = 4.0
"""The axis shows a batch beyond the measured ones only within this factor."""


def steps_figure(summary: Summary) -> Drawn:
    """Draw steps to the target over the examples of a step, with S(B) = S_min(1 + B_crit/B).

    Each batch stands at its best rate.
    """
    name, title = "steps_to_target", "Steps to the target by batch size"
    part = part_of(summary, "statistical_efficiency")
    points: list[Point] = []
    if present(part) and part["target"] is not None:
        points = sorted((point for point in part["points"] if point["steps"] is not None), key=examples_of)
    if len(points) < 2:
        why = "one batch size alone reached a target" if points else "no batch size reached a target"
        return not_drawn(name, title, why_of(part) if not present(part) or part.get("why") else why)
    title = f"Steps to {part['target']:g} by batch size"
    x_label = "examples a step (all workers; the last step of an epoch has fewer)"
    if all(examples_of(point) == point["batch_size"] for point in points):
        x_label = "batch size (examples, all workers)"
    with canvas(height=3.2) as (figure, axes):
        handles = [*_draw_points(axes, points), *_draw_law(axes, part), *_draw_batches(axes, part, points)]
        axes.margins(y=0.15)
        plain_log_axes(axes, "y")
        log_sizes_axis(axes, [round(examples_of(point)) for point in points])
        axes.set(xlabel=x_label, ylabel=f"optimizer steps to {part['target']:g}")
        legend_below(figure, handles)
        return export(figure, name, title, _steps_caption(part, points))


def examples_of(point: Point) -> float:
    """Return the examples of a step, of which the law is a function.

    It is below the batch size if epochs end in a smaller batch.
    """
    return float(point.get("examples_per_step") or point["batch_size"])


def _draw_points(axes: Any, points: Sequence[Point]) -> list[Any]:
    """Draw the measured points with their ranges, and the ideal: half the steps at twice the batch.

    Each regime has its marker. It is hollow if the best rate is at the grid's edge.
    """
    for point in points:
        batch, steps = examples_of(point), point["steps"]
        if point["low"] is not None and point["high"] is not None:
            axes.plot([batch, batch], [point["low"], point["high"]], color=PALETTE[0], linewidth=1.2, zorder=3)
        face = PAPER if point["edge"] else PALETTE[0]
        axes.plot(
            batch,
            steps,
            linestyle="none",
            marker=REGIMES.get(point["regime"], "D"),
            markersize=7,
            color=PALETTE[0],
            markerfacecolor=face,
            zorder=4,
        )
    first, ends = points[0], [examples_of(point) for point in (points[0], points[-1])]
    ideal = [first["steps"], first["steps"] * ends[0] / ends[1]]
    axes.plot(ends, ideal, color=MUTED, linewidth=1.0, linestyle=(0, (2, 2)), zorder=1)
    looks = {"linestyle": "none", "color": PALETTE[0], "markersize": 6}
    regimes = dict.fromkeys(point["regime"] for point in points)
    handles = [line_handle(marker=REGIMES.get(regime, "D"), label=regime or "measured", **looks) for regime in regimes]
    if any(point["edge"] for point in points):
        handles.append(line_handle(marker="o", markerfacecolor=PAPER, label="rate at grid's edge", **looks))
    dots = (0, (2, 2))
    return [*handles, line_handle(color=MUTED, linewidth=1, linestyle=dots, label="ideal")]


def _draw_law(axes: Any, part: Mapping[str, Any]) -> list[Any]:
    """Draw S(B) with its interval, if the data identify it."""
    curve = part.get("curve")
    if not curve or not identified(part["s_min"]) or not identified(part["b_crit"]):
        return []
    batches = [place["examples_per_step"] for place in curve]
    axes.plot(batches, [place["value"] for place in curve], color=INK, linewidth=1.2, zorder=2)
    ends = ([place[end] for place in curve] for end in ("low", "high"))
    axes.fill_between(batches, *ends, color=MUTED, alpha=0.2, linewidth=0, zorder=1)
    return [line_handle(color=INK, linewidth=1.2, label="S_min (1 + B_crit / B)")]


def _draw_batches(axes: Any, part: Mapping[str, Any], points: Sequence[Point]) -> list[Any]:
    """Draw the critical batch and the noise scale as upright lines with their intervals, if the axis has room."""
    handles = []
    for place, (name, estimate) in enumerate((("B_crit", part["b_crit"]), ("noise scale", part["noise_scale"]))):
        value = number_of(estimate)
        near = examples_of(points[0]) / NEAR, examples_of(points[-1]) * NEAR
        if value is None or not near[0] <= value <= near[1]:
            continue
        colour, line = PALETTE[1 + place], LINES[1 + place]
        axes.axvline(value, color=colour, linewidth=1.5, linestyle=line, zorder=2)
        label = f"{name} {_count(value)}"
        if interval := interval_of(estimate):
            axes.axvspan(max(interval[0], near[0]), min(interval[1], near[1]), color=colour, alpha=0.10, linewidth=0)
            label += f" ({_count(interval[0])} to {_count(interval[1])}, shaded)"
        handles.append(line_handle(color=colour, linewidth=1.5, linestyle=line, label=label))
    return handles


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else three_digits(value)


def _steps_caption(part: Mapping[str, Any], points: Sequence[Point]) -> str:
    first, last = points[0], points[-1]
    words = f"At batch {first['batch_size']:g} it takes {_count(first['steps'])} steps to {part['target']:g}"
    words += f", at {last['batch_size']:g} {_count(last['steps'])}."
    names = {"s_min": "S_min", "b_crit": "B_crit"}
    law = "; ".join(f"{names[key]} {estimate_text(part[key], _count)}" for key in names)
    if identified(part["s_min"]) and identified(part["b_crit"]):
        law = f"The law at this target: {law}"
        if part.get("near_perfect"):
            law += f"; 20 % more steps than perfect scaling at {estimate_text(part['near_perfect'], _count)}"
    elif not identified(part["s_min"]) and why_of(part["s_min"]) == why_of(part["b_crit"]):
        law = f"No law is drawn: {why_of(part['s_min'])}"
    else:
        law = f"No law is drawn: {law}"
    noise = part["noise_scale"]
    scale = f"The noise scale is not known: {why_of(noise)}."
    if identified(noise):
        optimizer = f" with {noise['optimizer']}" if noise.get("optimizer") else ""
        scale = f"The gradient's noise scale{optimizer}, a proxy for B_crit, is {estimate_text(noise, _count)}."
    return sentences(words, f"{law}.", scale, f"Of {part['of']}." if part.get("of") else "")
