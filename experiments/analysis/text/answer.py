"""The summary as sentences, the same for terminal, MLflow and report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scalestudy.experiments.analysis.measures.cells import seed_caveat
from scalestudy.experiments.analysis.measures.parts import Figure, Row, Summary, part_of, present, why_of
from scalestudy.experiments.analysis.measures.scaling import scaling_answer
from scalestudy.experiments.analysis.measures.units import (
    FLAG_VERDICTS,
    FLAGGED,
    LONGEST_LINE,
    MOST_LINES,
    clipped,
    flag_verdict_words,
    limit_words,
    marked_seconds,
    metric_of,
    money_text,
    other_parameters,
    plural,
    range_text,
    seconds_text,
    share_text,
    three_digits,
)
from scalestudy.experiments.analysis.text.looks import search_words
from scalestudy.experiments.plan.plan import short_name, value_text

NAMED_CELLS = 3
"""Cells that a sentence names if there are many. It counts the rest."""


@dataclass(frozen=True)
class Line:
    """A line of the answer."""

    topic: str  # what it is about; empty if the text stands alone
    text: str

    def __str__(self) -> str:
        return f"{self.topic}: {self.text}" if self.topic else self.text

    def clipped(self, longest: int = LONGEST_LINE) -> "Line":
        """Return the line with its text cut, so that topic and text have no more characters than that."""
        return replace(self, text=clipped(self.text, longest - len(str(self)) + len(self.text)))


def answer_lines(summary: Summary) -> list[str]:
    """Return `answer` as text."""
    return [str(line) for line in answer(summary)]


def answer(summary: Summary) -> list[Line]:
    """Answer in at most five lines.

    The lines say what is fastest and cheapest, whether more workers were faster and why not, what more workers than
    were measured would bring, and how sure that is.
    """
    chosen = chosen_lines(summary["recommendation"])
    scaling = [line for line in (scaling_line(summary), _verdict_line(summary)) if line is not None]
    searched = Line("Search", search_words(summary["adaptive"])) if "adaptive" in summary else None
    end = [line for line in (searched, beyond_line(summary), _sure_line(summary)) if line is not None]
    if len(chosen) + len(scaling) + len(end) > MOST_LINES:
        scaling = _together(scaling)
    if len(chosen) + len(scaling) + len(end) > MOST_LINES:
        end = [*end[:-2], *_together(end[-2:])]
    if len(chosen) + len(scaling) + len(end) > MOST_LINES:
        chosen = [chosen[0], *_together(chosen[1:])]
    return [line.clipped() for line in (*chosen, *scaling, *end)]


def _together(lines: Sequence[Line]) -> list[Line]:
    """Join lines into one, each cut to its share; none stay none."""
    if not lines:
        return []
    first, *rest = (line.clipped(LONGEST_LINE // len(lines)) for line in lines)
    return [replace(first, text=" ".join([first.text, *map(str, rest)]))]


def chosen_lines(recommendation: Figure) -> list[Line]:
    """Say what is recommended, and what the fastest and the cheapest bring beside it.

    Without a time: why, and the best.
    """
    chosen, fastest, cheapest = (recommendation[role] for role in ("recommended", "fastest", "cheapest"))
    metric = metric_of(recommendation)
    if not present(fastest):
        why, best = fastest["why"], chosen if present(chosen) else recommendation[metric.choice_key]
        lines = [Line("", f"{why[:1].upper()}{why[1:]}.")]
        if present(best):
            value = metric.text(best[metric.key]["value"])
            cheapest = best is chosen and best["ties"]
            topic = "Cheapest that is as good as the best" if cheapest else f"Best {metric.title}"
            named = best["label"] if cheapest else best["named"]
            lines.append(Line(topic, f"{named}, {value} {measured_when(best)}."))
        return lines
    lines = [Line(chosen_topic(recommendation), f"{cell_words(chosen)}; {chosen_likely(recommendation)}.")]
    if chosen["label"] != fastest["label"]:
        lines.append(Line("Fastest", f"{cell_words(fastest)}: {beside_chosen(fastest, chosen)}."))
    if cheapest["label"] != chosen["label"]:
        near = likely_words(cheapest, recommendation)
        lines.append(Line("Cheapest", f"{cell_words(cheapest)}: {beside_chosen(cheapest, chosen)}, {near}."))
    if notes := chosen_notes(recommendation):
        lines[0] = replace(lines[0], text=" ".join([lines[0].text, *notes]))
    return lines


def chosen_topic(recommendation: Figure) -> str:
    """Return what the recommended cell is: `Recommended and fastest to 0.85 test accuracy`."""
    chosen = recommendation["recommended"]
    others = [role for role in ("fastest", "cheapest") if recommendation[role]["label"] == chosen["label"]]
    names = ["Recommended", *others]
    named = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    of_which = " of those confirmed" if chosen["undecided"] else ""
    missed = recommendation["missed_targets"]
    none = f" (no cell {limit_words(recommendation['max_gpus'])}reached {missed[0]:g})" if missed else ""
    return f"{named}{of_which} to {recommendation['target']:g} {metric_of(recommendation).title}{none}"


def chosen_likely(recommendation: Figure) -> str:
    """Say how likely the recommended cell is near enough to the fastest, and whether a cheaper one may be."""
    chosen = recommendation["recommended"]
    likely = likely_words(chosen, recommendation)
    if chosen["label"] == recommendation["fastest"]["label"] != recommendation["cheapest"]["label"]:
        likely += f", no cheaper cell reaches {share_text(recommendation['confidence'])}"
    return likely


def chosen_notes(recommendation: Figure) -> list[str]:
    """Say what would settle a choice that is in doubt, and whether a search believes in a cell that was not trained."""
    settle, untrained = recommendation["settle"], recommendation.get("untrained")
    words = [_settle_words(settle, recommendation["recommended"], recommendation["fastest"])] if settle else []
    return [*words, *([f"The search's own choice, {untrained}, was not trained."] if untrained else [])]


def likely_words(choice: Figure, recommendation: Figure) -> str:
    """Say how likely a choice is near enough to the fastest cell."""
    likely, of_which = share_text(choice["probability"]), " of those" if choice["undecided"] else ""
    return f"{likely} likely within {100 * recommendation['tolerance']:g}% of the fastest{of_which}"


def beside_chosen(other: Figure, chosen: Figure) -> str:
    """Say what another cell takes, over what the recommended one takes."""
    time, cost = (other[figure] / chosen[figure] for figure in ("seconds", "worker_seconds"))
    doubt = " (not shown to be less)" if time < 1 and chosen["label"] in other["ties"] else ""
    return f"{time:.2f}× the time{doubt} and {cost:.2f}× the cost"


def _settle_words(settle: Figure, chosen: Figure, fastest: Figure) -> str:
    beside = "the fastest" if settle["beside"] == fastest["label"] else settle["beside"]
    seeds = "one more seed" if settle["seeds"] == 1 else f"some {settle['seeds']} more seeds"
    spent = f"{three_digits(settle['worker_seconds'])} worker-seconds"
    if settle["label"] == chosen["label"]:
        return f"{seeds.capitalize()} of it and of {beside} should tell whether it is, for {spent}."
    return (
        f"{settle['label']} is cheaper and {share_text(settle['probability'])} likely: {seeds} of it and of "
        f"{beside} should tell, for {spent}."
    )


def cell_words(choice: Figure) -> str:
    """Return a choice with its seconds, their interval, and what it takes."""
    inside = [f"{three_digits(choice['worker_seconds'])} worker-seconds"]
    if choice["cost"] is not None:
        inside.append(f"cost {money_text(choice['cost'])}")
    if extent := range_text(choice["interval"]):
        inside.insert(0, extent)
    return f"{choice['label']}, {marked_seconds(choice)} ({', '.join(inside)})"


def measured_when(best: Figure) -> str:
    """Say at which evaluation the metric of a choice was measured: the last, unless a scheduler stopped its trials."""
    epochs = best["stopped_after"]
    if not epochs:
        return "at the last evaluation"
    span = f"{epochs[0]}" if epochs[0] == epochs[-1] else f"{epochs[0]} to {epochs[-1]}"
    return f"at the last evaluation, or where trials were stopped (after {span})"


def scaling_line(summary: Summary) -> Line:
    """Whether more workers were faster than one. It is marked if they, or what they are compared with, have flags."""
    scaling, timings = summary["scaling"], summary["timings"]
    answered = scaling_answer(timings) if present(scaling) else None
    if answered is None:
        return Line("More workers", f"no comparison: {why_of(scaling)}.")
    bases = {row["base"] for row in answered.rows}
    return Line(answered.topic, _marked(answered.text, [*answered.rows, *(r for r in timings if r["label"] in bases)]))


def _verdict_line(summary: Summary) -> Line | None:
    """Say what puts the timings in doubt, and the first cause by which scaling ends."""
    doubts = _doubts(summary)
    causes = [verdict for verdict in summary["verdicts"] if verdict["cause"] not in FLAG_VERDICTS]
    if not doubts and not causes:
        return None
    verdict = (causes or doubts)[0]
    text = f"{clipped(verdict_words(verdict, summary), LONGEST_LINE // 2)} {verdict['remedy']}"
    if doubts and causes:
        text = f"{clipped(verdict_words(doubts[0], summary), LONGEST_LINE // 4)} {text}"
    return Line("", text)


def verdict_words(verdict: Mapping[str, Any], summary: Summary) -> str:
    """Return a verdict that names few of its cells.

    It is marked if the cell it names has flags and the verdict is not about flags.
    """
    cause, evidence = verdict["cause"], verdict["evidence"]
    if cause in FLAG_VERDICTS:
        if verdict["threshold"] is not None or len(evidence) <= NAMED_CELLS + 1:
            return str(verdict["words"])
        return flag_verdict_words(cause, list(evidence), NAMED_CELLS)
    named = next(iter(evidence))
    return _marked(verdict["words"], [row for row in summary["timings"] if row["label"] == named])


def _doubts(summary: Summary) -> list[Mapping[str, Any]]:
    return [verdict for verdict in summary["verdicts"] if verdict["cause"] in FLAG_VERDICTS]


def _marked(words: str, rows: list[Row]) -> str:
    """Mark a sentence at its end if the timings that it rests on have flags."""
    return f"{words.rstrip('. ')} {FLAGGED}." if any(row["flags"] for row in rows) else words


def beyond_line(summary: Summary) -> Line | None:
    """Say what more workers than were measured would bring, and up to where that is known."""
    part, recommendation = part_of(summary, "predictions"), summary["recommendation"]
    if "predictions" not in summary or not present(recommendation["fastest"]):
        return None
    measured = f"{plural(max(summary['study']['num_gpus']), 'worker')} measured"
    if not present(part):
        return Line(f"Beyond the {measured}", f"no prediction: {why_of(part)}.")
    broken, best = part.get("breaks_at"), (part.get("best") or {}).get("fastest")
    ends = f" The prediction ends at {broken['num_gpus']}: {why_of(broken)}." if broken else ""
    if not any(row["beyond"] and row["valid"] for row in part["rows"]):
        return Line("", f"Beyond the {measured} nothing can be predicted.{ends}")
    doubt = f" {doubt}" if (doubt := steps_doubt(part)) else ""
    if best is None or not present(best) or not best["beyond"]:
        none = f"Beyond the {measured} no time to {part['target']:g} is predicted to be shorter."
        return Line("", f"{none}{doubt}{ends}")
    return Line(f"Beyond the {measured}", f"{_prediction(best, part)}.{doubt}{ends}")


def steps_doubt(part: Mapping[str, Any]) -> str:
    """Return a sentence about what puts the steps to the target of a prediction in doubt; empty if nothing does."""
    return f"Of the steps to {part['target']:g}: {why_of(part)}." if part.get("why") else ""


def _prediction(best: Figure, part: Figure) -> str:
    """Return the soonest beyond the measured sizes, compared with the soonest within them."""
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
    dearer = best["worker_seconds"] / least["worker_seconds"]
    return (
        f"{words}, {faster:.2f}× as fast as {least['num_gpus']} at batch {least['batch_size']:g}, for "
        f"{dearer:.2f}× the worker-seconds"
    )


def _sure_line(summary: Summary) -> Line | None:
    """Return overhead and caveats. The caveat on seeds is shortened. A flag that a verdict names gets no caveat."""
    ratio, doubts = summary["cost"]["overhead_ratio"], _doubts(summary)[:1]
    told = {FLAG_VERDICTS[verdict["cause"]][0] for verdict in doubts}
    sentences = [f"The study took {ratio:.2f}× its training time."] if ratio is not None else []
    for caveat in summary["caveats"]:
        if caveat["kind"] == "seeds":
            sentences.append(seed_caveat(summary["cells"], metric_of(summary["study"]), brief=True) or caveat["words"])
        elif caveat["kind"] not in told:
            sentences.append(caveat["words"])
    return Line("", " ".join(sentences)) if sentences else None


def study_took(cost: Figure) -> str:
    """Say what the study itself took: its time over all its runs, beside its training, and worker-seconds.

    cost: from `study_cost`; evaluation_timed: training includes evaluation, as a Ray Train loop's does.
    """
    wall, ratio = cost["wall_seconds"], cost["overhead_ratio"]
    if wall is None:
        return f"What the study took is not known: {cost['why']}."
    took = f"The study took {seconds_text(wall)} over all its runs"
    if ratio is None:
        return f"{took}; {cost['why']}."
    money = f", cost {money_text(cost['cost'])}" if cost["cost"] is not None else ""
    between = "start-up and recording" if cost.get("evaluation_timed") else "start-up, evaluation and recording"
    return (
        f"{took}, {ratio:.2f}× the {seconds_text(cost['critical_path_seconds'])} of training on its critical path: "
        f"{between} are the difference. "
        f"All trainings together: {three_digits(cost['worker_seconds'])} worker-seconds{money}."
    )


def headline(summary: Summary) -> str:
    """Return the answer in one short sentence."""
    recommendation, metric = summary["recommendation"], metric_of(summary["study"])
    chosen, fastest, best = (recommendation[role] for role in ("recommended", "fastest", metric.choice_key))
    if present(fastest):
        took, target = marked_seconds(chosen), metric.named(f"{recommendation['target']:g}")
        reached = f"{_configuration(chosen, summary)} reached {target} in {took}"
        if chosen["label"] == fastest["label"]:
            first = "as soon as any" if chosen["ties"] else "soonest of all"
            return f"{reached}, {first}{' that were confirmed' if chosen['undecided'] else ''}."
        alike, other = (_settings(choice, summary) for choice in (chosen, fastest))
        differs = ", ".join(setting for setting, same in zip(other, alike, strict=True) if setting != same)
        return f"{reached}, with {differs} it took {marked_seconds(fastest)}."
    if present(best):
        missed = [f"no cell reached {target:g}; " for target in recommendation["missed_targets"][:1]]
        value = metric.text(best[metric.key]["value"])
        alike = best["named"] != best["label"]  # with any num_gpus
        furthest = f"{_configuration(best, summary, alike=alike)} came furthest, to {value} {metric.title}."
        text = "".join([*missed, furthest])
        return f"{text[:1].upper()}{text[1:]}"
    why = fastest["why"]
    return f"No answer: {why}."


def _configuration(choice: Figure, summary: Summary, *, alike: bool = False) -> str:
    """Name the configuration. alike: whether num_gpus does not matter to what is said."""
    return ", ".join(_settings(choice, summary)[1 if alike else 0 :])


def _settings(choice: Figure, summary: Summary) -> list[str]:
    """Return the workers, batch, rate and other swept parameters of a choice, as words."""
    others = [f"{short_name(key)} {value_text(choice['params'][key])}" for key in other_parameters(summary)]
    usual = [f"batch {choice['batch_size']}", f"rate {choice['learning_rate']:g}"]
    return [plural(choice["num_gpus"], "worker"), *usual, *others]
