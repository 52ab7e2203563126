"""The report's page: the values that the template takes from a summary.

Names, messages and every other text of a study are untrusted, so the template escapes them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from scalestudy.experiments.analysis.answers.judged import LOOP_PHASES
from scalestudy.experiments.analysis.answers.recommendation import ROLES
from scalestudy.experiments.analysis.answers.verdicts import DATA_SHARE, SMALL_BATCH_RATIO, SYNC_SHARE
from scalestudy.experiments.analysis.measures.cells import learnt_label
from scalestudy.experiments.analysis.measures.parts import NOTHING, Summary, present, why_of
from scalestudy.experiments.analysis.measures.units import (
    FLAGGED,
    clipped,
    length_text,
    marked_seconds,
    metric_of,
    money_text,
    period_of,
    plural,
    range_text,
    rates_of,
    seconds_text,
    setting_text,
    three_digits,
)
from scalestudy.experiments.analysis.measures.usable import COUNTED, TIMED
from scalestudy.experiments.analysis.text.answer import (
    answer,
    beside_chosen,
    chosen_likely,
    chosen_lines,
    chosen_notes,
    chosen_topic,
    headline,
    likely_words,
    measured_when,
    study_took,
    verdict_words,
)
from scalestudy.experiments.analysis.text.sentences import best_rows, book_table, evidence_words, shared_caveats
from scalestudy.experiments.analysis.text.to_learn import to_learn
from scalestudy.experiments.plan.timing_flags import TimingFlag
from scalestudy.experiments.report.charts import Drawing, not_drawn, sentences
from scalestudy.experiments.report.explorer import embedded
from scalestudy.experiments.report.flags import flag_words
from scalestudy.experiments.report.phases_figure import phases_figure
from scalestudy.experiments.report.predictions_figure import predictions_figure
from scalestudy.experiments.report.runs_table import runs_tables
from scalestudy.experiments.report.speedup_figures import scaling_figure
from scalestudy.experiments.report.steps_figure import steps_figure
from scalestudy.experiments.report.tables import law_tables, looks_table, prediction_table

HERE = Path(__file__).parent

TABLE_ROWS = 40
"""Cells that are shown at once. If there are more, the best are shown, and all of them on request."""
LONGEST_TABLE = 1_400_000
"""Characters of text in a table of every cell. If there are more, it has the best cells, summary.json the rest."""
MOST_RANGES = 400
"""Rows of the table of ranges over seeds."""
TAGS = 9
"""Characters of a table cell's markup."""
LONGEST_VERDICT = 600
SCRIPTS = ("tables.js", "figure.js", "charts.js", "explore.js", "pictures.js")
EXPLORED = (
    ("curves", "Training over time", "Each line is a cell, the median over its seeds."),
    ("pareto", "Time against worker-seconds", "A point is a cell. The line joins those that no other beats in both."),
    ("rates", "Batch size and learning rate", "The stronger the shade, the better."),
    ("time_to_target", "Time to the target by size", "The stronger the shade, the sooner."),
    ("memory", "Memory of a worker", "The largest peak of a worker in the trainings of a cell."),
)
"""Name, title and caption of the figures that are drawn from the cells."""
PLACES = {
    "explore": ("curves", "pareto", "speedup", "rates", "time_to_target", "memory"),
    "why": ("phases",),
    "beyond": ("predictions",),
    "how": ("efficiency", "steps_to_target"),
}
"""The figures of each section, in their order."""
NO_PHASES = "No finished trial measured the phases of its steps"
AT_TARGET = "Trainings stopped at the target: a line ends where fewer than half of its seeds went on."
Choice = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Live:
    """How far a running study is."""

    written: float
    """POSIX seconds of the page."""
    ended: int
    planned: int
    """Trials, as `ended`."""
    progress: str
    running: Sequence[str]
    """A line for each trial that trains."""


