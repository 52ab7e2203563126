"""Studies side by side: in which of their common cells they differ."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from scalestudy.experiments.analysis.laws.estimate import LEVEL
from scalestudy.experiments.analysis.measures.cells import key_of
from scalestudy.experiments.analysis.measures.intervals import ENOUGH_SEEDS
from scalestudy.experiments.analysis.measures.parts import NO_INTERVAL, NOTHING, Figure, Summary, missing, present
from scalestudy.experiments.analysis.measures.units import FLAGGED, metric_of, period_of, three_digits
from scalestudy.experiments.plan.plan import label
from scalestudy.experiments.plan.timing_flags import doubts

Answer = Literal["more", "less", "within noise", "not known"]
ANSWERS: tuple[Answer, ...] = ("more", "less", "within noise", "not known")
NOT_KNOWN = (
    f"not known: without a figure, below {ENOUGH_SEEDS} seeds in the metric and in time to a target, and with too few "
    "repeats in seconds an epoch and samples/s, a difference may be noise"
)
RATE = "samples/s"
"""The measure that all studies have. The metric follows it, and alone is compared by difference, not by ratio."""


@dataclass(frozen=True, kw_only=True)
class Measure:
    """What is compared."""

    heading: str  # of its column
    key: str  # of its figure in a cell's row
    by_ratio: bool  # whether studies are compared by ratio, else by difference
    repeated: bool = False  # whether each epoch is a repeat, as for seconds an epoch; else each seed is one value
    timed: bool = False  # whether flags of timings put it in doubt
    whole: bool = False  # whether only whole trainings can be compared by it


def compare(studies: Mapping[str, Summary]) -> dict[str, Any]:
    """Compare the cells that two or more studies share. The first study is the base.

    Args:
        studies: `summarise`'s result by name, in order.

    Returns:
        `studies` (names), `measures` (headings), `only` (by study, the cells that no other has) and
        `cells`: a row for each shared cell, with `label` and, by measure, a list of `{study,
        value, low, high, n, change, answer, flags}`.

        change: the value over the base's; for the metric, minus the base's, and none where trainings were
        stopped. answer: `more` or `less` if the ranges or
        intervals do not touch, `within noise` if they do, `not known` if one has no figure or too few values
        (`beyond_noise`). Seconds an epoch and samples/s are compared over single epochs, the metric and times to a
        target over seeds. flags: those that put the value in doubt.
    """
    measures = measures_of(studies)
    rows: dict[str, dict[str, dict[str, Any]]] = {}  # by study and key of the cell, times to targets among the figures
    for name, summary in studies.items():
        by_label = {row["label"]: dict(row) for row in summary["cells"]}
        metric = metric_of(summary["study"])
        for row in summary["time_to_target"]:
            by_label[row["label"]][metric.seconds_heading(row["target"])] = _time_figure(row)
        rows[name] = {key_of(row["params"]): row for row in by_label.values()}
    keys = list(dict.fromkeys(key for cells in rows.values() for key in cells))
    shared = [key for key in keys if sum(key in cells for cells in rows.values()) > 1]
    cells = []
    for key in shared:
        by_study = {name: members[key] for name, members in rows.items() if key in members}
        params, base = next(iter(by_study.values()))["params"], by_study.get(next(iter(rows)))
        by_measure = {measure.heading: _entries(by_study, measure, base) for measure in measures}
        cells.append({"label": label(params), "params": dict(params), "measures": by_measure})
    return {
        "studies": list(studies),
        "measures": [measure.heading for measure in measures],
        "cells": cells,
        "only": {
            name: [row["label"] for key, row in members.items() if key not in shared] for name, members in rows.items()
        },
    }


def measures_of(studies: Mapping[str, Summary]) -> list[Measure]:
    """Return the measures: seconds an epoch, or from one evaluation to the next, and samples a second.

    The seconds are compared only if all studies are evaluated as often. If all have the same metric, the metric and the
    shared targets are compared too.
    """
    found = [Measure(heading=RATE, key="samples_per_second", by_ratio=True, repeated=True, timed=True)]
    if len({tuple(summary["study"].get("every", ("epochs", 1))) for summary in studies.values()}) == 1:
        heading = f"{period_of(next(iter(studies.values())))} s"
        found.insert(0, Measure(heading=heading, key="epoch_seconds", by_ratio=True, repeated=True, timed=True))
    metrics = {metric_of(summary["study"]).key: metric_of(summary["study"]) for summary in studies.values()}
    if len(metrics) == 1:
        (metric,) = metrics.values()
        found.append(Measure(heading=metric.heading, key=metric.key, by_ratio=False, whole=True))
        first, *others = ({row["target"]: None for row in summary["time_to_target"]} for summary in studies.values())
        headings = [metric.seconds_heading(target) for target in first if all(target in other for other in others)]
        found += [Measure(heading=heading, key=heading, by_ratio=True, timed=True) for heading in headings]
    return found


def _time_figure(row: Mapping[str, Any]) -> Figure:
    """Return seconds to a target as a figure. A null end of its interval is infinite, or not known."""
    if row["seconds"] is None:
        return missing(row["why"])
    interval = row["interval"] or NO_INTERVAL
    return {"value": row["seconds"], "low": interval["low"], "high": interval["high"], "n": row["n_seeds"]}


def _entries(by_study: Mapping[str, Any], measure: Measure, base_row: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Return one entry a study.

    by_study: the cell's row by study. base_row: the base's, None if it has no such cell.
    """
    base = base_row[measure.key] if base_row is not None else missing("the base has no such cell")
    if measure.whole and any(row["stopped_after"] for row in by_study.values()):
        base = missing("trainings were stopped")
    entries = []
    for name, row in by_study.items():
        figure = row[measure.key]
        entry: dict[str, Any] = {"value": None, "low": None, "high": None, "n": 0, "change": None}
        answer: Answer = "not known"
        if present(figure):
            entry |= {key: figure[key] for key in ("value", "low", "high", "n")}
            if present(base) and base_row is not None and (base["value"] or not measure.by_ratio):
                value, of_base = figure["value"], base["value"]
                entry["change"] = value / of_base if measure.by_ratio else value - of_base
                told_by, base_told_by = (
                    each["repeats"][measure.key] if measure.repeated else each[measure.key] for each in (row, base_row)
                )
                answer = beyond_noise(told_by, base_told_by, repeated=measure.repeated)
        flags = doubts(row["flags"]) if measure.timed else []
        entries.append({"study": name, **entry, "answer": answer, "flags": flags})
    return entries


