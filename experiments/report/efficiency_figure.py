"""Efficiency over num_gpus, with the laws as curves. The speed-up itself is drawn by the page's script."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from scalestudy.experiments.analysis.answers.throughput import times_of
from scalestudy.experiments.analysis.laws.least_squares import Estimate
from scalestudy.experiments.analysis.laws.step_terms import Constants
from scalestudy.experiments.analysis.laws.step_time import StepTimes
from scalestudy.experiments.analysis.measures.cells import combination_of
from scalestudy.experiments.analysis.measures.parts import (
    Row,
    Summary,
    estimate_text,
    identified,
    missing,
    number_of,
    part_of,
    present,
    why_of,
)
from scalestudy.experiments.analysis.measures.scaling import BASE, STRONG
from scalestudy.experiments.plan.plan import label
from scalestudy.experiments.report.drawing import (
    LINES,
    MARKERS,
    MUTED,
    PALETTE,
    Drawn,
    canvas,
    export,
    legend_below,
    line_handle,
    log_sizes_axis,
    not_drawn,
    patch_handle,
    sentences,
)
from scalestudy.experiments.report.flags import flag_mark, flag_words, used_all_the_same

ENOUGH_SIZES = 3
"""Fewest numbers of workers for a law: any law fits fewer."""
MOST_POINTS = 60
MOST_LINES = len(PALETTE)
LOG_FROM_WORKERS = 16
"""From so many workers on the axis is logarithmic: sizes double, and a linear axis would press small ones together."""


@dataclass(frozen=True, kw_only=True)
class LawCurve:
    """Speed-up over one worker by a law, at the workers of x, with its band if there is one."""

    kind: Literal["usl", "step time"]
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None
    high: Sequence[float] | None
    measured: float  # the largest number of workers measured. A law that may not be extrapolated ends there


@dataclass(frozen=True)
class Line:
    """Timings that differ only in num_gpus, fewest workers first, and the law through them if there is one."""

    name: str
    rows: Sequence[Row]
    law: LawCurve | None

    @property
    def sizes(self) -> list[int]:
        """Numbers of workers."""
        return [row["params"]["num_gpus"] for row in self.rows]


def efficiency_figure(summary: Summary) -> Drawn:
    """Draw speed-up over one worker, divided by num_gpus, at the same batch, with the ideal and the law."""
    name, title, every = "efficiency", "Efficiency at the same batch", lines_of_batches(summary)
    if not every:
        return not_drawn(name, title, why_of(summary["scaling"]))
    lines = every[:MOST_LINES]
    workers = sorted({size for line in lines for size in line.sizes})
    furthest = max([float(max(workers)), *(max(line.law.x) for line in lines if line.law)])
    with canvas() as (figure, axes):
        axes.plot([1.0, furthest], [1.0, 1.0], color=MUTED, linewidth=1.0, linestyle=(0, (2, 2)), label="ideal")
        for place, line in enumerate(lines):
            _draw_line(axes, line, place)
        _label_ends(axes, [(line.sizes[-1], line.rows[-1]["efficiency"]) for line in lines])
        axes.margins(x=0.12)
        if furthest >= LOG_FROM_WORKERS:
            log_sizes_axis(axes, [*workers, *([furthest] if furthest > workers[-1] else [])])
            axes.set_xlim(0.85, furthest * 1.35)
        else:
            axes.set_xticks(workers)
        measured = [row["efficiency"] for line in lines for row in line.rows]
        curves = [value for line in lines if line.law for value in _efficiencies(line.law, line.law.y)]
        axes.set_ylim(0, 1.12 * max([1.0, *measured, *curves]))
        axes.set(xlabel="num_gpus (workers)", ylabel="efficiency (speed-up ÷ num_gpus)")
        legend_below(figure, [*axes.get_legend_handles_labels()[0], *_law_handles(lines)])
        return export(figure, name, title, _caption(summary, every))


def _caption(summary: Summary, lines: Sequence[Line]) -> str:
    scaling = summary["scaling"]
    words = ""
    if present(scaling):
        best = scaling["best"]
        words = (
            f"At best ({best['label']}) each of {scaling['num_gpus']} workers does {best['efficiency']:.0%} of what "
            "one alone would do in the same time."
        )
    some = f"The {MOST_LINES} best of {len(lines)} lines are shown." if len(lines) > MOST_LINES else ""
    drawn = lines[:MOST_LINES]
    return sentences(words, some, _law_words(summary, drawn), flag_words([row for line in drawn for row in line.rows]))


def lines_of_batches(summary: Summary) -> list[Line]:
    """Return timings of strong scaling, a line for all that differ only in num_gpus. The fastest stands first.

    Lines of one point are left out.
    """
    groups: dict[str, list[Row]] = {}
    for row in summary["timings"]:
        if row["scaling"] in (BASE, STRONG) and row["speedup"] is not None:
            rest = {key: value for key, value in row["params"].items() if key != "num_gpus"}
            groups.setdefault(label(rest), []).append(row)
    lines = []
    for name, rows in groups.items():
        if any(row["scaling"] == STRONG for row in rows):
            ordered = sorted(rows, key=lambda row: row["params"]["num_gpus"])
            lines.append(Line(name, ordered, law_of(summary, ordered)))
    return sorted(lines, key=lambda line: -max(row["speedup"] for row in line.rows))


def _draw_line(axes: Any, line: Line, place: int) -> None:
    """Draw the measured points and the law, solid as far as was measured. Without a law: straight pieces."""
    colour, marker = PALETTE[place], MARKERS[place]
    name, y = f"{line.name}{flag_mark(line.rows)}", [row["efficiency"] for row in line.rows]
    if line.law is None:
        axes.plot(line.sizes, y, label=name, color=colour, marker=marker, linestyle=LINES[1], linewidth=1.1)
        return
    law, curve = line.law, _efficiencies(line.law, line.law.y)
    inside = sum(x <= law.measured for x in law.x)
    axes.plot(law.x[:inside], curve[:inside], color=colour, linewidth=1.5)
    axes.plot(law.x[inside - 1 :], curve[inside - 1 :], color=colour, linewidth=1.1, linestyle=LINES[2])
    if law.low is not None and law.high is not None:
        ends = [_efficiencies(law, end) for end in (law.low, law.high)]
        axes.fill_between(law.x, *ends, color=colour, alpha=0.13, linewidth=0)
    axes.plot(line.sizes, y, label=name, color=colour, marker=marker, linestyle="none", markersize=5.5)


def _efficiencies(law: LawCurve, speedups: Sequence[float]) -> list[float]:
    return [y / size for size, y in zip(law.x, speedups, strict=True)]


def _law_handles(lines: Sequence[Line]) -> list[Any]:
    laws = [line.law for line in lines if line.law]
    handles: list[Any] = [line_handle(color=MUTED, linewidth=1.5, label="law, where measured")] if laws else []
    if any(max(law.x) > law.measured for law in laws):
        handles.append(line_handle(color=MUTED, linewidth=1.1, linestyle=LINES[2], label="law, beyond"))
    if any(law.low is not None for law in laws):
        handles.append(patch_handle(color=MUTED, alpha=0.3, linewidth=0, label="its 90% band"))
    return handles


def _label_ends(axes: Any, ends: Sequence[tuple[float, float]]) -> None:
    """Write the value at each line's end, unless it would overlap the one above."""
    room = 0.06 * max(y for _, y in ends)
    above: tuple[float, float] | None = None
    for x, y in sorted(ends, reverse=True):
        if above is None or x != above[0] or above[1] - y >= room:
            axes.annotate(f"{y:.2f}", (x, y), xytext=(7, 3), textcoords="offset points", va="center", fontsize=8.5)
            above = (x, y)