def render_page(
    summary: Summary,
    spec_yaml: str,
    data: Mapping[str, Any],
    live: Live | None = None,
) -> str:
    """Return the report as one HTML text that needs nothing else. Without scripts it has the answer and the tables.

    data: of the cells (`explorer_data`). live: of a study that runs.
    """
    from markupsafe import Markup

    header, rows = book_table(summary)
    cards, notes = choices(summary)
    ranges, laws, predictions = details_table(summary), law_tables(summary), prediction_table(summary)
    metric, target = metric_of(summary["study"]), summary["recommendation"]["target"]
    table = [_table_row(place, row, rows[place], summary) for place, row in enumerate(summary["cells"])]
    figures = {figure.name: figure for figure in (*explored_figures(data, summary), *summary_figures(summary))}
    sections = {
        section: [figures[name] for name in names if not figures[name].lacks] for section, names in PLACES.items()
    }
    drawn = [figure.title for section in sections.values() for figure in section]
    numbers = {name: asdict(figure.numbers) for name, figure in figures.items() if figure.numbers}
    return _template().render(
        study=summary["study"],
        period=period_of(summary),
        length=length_text(summary),
        metric=metric,
        counts=summary["trials"],
        live=live,
        headline=headline(summary) if live is None else f"So far: {headline(summary)}",
        nothing_ended=not any(summary["trials"].get(status) for status in COUNTED),
        answer=answer(summary)[len(chosen_lines(summary["recommendation"])) if cards else 0 :],
        choices=cards,
        notes=notes,
        cost=study_took(summary["cost"]),
        judged=runs_tables(summary),
        contents=contents(explored=bool(drawn), beyond=bool(predictions.rows), judged="judged" in summary),
        sections=sections,
        drawn=drawn,
        targets=len(data["targets"]),
        sizes=data["sizes"],
        header=header,
        time_column=None if target is None else header.index("notes") - 1,
        rows=[table[position] for position in best_rows(summary, TABLE_ROWS)],
        cells=len(table),
        every_row=[table[position] for position in listed(summary, [row["cells"] for row in table])],
        flags=flag_words(summary["cells"]),
        details=(ranges[0], [ranges[1][position] for position in best_rows(summary, MOST_RANGES)]),
        verdicts=[
            {**each, "words": clipped(verdict_words(each, summary), LONGEST_VERDICT)} for each in summary["verdicts"]
        ],
        no_verdict=no_verdict(summary),
        laws=[law for law in laws if law.rows],
        undrawn=reasons(
            [
                *((figure.title, figure.lacks) for figure in figures.values() if figure.lacks),
                *((law.title, law.lead) for law in [*laws, predictions] if not law.rows),
            ]
        ),
        predictions=predictions,
        looks=looks_table(summary),
        caveats=[caveat["words"] for caveat in summary["caveats"]],
        failures=summary["failures"],
        unfinished=plural(sum(len(each["trials"]) for each in summary["failures"]), "trial"),
        to_learn=to_learn(summary),
        data=Markup(embedded({**data, "figures": numbers})) if drawn else None,
        style=Markup((HERE / "style.css").read_text("utf-8")),
        script=Markup("\n".join((HERE / name).read_text("utf-8") for name in SCRIPTS)),
        spec_yaml=spec_yaml,
    )


def contents(*, explored: bool, beyond: bool, judged: bool) -> list[tuple[str, str]]:
    """Return the anchor and name of the page's sections."""
    return [
        *([("explore", "Explore")] if explored else []),
        ("cells", "Cells"),
        *([("runs", "The runs")] if judged else []),
        ("why", "Why"),
        *([("beyond", "Beyond the cluster")] if beyond else []),
        ("believe", "What to know before believing it"),
        ("how", "How we know"),
    ]


def summary_figures(summary: Summary) -> list[Drawing]:
    """Return the figures whose numbers a summary has."""
    return [
        scaling_figure(summary, "speedup"),
        phases_figure(summary),
        predictions_figure(summary),
        scaling_figure(summary, "efficiency"),
        steps_figure(summary),
    ]


def explored_figures(data: Mapping[str, Any], summary: Summary) -> list[Drawing]:
    """Return the figures that are drawn from the cells, and those that the study does not support.

    With a single point there is nothing to compare.
    """
    cells = data["cells"]
    sizes = [params[:3] for params in cells["params"]]
    per_worker = {
        batch / workers
        for (workers, batch, _), memory in zip(sizes, cells["memory"], strict=True)
        if memory is not None
    }
    timed = max((sum(each is not None for each in answer["seconds"]) for answer in data["targets"]), default=0)
    one = "memory was measured at one batch size a worker only"
    nowhere = "the loop's memory is not measured" if "loop" in summary["study"] else "no trial measured its memory"
    fastest = summary["recommendation"]["fastest"]
    lacks = {
        "curves": "" if data["curves"] else "no training came to an evaluation",
        "pareto": "" if timed > 1 else f"{'one cell alone' if timed else 'no cell'} has a time to a target",
        "rates": "" if len({rate for _, _, rate in sizes}) > 1 else "the study has one learning rate only",
        "time_to_target": "" if present(fastest) else why_of(fastest),
        "memory": "" if len(per_worker) > 1 else one if per_worker else nowhere,
    }
    runs = any(curve.get("runs") for curve in data["curves"])
    stopped = any(row["trials"]["at_target"] for row in summary["cells"])
    more = {
        "curves": sentences("Dashed: a trial that still runs." if runs else "", AT_TARGET if stopped else ""),
        "time_to_target": flag_words(summary["cells"]),
    }
    return [
        not_drawn(name, title, lacks[name])
        if lacks[name]
        else Drawing(name=name, title=title, caption=sentences(caption, more.get(name, "")))
        for name, title, caption in EXPLORED
    ]


