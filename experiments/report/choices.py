"""Stage 9, report: the recommendation – each choice with its interval, its evidence and its caveats."""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.analysis.advice_words import evidence_words, shared_caveats
from experiments.analysis.parts import present
from experiments.analysis.words import (
    clipped,
    marked_seconds,
    measured_when,
    metric_of,
    money_text,
    range_text,
    seconds_text,
    three_digits,
    work_unit,
)
from experiments.report.styles import DAGGER

Summary = Mapping[str, Any]
Choice = Mapping[str, Any]
ROLES = ("fastest", "cheapest", "knee")


def choices(summary: Summary) -> tuple[list[dict[str, Any]], list[str]]:
    """Cards and notes. A card a choice – fastest, cheapest and knee, where no cell reached a target the best by the
    metric alone – with name, value, unit, which (the cell), details and caveats. A note says why a choice is missing,
    or what holds for every one.
    """
    recommendation = summary["recommendation"]
    roles = [role for role in ROLES if present(recommendation[role])]
    cards = [_card(summary, role) for role in roles] or _best_card(summary)
    shared = shared_caveats([card["caveats"] for card in cards])
    cards = [{**card, "caveats": [each for each in card["caveats"] if each not in shared]} for card in cards]
    return cards, [*_missing(recommendation), *shared]


def _best_card(summary: Summary) -> list[dict[str, Any]]:
    metric = metric_of(summary["study"])
    best = summary["recommendation"][metric.choice_key]
    if not present(best):
        return []
    details = [f"{metric.title} {measured_when(best)}", *_evidence(best)]
    return [_written(metric.superlative.capitalize(), metric.text(best[metric.key]["value"]), best, details)]


def _missing(recommendation: Mapping[str, Any]) -> list[str]:
    """Why choices are missing, each reason once."""
    reasons: dict[str, list[str]] = {}
    for role in ROLES:
        if not present(recommendation[role]):
            reasons.setdefault(recommendation[role]["why"], []).append(role)
    return [
        f"No {' or '.join(filter(None, (', '.join(roles[:-1]), roles[-1])))}: {why}." for why, roles in reasons.items()
    ]


def _card(summary: Summary, role: str) -> dict[str, Any]:
    choice, unit = summary["recommendation"][role], work_unit(summary)
    spent = f"{three_digits(choice['gpu_seconds'])} {unit}"
    if choice["cost"] is not None:
        spent += f", cost {money_text(choice['cost'])}"
    interval = range_text(choice["interval"])
    mark = DAGGER if choice["flags"] else ""
    value, details = marked_seconds(choice), [*([interval] if interval else []), spent]
    if role == "cheapest":
        value = f"{three_digits(choice['gpu_seconds'])}{mark}"
        money = f"cost {money_text(choice['cost'])}, " if choice["cost"] is not None else ""
        details = [f"{money}{marked_seconds(choice)}", *([interval] if interval else [])]
    names = {"knee": "Knee between the two"}
    details += _evidence(choice)
    return _written(names.get(role, role.capitalize()), value, choice, details, unit if role == "cheapest" else "")


def _written(name: str, value: str, choice: Choice, details: Sequence[str], unit: str = "") -> dict[str, Any]:
    caveats = [clipped(str(caveat), 300) for caveat in choice.get("caveats") or ()]
    return {
        "name": name,
        "value": value,
        "unit": unit,
        "which": choice["label"],
        "details": list(details),
        "caveats": caveats,
    }


def _evidence(choice: Choice) -> list[str]:
    words = evidence_words(choice)
    return [words] if words else []


def cost_words(summary: Summary) -> str:
    """What the study itself took."""
    cost = summary["cost"]
    if cost["overhead_ratio"] is None:
        return f"What the study took beside training is not known: {cost['why']}."
    money = f", cost {money_text(cost['cost'])}" if cost["cost"] is not None else ""
    return (
        f"The study took {seconds_text(cost['wall_seconds'])} for {seconds_text(cost['critical_path_seconds'])} of "
        f"training on its critical path, {cost['overhead_ratio']:.2f}× as long: start-up, evaluation and recording are "
        f"the difference. All trainings together: {three_digits(cost['gpu_seconds'])} {work_unit(summary)}{money}."
    )
