"""Stage 8, analysis: the summary in words and as the book's table, the same for terminal, MLflow and report."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.analysis.metric import StudyMetric
from experiments.analysis.parts import Part, present
from experiments.analysis.scaling import NEITHER, WEAK
from experiments.plan import short_name

NOTHING = "–"
MARKS: Mapping[str, str] = {WEAK: "weak scaling", NEITHER: "neither strong nor weak scaling"}
"""How a speed-up is marked whose comparison is not strong scaling."""

Summary = Mapping[str, Any]


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
    """`2.1–2.4 s over seeds`; nothing where low and high are the same."""
    if interval is None or interval["low"] is None or interval["low"] == interval["high"]:
        return ""
    if interval["high"] is None:
        return f"from {seconds_text(interval['low'])}, some seeds missed it"
    return f"{seconds_text(interval['low'])} to {seconds_text(interval['high'])} over seeds"


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


def headline(summary: Summary) -> str:
    """The answer in one short sentence."""
    recommendation, metric = summary["recommendation"], metric_of(summary["study"])
    fastest, best = recommendation["fastest"], recommendation[metric.choice_key]
    if present(fastest):
        took, target = seconds_text(fastest["seconds"]), metric.named(f"{recommendation['target']:g}")
        return f"{_configuration(fastest, summary)} reached {target} soonest, in {took}."
    if present(best):
        missed = (
            f"No cell reached {recommendation['missed_targets'][0]:g}; " if recommendation["missed_targets"] else ""
        )
        value = metric.text(best[metric.key]["value"])
        return f"{missed}{_configuration(best, summary)} came furthest, to {value} {metric.title}."
    return "No answer: no trial finished."


def _configuration(choice: Part, summary: Summary) -> str:
    noun = "worker" if summary["study"]["device"] == "cpu" else "GPU"
    count = choice["num_gpus"]
    others = "".join(f", {short_name(key)} {_plain(choice['params'][key])}" for key in other_parameters(summary))
    workers = f"{count} {noun}{'' if count == 1 else 's'}"
    return f"{workers}, batch {choice['batch_size']}, rate {choice['learning_rate']:g}{others}"


def answer_lines(summary: Summary) -> list[str]:
    """The answer in at most five lines: fastest, cheapest, whether more workers were faster, why, how sure."""
    lines = [*_recommended(summary["recommendation"]), _scaling_line(summary), _verdict_line(summary), _sure(summary)]
    return [line for line in lines if line]


def recommendation_lines(recommendation: Part) -> list[str]:
    """A recommendation (`recommend`) in words: target, fastest, cheapest, knee."""
    lines = _recommended(recommendation)
    if present(recommendation["knee"]):
        lines.append(f"Knee between the two: {_cell_words(recommendation['knee'])}.")
    if recommendation["provisional"]:
        lines.append("Provisional: fewer than five seeds a cell.")
    return lines


def _recommended(recommendation: Part) -> list[str]:
    fastest, cheapest, metric = recommendation["fastest"], recommendation["cheapest"], metric_of(recommendation)
    if not present(fastest):
        best = _best_words(recommendation[metric.choice_key], metric)
        return [line for line in (_sentence(fastest["why"]), best) if line]
    missed = recommendation["missed_targets"]
    also = f" No cell reached {missed[0]:g}." if missed else ""
    target = f"{recommendation['target']:g}"
    if fastest["label"] == cheapest["label"]:
        return [f"Fastest and cheapest to {target} {metric.title}: {_cell_words(fastest)}.{also}"]
    return [
        f"Fastest to {target} {metric.title}: {_cell_words(fastest)}.{also}",
        f"Cheapest to {target}: {_cell_words(cheapest)}.",
    ]


def _cell_words(choice: Part) -> str:
    unit = "worker" if choice["device"] == "cpu" else "GPU"
    spent = [f"{three_digits(choice['gpu_seconds'])} {unit}-seconds"]
    if choice["cost"] is not None:
        spent.append(f"cost {money_text(choice['cost'])}")
    extent = range_text(choice["interval"])
    inside = ", ".join([*([extent] if extent else []), *spent])
    return f"{choice['label']}, {seconds_text(choice['seconds'])} ({inside})"


def money_text(cost: float) -> str:
    """A cost without a currency, for the price has none."""
    return f"{cost:.2f}" if cost >= 1 else f"{cost:.2g}"


def _best_words(best: Part, metric: StudyMetric) -> str:
    if not present(best):
        return ""
    return f"Best {metric.title}: {best['label']}, {metric.text(best[metric.key]['value'])} after the last epoch."


def _scaling_line(summary: Summary) -> str:
    scaling = summary["scaling"]
    return scaling["words"] if present(scaling) else f"Whether more workers are faster can't be told: {scaling['why']}."


def _verdict_line(summary: Summary) -> str:
    found = summary["verdicts"]
    return f"{found[0]['words']} {found[0]['remedy']}" if found else ""


def _sure(summary: Summary) -> str:
    caveats = [caveat for caveat in summary["caveats"] if not caveat.startswith("Marked")]
    ratio = summary["cost"]["overhead_ratio"]
    overhead = [f"The study took {ratio:.2f}× its training time."] if ratio is not None else []
    return " ".join([*overhead, *(caveat.partition(". Below")[0].rstrip(".") + "." for caveat in caveats)])


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def other_parameters(summary: Summary) -> list[str]:
    """Swept parameters beyond num_gpus, batch_size and learning_rate."""
    fixed = ("num_gpus", "batch_size", "learning_rate")
    return [key for key in (summary["cells"][0]["params"] if summary["cells"] else {}) if key not in fixed]


def book_table(summary: Summary) -> tuple[list[str], list[list[str]]]:
    """The table in the book's form, a row a cell: header and rows of text.

    num_gpus, batch, lr, other swept parameters, epoch s, test acc, speed-up, efficiency, where a target was reached the
    training seconds to it, and notes: comparisons that are not strong scaling, trials that did not finish, flags. On
    CPU the first column says so.
    """
    cpu = "cpu" in (summary["study"]["device"] or "")
    others, metric = other_parameters(summary), metric_of(summary["study"])
    header = ["num_gpus (CPU)" if cpu else "num_gpus", "batch", "lr", *(short_name(key) for key in others)]
    header += ["epoch s", metric.heading, "speed-up", "efficiency"]
    target = summary["recommendation"]["target"]
    times = {row["label"]: [_seconds(row["seconds"])] for row in summary["time_to_target"] if row["target"] == target}
    header += [*([] if target is None else [f"s to {target:g}"]), "notes"]
    rows = summary["cells"]
    return header, [[*_book_row(row, others, metric), *times.get(row["label"], []), _notes(row)] for row in rows]


def _book_row(row: Mapping[str, Any], others: Sequence[str], metric: StudyMetric) -> list[str]:
    params = row["params"]
    return [
        str(params["num_gpus"]),
        str(params["batch_size"]),
        f"{params['learning_rate']:g}",
        *(_plain(params[key]) for key in others),
        _seconds(row["epoch_seconds"]["value"]),
        metric.text(row[metric.key]["value"]) if present(row[metric.key]) else NOTHING,
        NOTHING if row["speedup"] is None else f"{row['speedup']:.2f}",
        NOTHING if row["efficiency"] is None else f"{row['efficiency']:.2f}",
    ]


def _seconds(seconds: float | None) -> str:
    return NOTHING if seconds is None else three_digits(seconds)


def _notes(row: Mapping[str, Any]) -> str:
    return ", ".join(row_notes(row))


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def setting_text(value: Any) -> str:
    """A value that training picked by itself, as people write it: true, bf16, [0.6, 0.4]."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(setting_text(each) for each in value)}]"
    if isinstance(value, float):
        return f"{value:.3g}"
    return value if isinstance(value, str) else json.dumps(value)


def row_notes(row: Mapping[str, Any]) -> list[str]:
    """What marks a cell: a comparison that is not strong scaling, trials that did not finish, flags."""
    trials = row["trials"]
    ended = [
        f"{trials[status]} {status.replace('_', ' ')}"
        for status in ("diverged", "out_of_memory", "failed", "skipped")
        if trials[status]
    ]
    kind = [MARKS[row["scaling"]]] if row["scaling"] in MARKS else []
    return [*(kind if row["speedup"] is not None else []), *ended, *row["flags"]]
