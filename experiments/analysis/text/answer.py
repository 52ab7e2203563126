"""The summary in words, the same for terminal, MLflow and report."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from scalestudy.experiments.analysis.measures.metric import StudyMetric
from scalestudy.experiments.analysis.measures.parts import Part, part_of, present, why_of
from scalestudy.experiments.analysis.measures.units import (
    LONGEST_LINE,
    MOST_LINES,
    Summary,
    clipped,
    few_named,
    metric_of,
    money_text,
    other_parameters,
    plain_text,
    range_text,
    seconds_text,
    three_digits,
    work_unit,
)
from scalestudy.experiments.plan.plan import short_name

DOUBTS = {"oversubscribed": "oversubscribed", "disturbed": "shared_node"}
"""Verdicts on the timings themselves, with the flag that each of them names the cells of."""

FLAGGED = "†"
"""Behind a number that comes from timings with a flag."""


def headline(summary: Summary) -> str:
    """The answer in one short sentence."""
    recommendation, metric = summary["recommendation"], metric_of(summary["study"])
    fastest, best = recommendation["fastest"], recommendation[metric.choice_key]
    if present(fastest):
        took, target = marked_seconds(fastest), metric.named(f"{recommendation['target']:g}")
        return f"{_configuration(fastest, summary)} reached {target} soonest, in {took}."
    if present(best):
        missed = (
            f"No cell reached {recommendation['missed_targets'][0]:g}; " if recommendation["missed_targets"] else ""
        )
        value = metric.text(best[metric.key]["value"])
        return f"{missed}{_configuration(best, summary)} came furthest, to {value} {metric.title}."
    return "No answer: no trial finished."


def _configuration(choice: Part, summary: Summary) -> str:
    others = "".join(f", {short_name(key)} {plain_text(choice['params'][key])}" for key in other_parameters(summary))
    usual = f"batch {choice['batch_size']}, rate {choice['learning_rate']:g}"
    return f"{_workers(choice['num_gpus'], summary)}, {usual}{others}"


def answer_lines(summary: Summary) -> list[str]:
    """The answer in at most five lines: fastest, cheapest, whether more workers were faster and why not, what more than
    were measured would bring, how sure.
    """
    chosen, scaling = chosen_lines(summary["recommendation"]), [scaling_words(summary), _verdict_line(summary)]
    end = [line for line in (beyond_line(summary), _sure(summary)) if line]
    scaling = [line for line in scaling if line]
    if len(chosen) + len(scaling) + len(end) > MOST_LINES:
        scaling = [" ".join(clipped(line, LONGEST_LINE // 2) for line in scaling)]
    return [clipped(line) for line in (*chosen, *scaling, *end)]


def chosen_lines(recommendation: Part) -> list[str]:
    """Fastest and cheapest, a line each or both in one; where no target was reached why, and the best by the metric."""
    fastest, cheapest, metric = recommendation["fastest"], recommendation["cheapest"], metric_of(recommendation)
    if not present(fastest):
        best = _best_words(recommendation[metric.choice_key], metric)
        return [line for line in (_sentence(fastest["why"]), best) if line]
    missed = recommendation["missed_targets"]
    also = f" No cell reached {missed[0]:g}." if missed else ""
    target = f"{recommendation['target']:g}"
    if fastest["label"] == cheapest["label"]:
        return [f"Fastest and cheapest to {target} {metric.title}: {cell_words(fastest)}.{also}"]
    return [
        f"Fastest to {target} {metric.title}: {cell_words(fastest)}.{also}",
        f"Cheapest to {target}: {cell_words(cheapest)}.",
    ]


def cell_words(choice: Part) -> str:
    """A choice with its seconds, their interval, and what it takes."""
    unit = "worker" if choice["device"] == "cpu" else "GPU"
    spent = [f"{three_digits(choice['gpu_seconds'])} {unit}-seconds"]
    if choice["cost"] is not None:
        spent.append(f"cost {money_text(choice['cost'])}")
    extent = range_text(choice["interval"])
    inside = ", ".join([*([extent] if extent else []), *spent])
    return f"{choice['label']}, {marked_seconds(choice)} ({inside})"


def marked_seconds(choice: Part) -> str:
    """The seconds of a choice, marked where its timings have flags."""
    return f"{seconds_text(choice['seconds'])}{FLAGGED if choice['flags'] else ''}"


def _best_words(best: Part, metric: StudyMetric) -> str:
    if not present(best):
        return ""
    value = metric.text(best[metric.key]["value"])
    return f"Best {metric.title}: {best['label']}, {value} {measured_when(best)}."


def measured_when(best: Part) -> str:
    """After which epoch the metric of a choice was measured: the last, but of trials that a scheduler has stopped."""
    epochs = best["stopped_after"]
    if not epochs:
        return "after the last epoch"
    span = f"{epochs[0]}" if epochs[0] == epochs[-1] else f"{epochs[0]} to {epochs[-1]}"
    return f"after the last epoch, or where trials were stopped (epoch {span})"


def scaling_words(summary: Summary) -> str:
    """Whether more workers were faster than one; marked where they, or what they are compared with, have flags."""
    scaling, timings = summary["scaling"], summary["timings"]
    if not present(scaling):
        return f"Whether more workers are faster can't be told: {why_of(scaling)}."
    spoken_of = [scaling[pair]["label"] for pair in ("best", "worst")]
    told = [row for row in timings if row["label"] in spoken_of or _names(scaling["words"], row["label"])]
    bases = {row["base"] for row in told}
    return _marked(scaling["words"], [*told, *(row for row in timings if row["label"] in bases)])


def verdict_words(verdict: Mapping[str, Any], summary: Summary) -> str:
    """A verdict with few of its cells named; marked where those have flags, unless it is a verdict on them."""
    words = few_named(verdict["words"])
    if verdict["cause"] in DOUBTS:
        return words
    return _marked(words, [row for row in summary["timings"] if _names(words, row["label"])])


def _marked(words: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Words with the mark at their end where the timings that they rest on have flags."""
    return f"{words.rstrip('. ')} {FLAGGED}." if any(row["flags"] for row in rows) else words


