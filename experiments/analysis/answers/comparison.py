"""Two studies side by side, laws included."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from scalestudy.experiments.analysis.answers.throughput import DOUBTFUL
from scalestudy.experiments.analysis.laws.least_squares import LEVEL
from scalestudy.experiments.analysis.measures.cells import key_of
from scalestudy.experiments.analysis.measures.intervals import ENOUGH_SEEDS, apart
from scalestudy.experiments.analysis.measures.parts import NOTHING, Part, identified, missing, present
from scalestudy.experiments.analysis.measures.units import metric_of, three_digits
from scalestudy.experiments.plan.plan import label

LAWS: Sequence[tuple[str, str, str]] = (
    ("throughput_model", "alpha_c", "seconds a step"),
    ("throughput_model", "beta_c", "seconds an example"),
    ("throughput_model", "alpha_r", "seconds a step"),
    ("throughput_model", "beta_r", "seconds a further worker"),
    ("throughput_model", "alpha_n", "seconds a step"),
    ("throughput_model", "beta_n", "seconds a further worker"),
    ("statistical_efficiency", "s_min", "steps"),
    ("statistical_efficiency", "b_crit", "examples"),
    ("lr_rule", "exponent", "power of the batch size"),
)
"""The parameters that are compared: the part of the summary, the key, the unit."""


def compared_laws(studies: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each parameter that two or more studies have, the first of these as the base.

    studies: `summarise`'s result by name. A row: `{name, part, unit, entries}`, an entry `{study, value, low, high,
    change, answer, why}`; change: value over the base's. answer: `more` or `less` where 90 % intervals do not touch,
    `within noise` where they do, `not known` where one of them has none or is not identified, or the laws are of
    different things, and why.
    """
    rows = []
    for part, name, unit in LAWS:
        found = {study: summary.get(part) or {} for study, summary in studies.items()}
        known = {study: law for study, law in found.items() if _value(law, name) is not None}
        if len(known) > 1:
            base = next(iter(known.values()))
            entries = [{"study": study, **_entry(law, base, name)} for study, law in known.items()]
            rows.append({"name": name, "part": part, "unit": unit, "entries": entries})
    return rows


def _value(law: Part, name: str) -> float | None:
    estimate = law.get(name)
    return estimate["value"] if estimate is not None and present(estimate) else None


def _entry(law: Part, base: Part, name: str) -> dict[str, Any]:
    estimate, of_base = law[name], base[name]
    facts = {key: estimate.get(key) for key in ("value", "low", "high")}
    change = estimate["value"] / of_base["value"] if of_base["value"] else None
    why = _why_not_known(law, base, name)
    if why:
        return {**facts, "change": change, "answer": "not known", "why": why}
    if not apart(estimate, of_base):
        return {**facts, "change": change, "answer": "within noise", "why": None}
    more = estimate["value"] > of_base["value"]
    return {**facts, "change": change, "answer": "more" if more else "less", "why": None}


def _why_not_known(law: Part, base: Part, name: str) -> str | None:
    for key, words in (("of", "of other settings"), ("target", "to another target")):
        if law.get(key) != base.get(key):
            return f"the law is {words}"
    if any(part[name].get("low") is None or part[name].get("high") is None for part in (law, base)):
        return "it has no interval in both"
    if not (identified(law[name]) and identified(base[name])):
        return "the measurements do not identify it in both"
    return None


def law_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """In words, a line a parameter and study but the base."""
    lines = []
    for row in rows:
        base, *others = row["entries"]
        for entry in others:
            told = f"{entry['study']}: {row['name']} ({row['unit']}) {entry['value']:.3g} against {base['value']:.3g}"
            lines.append(": ".join([told, *(text for text in (entry["answer"], entry["why"]) if text)]))
    return lines


Summary = Mapping[str, Any]
Answer = Literal["more", "less", "within noise", "not known"]
FLAGGED = "†"
"""Behind a number that comes from timings with a flag."""
NOT_KNOWN = (
    f"not known: without a figure, below {ENOUGH_SEEDS} seeds in the metric and in time to a target, and with too few "
    "epochs in seconds an epoch and samples/s, there is no telling a difference from noise"
)
TO_TARGET = "s to "
"""Begins the heading of a time to a target."""


@dataclass(frozen=True, kw_only=True)
class Measure:
    """What is compared: its heading, its part in a cell's row, and whether a ratio or a difference is told. repeated:
    whether the epochs of a trial are repeats of it, as of seconds an epoch; else each seed is one value.
    """

    heading: str
    key: str
    by_ratio: bool
    repeated: bool = False

    @property
    def timed(self) -> bool:
        """Whether flags of timings put it in doubt."""
        return self.repeated or self.heading.startswith(TO_TARGET)


