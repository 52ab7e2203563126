"""The report's page: what the template gets from a summary.

Names, messages and every other text of a study are untrusted, so the template escapes them. Only the SVG of figures,
which is made from escaped text, goes in unchanged.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from scalestudy.experiments.analysis.answers.recommendation import ROLES
from scalestudy.experiments.analysis.answers.verdicts import DATA_SHARE, SMALL_BATCH_RATIO, SYNC_SHARE
from scalestudy.experiments.analysis.measures.cells import learnt_label
from scalestudy.experiments.analysis.measures.parts import NOTHING, Summary, present
from scalestudy.experiments.analysis.measures.records import TIMED
from scalestudy.experiments.analysis.measures.units import (
    FLAGGED,
    clipped,
    marked_seconds,
    metric_of,
    money_text,
    range_text,
    seconds_text,
    setting_text,
    three_digits,
    work_unit,
)
from scalestudy.experiments.analysis.text.advice import best_rows, book_table, evidence_words, shared_caveats
from scalestudy.experiments.analysis.text.answer import answer, headline, measured_when, verdict_words
from scalestudy.experiments.report.drawing import Drawn
from scalestudy.experiments.report.styles import flag_words
from scalestudy.experiments.report.tables import factorised_table, law_tables, prediction_table

HERE = Path(__file__).parent

TABLE_ROWS = 40
"""Cells that are shown at once. If there are more, the best are shown, and all of them on request."""
LONGEST_TABLE = 1_400_000
"""Characters of text in a table of every cell. If there are more, it has the best cells, summary.json the rest."""
TAGS = 9
"""Characters that a table's cell takes beside its text."""
LONGEST_VERDICT = 600
Choice = Mapping[str, Any]


def render_page(summary: Summary, figures: Sequence[Drawn], spec_yaml: str) -> str:
    """The report as one HTML text that needs nothing else. Its one script sorts tables and is not needed to read it."""
    from markupsafe import Markup

    header, rows = book_table(summary)
    cards, notes = choices(summary)
    ranges, laws, predictions = details_table(summary), law_tables(summary), prediction_table(summary)
    table = [_table_row(row, cells, summary) for row, cells in zip(summary["cells"], rows, strict=True)]
    return _template().render(
        study=summary["study"],
        metric=metric_of(summary["study"]),
        counts=summary["trials"],
        headline=headline(summary),
        answer=answer(summary),
        choices=cards,
        notes=notes,
        cost=cost_words(summary),
        header=header,
        rows=[table[position] for position in best_rows(summary, TABLE_ROWS)],
        cells=len(table),
        every_row=[table[position] for position in listed(summary, [row["cells"] for row in table])],
        flags=flag_words(summary["cells"]),
        details=(ranges[0], [ranges[1][position] for position in listed(summary, ranges[1])]),
        figures=[{"drawn": figure, "svg": Markup(figure.svg)} for figure in figures if figure.png is not None],
        undrawn=[figure for figure in figures if figure.png is None],
        verdicts=[
            {**each, "words": clipped(verdict_words(each, summary), LONGEST_VERDICT)} for each in summary["verdicts"]
        ],
        no_verdict=no_verdict(summary),
        laws=[law for law in laws if law.rows],
        unfitted=[law for law in [*laws, predictions] if not law.rows],
        predictions=predictions,
        factorised=factorised_table(summary),
        caveats=[caveat["words"] for caveat in summary["caveats"]],
        failures=summary["failures"],
        style=Markup((HERE / "style.css").read_text("utf-8")),
        script=Markup((HERE / "sort.js").read_text("utf-8")),
        spec_yaml=spec_yaml,
    )