def _law_words(summary: Summary, lines: Sequence[Line]) -> str:
    """Say what the topmost law shows, or why the topmost line has none."""
    if not lines:
        return ""
    first = next((line for line in lines if line.law), None)
    if first is None:
        of = f" of {lines[0].name}" if len(lines) > 1 else ""
        return f"No law is drawn through the points{of}: {_why_no_law(summary, lines[0])}."
    params = first.rows[0]["params"]
    used = used_all_the_same({"flagged": rests_on_flagged(summary, params)})
    fit = usl_fit(summary, params)
    if fit is None or first.law is None or first.law.kind != "usl":
        return sentences("The curves are the step-time model, between the sizes that were measured.", used)
    sigma, kappa = (estimate_text(fit[key], "{:.3g}".format) for key in ("sigma", "kappa"))
    peak = estimate_text(fit.get("peak_gpus"), "{:.3g}".format)
    words = f"The curves are Gunther's law; for {first.name} σ is {sigma}, κ {kappa}, the num_gpus of its peak {peak}."
    return sentences(words, used)


def _why_no_law(summary: Summary, line: Line) -> str:
    """Return the reason, as a clause. A fit that gives no reason has too few sizes, or none with one worker."""
    params = line.rows[0]["params"]
    part, fit = part_for(summary, "usl", params), usl_fit(summary, params)
    if not present(part):
        return why_of(part)
    if fit is not None:
        return why_of(fit) if fit.get("why") else f"sizes measured are too few ({len(fit['sizes'])}), or not from 1 on"
    flags = sorted({flag.replace("_", " ") for row in line.rows for flag in row["flags"]})
    return f"its timings are marked {', '.join(flags)}" if flags else "too few of its sizes were timed"