def beyond_noise(figure: Mapping[str, Any], base: Mapping[str, Any], *, repeated: bool = False) -> Answer:
    """Whether two ranges are disjoint. figures: with n, low and high; a null end is infinite.

    Over seeds nothing is claimed below five on either side (docs/formulas.md §6). repeated: over the epochs of a
    training fewer may do. If n and m values do not differ, their ranges are disjoint by the order of their ranks with
    probability 2/C(n + m, n). Nothing is claimed if that exceeds 10 %, as with two of each.
    """
    if not (present(figure) and present(base)):
        return "not known"
    if repeated:
        enough = 2 / math.comb(figure["n"] + base["n"], base["n"]) <= round(1 - LEVEL, 9)
    else:
        enough = min(figure["n"], base["n"]) >= ENOUGH_SEEDS
    if not enough:
        return "not known"
    low, high, base_low, base_high = (
        math.inf if each[end] is None else each[end] for each in (figure, base) for end in ("low", "high")
    )
    if low > base_high:
        return "more"
    return "less" if high < base_low else "within noise"


def comparison_table(compared: Mapping[str, Any], cells: int | None = None) -> tuple[list[str], list[list[str]]]:
    """Return the header and rows of text, a row for each cell and study.

    cells: how many, those that differ most in time.

    A value beyond noise carries its change: `0.232 (0.67×)`, `0.981 (+0.012)`. One of flagged timings is marked †.
    """
    chosen, headings = compared["cells"], compared["measures"]
    rate = headings.index(RATE)
    if cells is not None and len(chosen) > cells:

        def largest_change(row: Mapping[str, Any]) -> float:
            return max(abs((entry["change"] or 1.0) - 1.0) for entry in row["measures"][headings[0]])

        chosen = sorted(chosen, key=largest_change, reverse=True)[:cells]
    rows = []
    for row in chosen:
        for number, entry in enumerate(row["measures"][headings[0]]):
            values = [
                _text(row["measures"][heading][number], whole=place == rate, by_ratio=place != rate + 1)
                for place, heading in enumerate(headings)
            ]
            rows.append([row["label"] if number == 0 else "", entry["study"], *values])
    return ["cell", "study", *headings], rows


def _text(entry: Mapping[str, Any], *, whole: bool, by_ratio: bool) -> str:
    """Return the value as text. whole: written without decimals."""
    if entry["value"] is None:
        return NOTHING
    value = f"{entry['value']:,.0f}" if whole else three_digits(entry["value"])
    value += FLAGGED if entry["flags"] else ""
    if entry["answer"] not in ("more", "less"):
        return value
    return f"{value} ({entry['change']:.2f}×)" if by_ratio else f"{value} ({entry['change']:+.3g})"


def comparison_lines(compared: Mapping[str, Any]) -> list[str]:
    """Return the comparison as text: by study and measure, in how many cells it differs beyond noise."""
    lines = [f"{len(compared['cells'])} cells in common; {compared['studies'][0]} is the base"]
    for study in compared["studies"][1:]:
        for heading in compared["measures"]:
            entries = [each for row in compared["cells"] for each in row["measures"][heading] if each["study"] == study]
            counts = {answer: sum(each["answer"] == answer for each in entries) for answer in ANSWERS}
            words = [f"{count} {answer}" for answer, count in counts.items() if count]
            if words:
                lines.append(f"{study}: {heading}: {', '.join(words)}")
    lines += [f"{name} alone has {len(cells)} cells" for name, cells in compared["only"].items() if cells]
    every = [entry for row in compared["cells"] for entries in row["measures"].values() for entry in entries]
    if any(entry["answer"] == "not known" for entry in every):
        lines.append(NOT_KNOWN)
    for study in compared["studies"]:
        flags = sorted({flag for entry in every if entry["study"] == study for flag in entry["flags"]})
        if flags:
            lines.append(f"{FLAGGED} {study}: timings marked {', '.join(flags)}: they may differ for that alone")
    return lines
