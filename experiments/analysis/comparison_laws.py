"""Stage 8, analysis: the laws of two or more studies side by side – which parameters differ beyond their intervals."""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.analysis.intervals import apart
from experiments.analysis.parts import Part, present
from experiments.analysis.reading import identified

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