def reasons(lacking: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    """Return what is missing, each reason once: titles and why."""
    found: dict[str, list[str]] = {}
    for title, why in lacking:
        found.setdefault(f"{why[:1].upper()}{why[1:]}", []).append(title)
    return [{"titles": titles, "why": why} for why, titles in found.items()]


@cache
def _template() -> Any:
    """Return the page without its texts. It escapes them all, and fails if one is missing."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("template.html")


def listed(summary: Summary, rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the positions of the rows that a table of every cell has room for: all, or the best."""
    length = max(1, sum(len(text) + TAGS for row in rows for text in row))
    return best_rows(summary, int(len(rows) * min(1.0, LONGEST_TABLE / length)))


def choices(summary: Summary) -> tuple[list[dict[str, Any]], list[str]]:
    """Return cards and notes.

    There is a card for each cell that is recommended, fastest or cheapest. If no cell reached a target, there is one
    for the best metric, and one for what is recommended by it. A card has name, value, unit, which (the cell), details
    and caveats. A note says why a choice is missing, or what holds for all.
    """
    recommendation, metric = summary["recommendation"], metric_of(summary["study"])
    if present(recommendation["fastest"]):
        chosen = recommendation["recommended"]["label"]
        roles = [role for role in ROLES if role == "recommended" or recommendation[role]["label"] != chosen]
        cards = [_card(summary, role) for role in roles]
    else:
        by_metric = {
            "recommended": recommendation["recommended"],
            metric.superlative: recommendation[metric.choice_key],
        }
        cards = [
            _written(
                role.capitalize(),
                metric.text(choice[metric.key]["value"]),
                {**choice, "label": choice["named"]} if role != "recommended" else choice,
                [f"{metric.title} {measured_when(choice)}"],
            )
            for role, choice in by_metric.items()
            if present(choice)
        ]
    shared = shared_caveats([card["caveats"] for card in cards])
    cards = [{**card, "caveats": [each for each in card["caveats"] if each not in shared]} for card in cards]
    reasons: dict[str, list[str]] = {}  # each is said once
    for role in ROLES:
        if not present(recommendation[role]):
            reasons.setdefault(recommendation[role]["why"], []).append(role)
    missing = [
        f"No {' or '.join(filter(None, (', '.join(roles[:-1]), roles[-1])))}: {why}." for why, roles in reasons.items()
    ]
    return cards, [*missing, *(chosen_notes(recommendation) if present(recommendation["fastest"]) else ()), *shared]


def _card(summary: Summary, role: str) -> dict[str, Any]:
    recommendation = summary["recommendation"]
    choice = recommendation[role]
    spent = f"{three_digits(choice['worker_seconds'])} worker-seconds"
    if choice["cost"] is not None:
        spent += f", cost {money_text(choice['cost'])}"
    interval = range_text(choice["interval"])
    mark = FLAGGED if choice["flags"] else ""
    value, details = marked_seconds(choice), [*([interval] if interval else []), spent]
    if role == "cheapest":
        value = f"{three_digits(choice['worker_seconds'])}{mark}"
        money = f"cost {money_text(choice['cost'])}, " if choice["cost"] is not None else ""
        details = [f"{money}{marked_seconds(choice)}", *([interval] if interval else [])]
    if role == "recommended":
        return _written(chosen_topic(recommendation), value, choice, [*details, chosen_likely(recommendation)])
    details += [beside_chosen(choice, recommendation["recommended"]), likely_words(choice, recommendation)]
    return _written(role.capitalize(), value, choice, details, "worker-seconds" if role == "cheapest" else "")


def _written(name: str, value: str, choice: Choice, details: Sequence[str], unit: str = "") -> dict[str, Any]:
    evidence = evidence_words(choice)
    caveats = [clipped(caveat["words"], 300) for caveat in choice.get("caveats") or ()]
    return {
        "name": name,
        "value": value,
        "unit": unit,
        "which": choice["label"],
        "details": [*details, *([evidence] if evidence else [])],
        "caveats": caveats,
    }


def no_verdict(summary: Summary) -> str:
    """Return a sentence for when no rule found a cause."""
    if not any(present(row["step_seconds"]) for row in summary["timings"]):
        measured = f"{LOOP_PHASES[:1].upper()}{LOOP_PHASES[1:]}" if "loop" in summary["study"] else NO_PHASES
        return f"{measured}, so no cause can be named."
    chosen = summary["recommendation"]["choice"]
    if not present(chosen):
        return "No cell is recommended, so no cause was looked for."
    if any(chosen["label"] in row["cells"] and TimingFlag.STARVED in row["flags"] for row in summary["timings"]):
        return f"The workers of {chosen['label']} were starved, so its timings name no cause."
    return (
        f"Where {chosen['label']} was timed no threshold was passed by more than runs scatter: waiting for data "
        f"{DATA_SHARE:.0%} of a step, summing gradients {SYNC_SHARE:.0%}, and {SMALL_BATCH_RATIO} times the cost of an "
        "example in the largest batches."
    )


def _table_row(place: int, row: Mapping[str, Any], cells: Sequence[str], summary: Summary) -> dict[str, Any]:
    recommendation, metric = summary["recommendation"], metric_of(summary["study"])
    chosen = {role: recommendation[role] for role in ROLES if present(recommendation[role])}
    roles = [role for role, choice in chosen.items() if choice["label"] == row["label"]]
    best = recommendation[metric.choice_key]
    if present(best) and best["named"] in (row["label"], learnt_label(row["params"])):
        roles.append(metric.superlative)
    return {"place": place, "cells": cells, "roles": roles}


def details_table(summary: Summary) -> tuple[list[str], list[list[str]]]:
    """Return every figure with its range over seeds: the metric, seconds a period, rates and time to each target.

    If training picked something by itself, that has a column too.
    """
    targets, metric, rates = summary["study"]["targets"], metric_of(summary["study"]), rates_of(summary)
    picks = any("details" in row for row in summary["cells"])
    times = {(row["label"], row["target"]): row for row in summary["time_to_target"]}
    header = [
        "cell",
        "seeds",
        f"{metric.heading}, last",
        f"{metric.heading}, best",
        f"{period_of(summary)} s",
        *rates.values(),
    ]
    header += [*(f"time to {target:g}" for target in targets), *(["picked by training"] if picks else [])]
    rows = [
        [
            f"{row['label']}{f' {FLAGGED}' if row['flags'] else ''}",
            _seeds_text(row),
            _ranged(row[metric.key], metric.text),
            _ranged(row[metric.best_key], metric.text),
            _ranged(row["epoch_seconds"], "{:.3f}".format),
            *(_ranged(row.get(rate), "{:,.0f}".format) for rate in rates),
            *(_time_text(times[row["label"], target]) for target in targets),
            *([_picked_text(row.get("details", {}))] if picks else []),
        ]
        for row in summary["cells"]
    ]
    return header, rows


def _seeds_text(row: Mapping[str, Any]) -> str:
    if row["kind"] == "lent":
        return "trained with other workers"
    trials = row["trials"]
    cut = [
        f", {trials[status]} {words}"
        for status, words in (("at_target", "stopped at the target"), ("stopped", "stopped early"))
        if trials[status]
    ]
    return f"{sum(trials[status] for status in TIMED)} of {trials['planned']}{''.join(cut)}"


def _picked_text(details: Mapping[str, Sequence[Any]]) -> str:
    """Return `channels_last: true; shards: [0.6, 0.4]`, with every value if the trials of a cell differ."""
    texts = {name: " or ".join(setting_text(value) for value in values) for name, values in details.items()}
    return "; ".join(f"{name}: {text}" for name, text in texts.items()) or NOTHING


def _ranged(part: Mapping[str, Any], text: Callable[[float], str]) -> str:
    if not present(part):
        return NOTHING
    value, low, high = (text(part[key]) for key in ("value", "low", "high"))
    return value if low == high else f"{value} ({low} to {high})"


def _time_text(row: Mapping[str, Any]) -> str:
    if row["n_seeds"] == 0:
        return NOTHING
    missed = "met at the last evaluation" if row.get("met_last") else "not reached"
    seconds = missed if row["seconds"] is None else seconds_text(row["seconds"])
    if row["reached"] in (0, row["n_seeds"]):
        return seconds
    return f"{seconds} ({row['reached']} of {row['n_seeds']} seeds)"