def compare(studies: Mapping[str, Summary]) -> dict[str, Any]:
    """The cells that two or more studies have in common, the first study as the base.

    Args:
        studies: `summarise`'s result by name, in order.

    Returns:
        `studies` (names), `measures` (headings), `cells`: a row a common cell, with `label` and by measure a list of
        `{study, value, low, high, n, change, answer, flags}`, `change` being the value over the base's (of the
        metric: minus the base's). `only`: by study, cells that no other has. `laws`: as from `compared_laws`. answer:
        `more` or `less` where the ranges or intervals do not touch, `within noise` where they do, `not known` where one
        of the two has no figure, or there are too few values to tell (`beyond_noise`). These are, for seconds an epoch
        and samples/s, the single epochs; for the metric and times to a target, seeds. flags: those that put it in
        doubt.
    """
    measures = measures_of(studies)
    rows = {name: _rows(summary) for name, summary in studies.items()}
    keys = list(dict.fromkeys(key for cells in rows.values() for key in cells))
    shared = [key for key in keys if sum(key in cells for cells in rows.values()) > 1]
    return {
        "studies": list(studies),
        "measures": [measure.heading for measure in measures],
        "cells": [_cell(key, rows, measures) for key in shared],
        "only": {
            name: [row["label"] for key, row in cells.items() if key not in shared] for name, cells in rows.items()
        },
        "laws": compared_laws(studies),
    }


def _rows(summary: Summary) -> dict[str, dict[str, Any]]:
    """A study's cells by their parameters, their times to each target as measures of their own."""
    rows = {row["label"]: dict(row) for row in summary["cells"]}
    for row in summary["time_to_target"]:
        rows[row["label"]][target_heading(row["target"])] = _time_part(row)
    return {key_of(row["params"]): row for row in rows.values()}


def _time_part(row: Mapping[str, Any]) -> Part:
    """Seconds to a target as a measure; an end of the interval that is null is infinite."""
    if row["seconds"] is None:
        return missing(row["why"])
    interval = row["interval"]
    return {"value": row["seconds"], "low": interval["low"], "high": interval["high"], "n": row["n_seeds"]}


def target_heading(target: float) -> str:
    """At the head of a column: `s to 0.85`."""
    return f"{TO_TARGET}{target:g}"


def measures_of(studies: Mapping[str, Summary]) -> list[Measure]:
    """Seconds an epoch, samples a second, and if all studies have the same metric that and the targets in common."""
    found = [
        Measure(heading="epoch s", key="epoch_seconds", by_ratio=True, repeated=True),
        Measure(heading="samples/s", key="samples_per_second", by_ratio=True, repeated=True),
    ]
    metrics = {metric_of(summary["study"]).key: metric_of(summary["study"]) for summary in studies.values()}
    if len(metrics) == 1:
        (metric,) = metrics.values()
        found.append(Measure(heading=metric.heading, key=metric.key, by_ratio=False))
        headings = [target_heading(target) for target in _common_targets(studies)]
        found += [Measure(heading=heading, key=heading, by_ratio=True) for heading in headings]
    return found


def _common_targets(studies: Mapping[str, Summary]) -> list[float]:
    """In the order of the first study."""
    first, *others = ({row["target"]: None for row in summary["time_to_target"]} for summary in studies.values())
    return [target for target in first if all(target in other for other in others)]


def _cell(key: str, rows: Mapping[str, Mapping[str, Any]], measures: Sequence[Measure]) -> dict[str, Any]:
    found = {name: cells[key] for name, cells in rows.items() if key in cells}
    params = next(iter(found.values()))["params"]
    by_measure = {measure.heading: _entries(found, measure, next(iter(rows))) for measure in measures}
    return {"label": label(params), "params": dict(params), "measures": by_measure}


def _entries(found: Mapping[str, Any], measure: Measure, base_study: str) -> list[dict[str, Any]]:
    none = missing("the base has no such cell")
    base = _compared(found[base_study], measure) if base_study in found else none
    return [
        {
            "study": name,
            **_row_entry(_compared(row, measure), base, measure),
            "flags": sorted(DOUBTFUL & set(row["flags"])) if measure.timed else [],
        }
        for name, row in found.items()
    ]


def _compared(row: Mapping[str, Any], measure: Measure) -> Part:
    """The part of a row, with what it is told apart by: the range over its repeats, or its own over seeds."""
    part = row[measure.key]
    return {**part, "told_by": row["repeats"][measure.key] if measure.repeated else part}


