"""Steps to the target over batch sizes."""

from collections.abc import Mapping, Sequence
from typing import Any

from scalestudy.experiments.analysis.measures.cells import combination_of
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
from scalestudy.experiments.analysis.measures.units import plural, three_digits
from scalestudy.experiments.report.charts import (
    Axis,
    Chart,
    Drawing,
    LineStyle,
    Point,
    Series,
    Shape,
    Upright,
    between,
    not_drawn,
    sentences,
)

Measured = Mapping[str, Any]
REGIMES: Mapping[str | None, Shape] = {
    "perfect scaling": "circle",
    "diminishing returns": "square",
    "flat": "triangle",
    None: "diamond",
}
NEAR = 4.0
"""The axis shows a batch beyond the measured ones only within this factor."""


def steps_figure(summary: Summary) -> Drawing:
    """Return steps to the target over the examples of a step, with S(B) = S_min(1 + B_crit/B).

    Each batch stands at its best rate.
    """
    name, title = "steps_to_target", "Steps to the target by batch size"
    part = part_of(summary, "statistical_efficiency")
    points: list[Measured] = []
    if present(part) and part["target"] is not None:
        points = sorted((point for point in part["points"] if point["steps"] is not None), key=examples_of)
    if len(points) < 2:
        why = "one batch size alone reached a target" if points else "no batch size reached a target"
        return not_drawn(name, title, why_of(part) if not present(part) or part.get("why") else why)
    whole = all(examples_of(point) == point["batch_size"] for point in points)
    numbers = Chart(
        x=Axis(
            label="batch size (examples, all workers)" if whole else "examples a step (all workers)",
            log=True,
            ticks=[round(examples_of(point)) for point in points],
        ),
        y=Axis(label=f"optimizer steps to {part['target']:g}", log=True),
        series=[*_law(part), *_measured(summary, part, points)],
        uprights=_batches(part, points),
    )
    shorter = "" if whole else "The last step of an epoch has fewer examples than the batch size."
    caption = sentences(_caption(part, points), shorter)
    return Drawing(name=name, title=f"Steps to {part['target']:g} by batch size", caption=caption, numbers=numbers)


def examples_of(point: Measured) -> float:
    """Return the examples of a step, of which the law is a function.

    It is below the batch size if epochs end in a smaller batch.
    """
    return float(point.get("examples_per_step") or point["batch_size"])


def _measured(summary: Summary, part: Mapping[str, Any], points: Sequence[Measured]) -> list[Series]:
    """Return the measured points with their ranges, and the ideal: half the steps at twice the batch.

    Each regime has its shape. It is hollow if the best rate is at the grid's edge.
    """
    kinds: dict[tuple[str | None, bool], list[Measured]] = {}
    for point in points:
        kinds.setdefault((point["regime"], bool(point["edge"])), []).append(point)
    series = [
        Series(
            words=f"{regime or 'measured'}{', rate at the edge of the grid' if edge else ''}",
            points=[_point(summary, part, point) for point in some],
            colour="accent",
            shape=REGIMES.get(regime, "diamond"),
            hollow=edge,
        )
        for (regime, edge), some in kinds.items()
    ]
    first, last = points[0], points[-1]
    ends = [(examples_of(first), first["steps"])]
    ends.append((examples_of(last), first["steps"] * examples_of(first) / examples_of(last)))
    ideal = Series(words="ideal", points=[Point(x=x, y=y) for x, y in ends], colour="soft", line="dashed")
    return [ideal, *series]


def _point(summary: Summary, part: Mapping[str, Any], point: Measured) -> Point:
    cells = [
        place
        for place, row in enumerate(summary["cells"])
        if all(row["params"].get(key) == point[key] for key in ("batch_size", "learning_rate"))
        and combination_of(row["params"]) == part.get("of", "")
    ]
    words = [
        f"batch {point['batch_size']:g} at its best rate, {point['learning_rate']:g}",
        f"{_count(point['steps'])} steps to {part['target']:g}{between(point['low'], point['high'], _count)}",
        plural(point["n"], "training"),
        *([f"{point['edge']} rate tried"] if point["edge"] else []),
        *([point["regime"]] if point["regime"] else []),
    ]
    x, y = examples_of(point), point["steps"]
    return Point(x=x, y=y, low=point["low"], high=point["high"], cells=cells, words=words)


def _law(part: Mapping[str, Any]) -> list[Series]:
    """Return S(B) with its interval, if the data identify it."""
    curve = part.get("curve")
    if not curve or not identified(part["s_min"]) or not identified(part["b_crit"]):
        return []
    points = [
        Point(x=place["examples_per_step"], y=place["value"], low=place["low"], high=place["high"]) for place in curve
    ]
    return [
        Series(words="its 90% band", points=points, colour="soft", band=True),
        Series(words="S_min (1 + B_crit / B)", points=points, colour="ink", line="solid"),
    ]


def _batches(part: Mapping[str, Any], points: Sequence[Measured]) -> list[Upright]:
    """Return the critical batch and the noise scale with their intervals, if the axis has room."""
    uprights = []
    looks: tuple[tuple[str, str, str, LineStyle], ...] = (
        ("b_crit", "B_crit", "w1", "dashed"),
        ("noise_scale", "noise scale", "w2", "dotted"),
    )
    for key, name, colour, line in looks:
        value, interval = number_of(part[key]), interval_of(part[key])
        if value is None or not examples_of(points[0]) / NEAR <= value <= examples_of(points[-1]) * NEAR:
            continue
        low, high = interval or (None, None)
        shaded = f" ({_count(interval[0])} to {_count(interval[1])}, shaded)" if interval else ""
        words = f"{name} {_count(value)}{shaded}"
        uprights.append(Upright(at=value, low=low, high=high, words=words, colour=colour, line=line))
    return uprights


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else three_digits(value)


def _caption(part: Mapping[str, Any], points: Sequence[Measured]) -> str:
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