def _template() -> Any:
    """The page without its texts. It escapes them all, and fails if one is missing."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("template.html")


def listed(summary: Summary, rows: Sequence[Sequence[str]]) -> list[int]:
    """Positions of the rows that a table of every cell has room for: all, or the best."""
    length = max(1, sum(len(text) + TAGS for row in rows for text in row))
    return best_rows(summary, int(len(rows) * min(1.0, LONGEST_TABLE / length)))


def choices(summary: Summary) -> tuple[list[dict[str, Any]], list[str]]:
    """Cards and notes.

    There is a card for recommended, fastest and cheapest. If no cell reached a target, there is one for the best
    metric, and one for what is recommended by it. A card has name, value, unit, which (the cell), details and caveats.
    A note says why a choice is missing, or what holds for all.
    """
    recommendation, metric = summary["recommendation"], metric_of(summary["study"])
    if present(recommendation["fastest"]):
        cards = [_card(summary, role) for role in ROLES]
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
    reasons: dict[str, list[str]] = {}  # each said once
    for role in ROLES:
        if not present(recommendation[role]):
            reasons.setdefault(recommendation[role]["why"], []).append(role)
    missing = [
        f"No {' or '.join(filter(None, (', '.join(roles[:-1]), roles[-1])))}: {why}." for why, roles in reasons.items()
    ]
    return cards, [*missing, *shared]


def _card(summary: Summary, role: str) -> dict[str, Any]:
    choice, unit = summary["recommendation"][role], work_unit(summary)
    spent = f"{three_digits(choice['gpu_seconds'])} {unit}"
    if choice["cost"] is not None:
        spent += f", cost {money_text(choice['cost'])}"
    interval = range_text(choice["interval"])
    mark = FLAGGED if choice["flags"] else ""
    value, details = marked_seconds(choice), [*([interval] if interval else []), spent]
    if role == "cheapest":
        value = f"{three_digits(choice['gpu_seconds'])}{mark}"
        money = f"cost {money_text(choice['cost'])}, " if choice["cost"] is not None else ""
        details = [f"{money}{marked_seconds(choice)}", *([interval] if interval else [])]
    return _written(role.capitalize(), value, choice, details, unit if role == "cheapest" else "")


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


def cost_words(summary: Summary) -> str:
    """A sentence about what the study itself took."""
    cost = summary["cost"]
    if cost["overhead_ratio"] is None:
        return f"What the study took beside training is not known: {cost['why']}."
    money = f", cost {money_text(cost['cost'])}" if cost["cost"] is not None else ""
    return (
        f"The study took {seconds_text(cost['wall_seconds'])} for {seconds_text(cost['critical_path_seconds'])} of "
        f"training on its critical path, {cost['overhead_ratio']:.2f}× as long: start-up, evaluation and recording are "
        f"the difference. All trainings together: {three_digits(cost['gpu_seconds'])} {work_unit(summary)}{money}."
    )


def no_verdict(summary: Summary) -> str:
    """A sentence for when no rule found a cause."""
    if not any(present(row["step_seconds"]) for row in summary["timings"]):
        return "No finished trial measured the phases of its steps, so that no cause can be named."
    chosen = summary["recommendation"]["choice"]
    if not present(chosen):
        return "No cell is recommended, so that no cause was looked for."
    return (
        f"Where {chosen['label']} was timed no threshold was passed by more than runs scatter: waiting for data "
        f"{DATA_SHARE:.0%} of a step, summing gradients {SYNC_SHARE:.0%}, and {SMALL_BATCH_RATIO} times the cost of an "
        "example in the largest batches."
    )


def _table_row(row: Mapping[str, Any], cells: Sequence[str], summary: Summary) -> dict[str, Any]:
    recommendation, metric = summary["recommendation"], metric_of(summary["study"])
    roles: list[str] = [
        role for role in ROLES if present(recommendation[role]) and recommendation[role]["label"] == row["label"]
    ]
    best = recommendation[metric.choice_key]
    if present(best) and best["named"] in (row["label"], learnt_label(row["params"])):
        roles.append(metric.superlative)
    return {"cells": cells, "roles": roles}


def details_table(summary: Summary) -> tuple[list[str], list[list[str]]]:
    """Every figure with its range over seeds: the metric, epoch seconds, samples/s and time to each target.

    If training picked something by itself, that has a column too.
    """
    targets, metric = summary["study"]["targets"], metric_of(summary["study"])
    picks = any("details" in row for row in summary["cells"])
    times = {(row["label"], row["target"]): row for row in summary["time_to_target"]}
    header = ["cell", "seeds", f"{metric.heading}, last epoch", f"{metric.heading}, best epoch", "epoch s", "samples/s"]
    header += [*(f"time to {target:g}" for target in targets), *(["picked by training"] if picks else [])]
    rows = [
        [
            f"{row['label']}{f' {FLAGGED}' if row['flags'] else ''}",
            _seeds_text(row),
            _ranged(row[metric.key], metric.text),
            _ranged(row[metric.best_key], metric.text),
            _ranged(row["epoch_seconds"], "{:.3f}".format),
            _ranged(row["samples_per_second"], "{:,.0f}".format),
            *(_time_text(times[row["label"], target]) for target in targets),
            *([_picked_text(row.get("details", {}))] if picks else []),
        ]
        for row in summary["cells"]
    ]
    return header, rows


def _seeds_text(row: Mapping[str, Any]) -> str:
    if row.get("kind") == "factorised":
        return "inferred"
    trials = row["trials"]
    cut = [
        f", {trials[status]} {words}"
        for status, words in (("at_target", "stopped at the target"), ("stopped", "stopped early"))
        if trials[status]
    ]
    return f"{sum(trials[status] for status in TIMED)} of {trials['planned']}{''.join(cut)}"


def _picked_text(details: Mapping[str, Sequence[Any]]) -> str:
    """`channels_last: true; shards: [0.6, 0.4]`, with every value if the trials of a cell differ."""
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
    seconds = "not reached" if row["seconds"] is None else seconds_text(row["seconds"])
    if row["reached"] in (0, row["n_seeds"]):
        return seconds
    return f"{seconds} ({row['reached']} of {row['n_seeds']} seeds)"