def _row_entry(part: Mapping[str, Any], base: Mapping[str, Any], measure: Measure) -> dict[str, Any]:
    if not present(part):
        return {"value": None, "low": None, "high": None, "n": 0, "change": None, "answer": "not known"}
    facts = {key: part[key] for key in ("value", "low", "high", "n")}
    if not present(base) or (measure.by_ratio and not base["value"]):
        return {**facts, "change": None, "answer": "not known"}
    change = part["value"] / base["value"] if measure.by_ratio else part["value"] - base["value"]
    return {
        **facts,
        "change": change,
        "answer": beyond_noise(part["told_by"], base["told_by"], repeated=measure.repeated),
    }


def beyond_noise(part: Mapping[str, Any], base: Mapping[str, Any], *, repeated: bool = False) -> Answer:
    """Whether two ranges lie apart. parts: with n, low and high, null for what is infinite.

    Over seeds nothing is claimed below five on either side (docs/formulas.md §6). repeated: over epochs of a training,
    where that number is not asked for, but two ranges of n and m values that differ in nothing lie apart with
    probability 2/C(n + m, n), by the order of their ranks: nothing is claimed where that exceeds 10 %, as with two of
    each.
    """
    if not (present(part) and present(base)) or not _enough(part["n"], base["n"], repeated):
        return "not known"
    if _end(part["low"]) > _end(base["high"]):
        return "more"
    return "less" if _end(part["high"]) < _end(base["low"]) else "within noise"


def _enough(count: int, base: int, repeated: bool) -> bool:
    if not repeated:
        return min(count, base) >= ENOUGH_SEEDS
    return 2 / math.comb(count + base, base) <= round(1 - LEVEL, 9)


def _end(end: float | None) -> float:
    return math.inf if end is None else end


def comparison_table(found: Mapping[str, Any], cells: int | None = None) -> tuple[list[str], list[list[str]]]:
    """Header and rows of text: a row a cell and study; of many cells, those that differ most in the first measure.

    A value beyond noise carries its change: `0.232 (0.67×)`, `0.981 (+0.012)`; one of flagged timings is marked †.
    """
    chosen = found["cells"]
    if cells is not None and len(chosen) > cells:
        chosen = sorted(chosen, key=lambda row: -_largest_change(row, found["measures"][0]))[:cells]
    rows = []
    for row in chosen:
        for number, entry in enumerate(row["measures"][found["measures"][0]]):
            values = [_text(row["measures"][heading][number], heading) for heading in found["measures"]]
            rows.append([row["label"] if number == 0 else "", entry["study"], *values])
    return ["cell", "study", *found["measures"]], rows


def comparison_lines(found: Mapping[str, Any]) -> list[str]:
    """What it comes to, in words: by study and measure, in how many cells it differs beyond noise."""
    lines = [f"{len(found['cells'])} cells in common; {found['studies'][0]} is the base"]
    for study in found["studies"][1:]:
        for heading in found["measures"]:
            entries = [each for row in found["cells"] for each in row["measures"][heading] if each["study"] == study]
            told = [f"{count} {answer}" for answer in ("more", "less", "within noise", "not known")
                    if (count := sum(each["answer"] == answer for each in entries))]  # fmt: skip
            if told:
                lines.append(f"{study}: {heading}: {', '.join(told)}")
    lines += law_lines(found["laws"])
    lines += [f"{name} alone has {len(cells)} cells" for name, cells in found["only"].items() if cells]
    if any(entry["answer"] == "not known" for row in found["cells"] for entries in row["measures"].values()
           for entry in entries):  # fmt: skip
        lines.append(NOT_KNOWN)
    return lines + _flag_lines(found)


def _flag_lines(found: Mapping[str, Any]) -> list[str]:
    """By study, the flags of its timings."""
    lines = []
    for study in found["studies"]:
        entries = [[each for each in entries if each["study"] == study and each["flags"]]
                   for row in found["cells"] for entries in row["measures"].values()]  # fmt: skip
        flags = sorted({flag for each in entries for entry in each for flag in entry["flags"]})
        if flags:
            lines.append(f"{FLAGGED} {study}: timings marked {', '.join(flags)}: they may differ for that alone")
    return lines


def _largest_change(row: Mapping[str, Any], heading: str) -> float:
    return max(abs((entry["change"] or 1.0) - 1.0) for entry in row["measures"][heading])


def _text(entry: Mapping[str, Any], heading: str) -> str:
    if entry["value"] is None:
        return NOTHING
    value = f"{entry['value']:,.0f}" if heading == "samples/s" else three_digits(entry["value"])
    value += FLAGGED if entry["flags"] else ""
    if entry["answer"] not in ("more", "less"):
        return value
    ratio = heading in ("epoch s", "samples/s") or heading.startswith(TO_TARGET)
    return f"{value} ({entry['change']:.2f}×)" if ratio else f"{value} ({entry['change']:+.3g})"