def _names(words: str, label: str) -> bool:
    """Whether a label stands in words, and not as the beginning of a longer one."""
    return label in words and re.search(rf"{re.escape(label)}(?![\w.]*\w| \w+=)", words) is not None


def _verdict_line(summary: Summary) -> str:
    """What the timings are in doubt for, and the first cause that scaling stops by."""
    doubts = _doubts(summary)
    causes = [verdict for verdict in summary["verdicts"] if verdict["cause"] not in DOUBTS]
    doubt = clipped(few_named(doubts[0]["words"]), LONGEST_LINE // 4) if doubts else ""
    told = (causes or doubts)[:1]
    cause = [f"{clipped(verdict_words(each, summary), LONGEST_LINE // 2)} {each['remedy']}" for each in told]
    return " ".join([*([doubt] if doubt and causes else []), *cause])


def _doubts(summary: Summary) -> list[Mapping[str, Any]]:
    return [verdict for verdict in summary["verdicts"] if verdict["cause"] in DOUBTS]


def beyond_line(summary: Summary) -> str:
    """What more workers than were measured would bring, and up to where that can be told."""
    part, recommendation = part_of(summary, "predictions"), summary["recommendation"]
    if "predictions" not in summary or not present(recommendation["fastest"]):
        return ""
    measured = f"{_workers(max(summary['study']['num_gpus']), summary)} measured"
    if not present(part):
        return f"What more than the {measured} would bring can't be told: {why_of(part)}."
    broken, best = part.get("breaks_at"), (part.get("best") or {}).get("fastest")
    ends = f" The prediction ends at {broken['num_gpus']}: {why_of(broken)}." if broken else ""
    if not any(row["beyond"] and row["valid"] for row in part["rows"]):
        return f"Beyond the {measured} nothing can be predicted.{ends}"
    other = "".join(f" {each}" for each in (_other_target(part, recommendation["target"]), steps_doubt(part)) if each)
    if best is None or not present(best) or not best["beyond"]:
        return f"Beyond the {measured} no time to {part['target']:g} is predicted to be shorter.{other}{ends}"
    return f"Beyond the {measured}: {_prediction(best, part, work_unit(summary))}.{other}{ends}"


def _other_target(part: Part, target: float) -> str:
    """That a prediction is not for the target that the recommendation is for, and why."""
    if part["target"] == target:
        return ""
    return f"That is not the {target:g} above: too few batch sizes tell the steps to it."


def steps_doubt(part: Mapping[str, Any]) -> str:
    """What the steps to the target of a prediction that is there stand in doubt for, as a sentence; else nothing."""
    return f"Of the steps to {part['target']:g}: {why_of(part)}." if part.get("why") else ""


def _prediction(best: Part, part: Part, unit: str) -> str:
    """The soonest beyond the measured sizes, against what the same laws say of the soonest within them: a measured
    time would bring in how far the laws are off.
    """
    known = best["low"] is not None and best["high"] is not None
    interval = f" ({seconds_text(best['low'])} to {seconds_text(best['high'])})" if known else ""
    mark = FLAGGED if part.get("flagged") else ""
    words = (
        f"{best['num_gpus']} at batch {best['batch_size']:g} are predicted to reach {part['target']:g} in "
        f"{seconds_text(best['seconds_to_target'])}{mark}{interval}"
    )
    within = [row for row in part["rows"] if row["valid"] and not row["beyond"] and row["seconds_to_target"]]
    if not within:
        return words
    least = min(within, key=lambda row: float(row["seconds_to_target"]))
    faster = least["seconds_to_target"] / best["seconds_to_target"]
    dearer = best["gpu_seconds"] / least["gpu_seconds"]
    return (
        f"{words}, {faster:.2f}× as fast as predicted of {least['num_gpus']} at batch {least['batch_size']:g}, for "
        f"{dearer:.2f}× the {unit}"
    )


def _workers(count: int, summary: Summary) -> str:
    noun = "worker" if summary["study"]["device"] == "cpu" else "GPU"
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _sure(summary: Summary) -> str:
    told = [f"Marked {DOUBTS[verdict['cause']]} " for verdict in _doubts(summary)[:1]]  # by the line of verdicts
    caveats = [caveat for caveat in summary["caveats"] if not caveat.startswith(tuple(told))]
    ratio = summary["cost"]["overhead_ratio"]
    overhead = [f"The study took {ratio:.2f}× its training time."] if ratio is not None else []
    return " ".join([*overhead, *(caveat.partition(". Below")[0].rstrip(".") + "." for caveat in caveats)])


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
