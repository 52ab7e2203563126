"""The summary in words, the same for terminal, MLflow and report."""

import json
import re
from collections.abc import Mapping
from typing import Any

from scalestudy.experiments.analysis.measures.metric import StudyMetric
from scalestudy.experiments.analysis.measures.parts import NOTHING, Part

MOST_LINES, LONGEST_LINE = 5, 900
"""Of an answer: lines, and characters of a line; so that it fits MLflow's note however many cells it names."""

Summary = Mapping[str, Any]


def clipped(text: str, longest: int = LONGEST_LINE) -> str:
    """A text that is not longer than that, cut between words."""
    return text if len(text) <= longest else f"{text[: longest - 2].rsplit(' ', 1)[0].rstrip(',;:')} …"


LONG_LIST = re.compile(r"\(([^(),;]+, [^(),;]+, [^(),;]+)((?:, [^(),;]+){2,})\)")


def few_named(text: str) -> str:
    """A text in which a list of many cells in brackets names three of them: `(a, b, c and 9 more)`."""
    return LONG_LIST.sub(lambda found: f"({found[1]} and {found[2].count(', ')} more)", text)


def seconds_text(seconds: float | None) -> str:
    """Seconds to three digits; minutes and hours where that reads better."""
    if seconds is None:
        return NOTHING
    if seconds >= 7200:
        return f"{seconds / 3600:.1f} h"
    if seconds >= 600:
        return f"{seconds / 60:.1f} min"
    return f"{three_digits(seconds)} s"


def range_text(interval: Part | None) -> str:
    """`2.1 s to 2.4 s over seeds`, of more than their range `… at 90%`; nothing where low and high are the same."""
    if interval is None or interval["low"] is None or interval["low"] == interval["high"]:
        return ""
    if interval["high"] is None:
        return f"from {seconds_text(interval['low'])}, some seeds missed it"
    of = "over seeds" if interval.get("kind", "range") == "range" else "at 90%"
    return f"{seconds_text(interval['low'])} to {seconds_text(interval['high'])} {of}"


def brief_seconds(seconds: float) -> str:
    """Seconds that may be far below one: `13.2 ms`, `315 µs`."""
    for least, factor, unit in ((1.0, 1.0, "s"), (1e-3, 1e3, "ms"), (0.0, 1e6, "µs")):
        if abs(seconds) >= least:
            return seconds_text(seconds) if unit == "s" else f"{three_digits(seconds * factor)} {unit}"
    return seconds_text(seconds)


def three_digits(value: float) -> str:
    """A number above zero to about three digits, trailing zeros kept, so that columns line up: 1.90, 0.430, 127."""
    places = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3
    return f"{value:,.{places}f}" if value >= 0.01 else f"{value:.3g}"


def work_unit(summary: Summary) -> str:
    """What num_gpus × seconds is counted in: GPU-seconds, or worker-seconds where a worker is a CPU process."""
    return "worker-seconds" if summary["study"]["device"] == "cpu" else "GPU-seconds"


def metric_of(part: Mapping[str, Any]) -> StudyMetric:
    """The metric of a study; part: `study` or `recommendation` of its summary."""
    return StudyMetric(**part["metric"])


def money_text(cost: float) -> str:
    """A cost without a currency, for the price has none."""
    return f"{cost:.2f}" if cost >= 1 else f"{cost:.2g}"


def other_parameters(summary: Summary) -> list[str]:
    """Swept parameters beyond num_gpus, batch_size and learning_rate."""
    fixed = ("num_gpus", "batch_size", "learning_rate")
    return [key for key in (summary["cells"][0]["params"] if summary["cells"] else {}) if key not in fixed]


def plain_text(value: Any) -> str:
    """A swept value, a number without needless zeros."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def setting_text(value: Any) -> str:
    """A value that training picked by itself, as people write it: true, bf16, [0.6, 0.4]."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(setting_text(each) for each in value)}]"
    if isinstance(value, float):
        return f"{value:.3g}"
    return value if isinstance(value, str) else json.dumps(value)
