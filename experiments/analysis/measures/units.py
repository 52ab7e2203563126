"""Seconds, money and names as text."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from scalestudy.experiments.analysis.measures.metric import StudyMetric
from scalestudy.experiments.analysis.measures.parts import NOTHING, Figure, Summary
from scalestudy.experiments.plan.timing_flags import TimingFlag
from scalestudy.experiments.spec.study_spec import REPORT

LONGEST_LINE = 900
"""Most characters of a line: five such lines fit MLflow's note, however many cells they name."""
MOST_LINES = 5
"""Lines of an answer."""
FLAGGED = "†"
"""The mark after a number that comes from flagged timings."""
FLAG_VERDICTS: Mapping[str, tuple[TimingFlag, str]] = {
    "oversubscribed": (
        TimingFlag.OVERSUBSCRIBED,
        "There were more threads than cores ({}): these timings say little about scaling.",
    ),
    "disturbed": (TimingFlag.SHARED_NODE, "Other work ran on the same node ({}): these timings are disturbed."),
}
"""By the cause of a verdict on the timings themselves: the flag of the cells that it names, and its words."""


def clipped(text: str, longest: int = LONGEST_LINE) -> str:
    """Cut the text between words if it is longer than that."""
    return text if len(text) <= longest else f"{text[: longest - 2].rsplit(' ', 1)[0].rstrip(',;:')} …"


def plural(count: int, noun: str) -> str:
    """Return `1 seed`, `3 seeds`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def limit_words(max_gpus: int | None) -> str:
    """Return `with at most 2 workers `, to follow a noun; empty without a limit."""
    return "" if max_gpus is None else f"with at most {plural(max_gpus, 'worker')} "


def share_text(share: float) -> str:
    """Return a chance in per cent; `over 99%` and `under 1%` where rounding would say that it is certain."""
    percent = f"{100 * share:.0f}%"
    return {"100%": "over 99%", "0%": "under 1%"}.get(percent, percent)


def seconds_text(seconds: float | None) -> str:
    """Return seconds to three digits; minutes or hours if they read better."""
    if seconds is None:
        return NOTHING
    if seconds >= 7200:
        return f"{seconds / 3600:.1f} h"
    if seconds >= 600:
        return f"{seconds / 60:.1f} min"
    return f"{three_digits(seconds)} s"


def brief_seconds(seconds: float) -> str:
    """Return the seconds that may be far below one: `13.2 ms`, `315 µs`."""
    if abs(seconds) >= 1:
        return seconds_text(seconds)
    if abs(seconds) >= 1e-3:
        return f"{three_digits(seconds * 1e3)} ms"
    return f"{three_digits(seconds * 1e6)} µs"


def range_text(interval: Figure | None) -> str:
    """Return `2.1 s to 2.4 s over seeds`, or `… at 90%` if it is more than their range.

    Empty if low and high are equal.
    """
    if interval is None or interval["low"] is None or interval["low"] == interval["high"]:
        return ""
    if interval["high"] is None:
        return f"from {seconds_text(interval['low'])}, some seeds missed it"
    of = "over seeds" if interval.get("kind", "range") == "range" else "at 90%"
    return f"{seconds_text(interval['low'])} to {seconds_text(interval['high'])} {of}"


def three_digits(value: float) -> str:
    """Return a number above zero to about three digits, with trailing zeros to align columns: 1.90, 0.430, 127."""
    places = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3
    return f"{value:,.{places}f}" if value >= 0.01 else f"{value:.3g}"


def money_text(cost: float) -> str:
    """Return a cost. It has no currency, since the price has none."""
    return f"{cost:.2f}" if cost >= 1 else f"{cost:.2g}"


def marked_seconds(choice: Figure) -> str:
    """Return the seconds of a choice, marked if its timings have flags."""
    return f"{seconds_text(choice['seconds'])}{FLAGGED if choice['flags'] else ''}"


def metric_of(part: Mapping[str, Any]) -> StudyMetric:
    """Return the metric of a study. part: `study` or `recommendation` of its summary."""
    return StudyMetric(**part["metric"])


def period_of(summary: Summary) -> str:
    """Return what a period is called: `epoch`, `evaluation` where it is none, `report` of a Ray Train loop."""
    if "loop" in summary["study"]:
        return REPORT
    return "evaluation" if "every" in summary["study"] else "epoch"


def rates_of(summary: Summary) -> dict[str, str]:
    """Return the headings of the rates that cells have, by key: samples/s, and tokens/s last if a task counts them."""
    counted = any("tokens_per_second" in row for row in summary["cells"])
    return {"samples_per_second": "samples/s", **({"tokens_per_second": "tokens/s"} if counted else {})}


def length_text(summary: Summary) -> str:
    """Return how long a study trains: `10 epochs`, `1,000 steps, evaluated 10 times`."""
    study = summary["study"]
    if "loop" in study:
        return plural(study["epochs"], REPORT)
    if "sources" in study:
        return f"evaluated {study['epochs']} times at most"
    if "every" not in study:
        return f"{study['epochs']} epochs"
    if study["length"] is None:
        return f"a length in {study['every'][0]} that is swept, evaluated {study['epochs']} times at most"
    return f"{study['length']:,} {study['every'][0]}, evaluated {study['epochs']} times"


def other_parameters(summary: Summary) -> list[str]:
    """Return the swept parameters other than num_gpus, batch_size and learning_rate."""
    fixed = ("num_gpus", "batch_size", "learning_rate")
    return [key for key in (summary["cells"][0]["params"] if summary["cells"] else {}) if key not in fixed]


def setting_text(value: Any) -> str:
    """Return a value that training picked by itself, as people write it: true, bf16, [0.6, 0.4]."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(setting_text(each) for each in value)}]"
    if isinstance(value, float):
        return f"{value:.3g}"
    return value if isinstance(value, str) else json.dumps(value)


def flag_verdict_words(cause: str, labels: Sequence[str], most: int | None = None) -> str:
    """Return the sentence of a verdict on flagged timings. most: how many cells it names; it counts the rest."""
    named = ", ".join(labels[:most])
    more = f" and {len(labels) - most} more" if most is not None and len(labels) > most else ""
    return FLAG_VERDICTS[cause][1].format(named + more)