def law_of(summary: Summary, rows: Sequence[Mapping[str, Any]]) -> LawCurve | None:
    """Return the law to draw through the speed-ups of one batch size, or None if the data identify none.

    rows: its timings, which differ only in num_gpus. Flagged timings count if the laws were fitted to them too.
    """
    params = rows[0]["params"]
    used = [row for row in rows if not row["flags"] or rests_on_flagged(summary, params)]
    if not used:
        return None
    fit = usl_fit(summary, params)
    if fit is not None and (curve := _usl_curve(fit)) is not None:
        return curve
    return _step_time_curve(summary, params, [row["params"]["num_gpus"] for row in used])


def _usl_curve(fit: Mapping[str, Any]) -> LawCurve | None:
    """Return the fitted throughput over one worker's. It goes beyond the measured if σ and κ are both identified.

    None without a curve, with too few sizes, or if one worker was not measured.
    """
    of_one = [point["samples_per_second"] for point in fit.get("points") or () if point["num_gpus"] == 1]
    if not fit["extrapolates"] or not fit.get("curve") or not of_one or not of_one[0]:
        return None
    alone, measured = of_one[0], float(max(fit["sizes"]))
    everywhere = identified(fit["sigma"]) and identified(fit["kappa"])
    curve = [place for place in fit["curve"] if everywhere or place["num_gpus"] <= measured * (1 + 1e-9)]
    banded = all(place["low"] is not None and place["high"] is not None for place in curve)
    return LawCurve(
        kind="usl",
        x=[place["num_gpus"] for place in curve],
        y=[place["samples_per_second"] / alone for place in curve],
        low=[place["low"] / alone for place in curve] if banded else None,
        high=[place["high"] / alone for place in curve] if banded else None,
        measured=measured,
    )


def _step_time_curve(summary: Summary, params: Mapping[str, Any], sizes: Sequence[int]) -> LawCurve | None:
    """Return S(K) = T_iter(1, B)/T_iter(K, B/K), docs/formulas.md §4, between the sizes that were measured."""
    model = part_for(summary, "throughput_model", params)
    times = step_times(model)
    if times is None or len(set(sizes)) < ENOUGH_SIZES:
        return None
    # all whole numbers of workers, or about so many of them: between one and two the law has no meaning
    whole = sorted({round(max(sizes) ** (step / MOST_POINTS)) for step in range(MOST_POINTS + 1)})
    batch, data = float(params["batch_size"]), number_of(model.get("data_seconds")) or 0.0

    def speed_up(size: float) -> Estimate:
        """Return the speed-up. The same constants make both times of a step, so their errors partly cancel."""

        def gain(law: Constants) -> float:
            one, several = law.step_seconds([1.0, size], [batch, batch / size]) + data
            return float(one / several)

        return times.figure(gain, "the speed-up")

    gains = [speed_up(size) for size in whole]
    banded = all(gain.identified for gain in gains)
    return LawCurve(
        kind="step time",
        x=[float(size) for size in whole],
        y=[gain.value for gain in gains],
        low=[gain.low or 0.0 for gain in gains] if banded else None,
        high=[gain.high or math.inf for gain in gains] if banded else None,
        measured=max(sizes),
    )


def step_times(model: Mapping[str, Any]) -> StepTimes | None:
    """Return the law of a step's time on one node.

    None if a parameter that it needs is not identified, or if workers spanned nodes: their number does not say which.
    """
    sizes = {point["num_gpus"] for point in model.get("points") or ()}
    known = all(identified(model.get(key)) for key in ("alpha_c", "beta_c", "alpha_r", "beta_r"))
    return times_of(model) if known and len(sizes) >= ENOUGH_SIZES and model.get("alpha_n") is None else None


def usl_fit(summary: Summary, params: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the fit of Gunther's law at constant batch size, with a law or the reason for none. None: no such line."""
    fits = part_for(summary, "usl", params).get("fits") or ()
    strong = (fit for fit in fits if fit["scaling"] == STRONG and fit["batch_size"] == params["batch_size"])
    return next(strong, None)


def rests_on_flagged(summary: Summary, params: Mapping[str, Any]) -> bool:
    """Whether the laws for a row's combination of swept keys were fitted to flagged timings."""
    return any(part_for(summary, key, params).get("flagged") for key in ("usl", "throughput_model"))


def part_for(summary: Summary, key: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a part of the summary for the combination of swept keys that a row belongs to. It may be missing."""
    part, of = part_of(summary, key), combination_of(params)
    parts = (part, *(part.get("others") or ()))
    return next((each for each in parts if each.get("of", of) == of), missing(f"nothing was fitted for {of}"))
