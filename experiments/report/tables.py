"""The laws in numbers, the predictions, and the looks of an adaptive search, as tables of text."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scalestudy.experiments.analysis.measures.parts import (
    NOTHING,
    UNBROKEN,
    Missing,
    Summary,
    estimate_text,
    part_of,
    present,
    why_of,
)
from scalestudy.experiments.analysis.measures.units import (
    FLAGGED,
    brief_seconds,
    money_text,
    plural,
    seconds_text,
    three_digits,
)
from scalestudy.experiments.analysis.text.answer import steps_doubt
from scalestudy.experiments.analysis.text.looks import look_words, search_words
from scalestudy.experiments.plan.plan import value_text
from scalestudy.experiments.report.charts import sentences
from scalestudy.experiments.report.flags import used_all_the_same

Rows = Sequence[Sequence[str]]
Text = Callable[[float], str]


@dataclass(frozen=True, kw_only=True)
class TextTable:
    """A table of text under a title."""

    title: str
    lead: str  # what stands before it, and alone if there are no rows
    header: Sequence[str] = ()
    rows: Rows = ()


Tables = list[TextTable]
STEP_TIME: tuple[tuple[str, str, str, Text], ...] = (
    ("alpha_c", "α_c", "computing a step, whatever its size", brief_seconds),
    ("beta_c", "β_c", "computing one example more", brief_seconds),
    ("alpha_r", "α_r", "summing gradients over two workers", brief_seconds),
    ("beta_r", "β_r", "each further worker", brief_seconds),
    ("alpha_n", "α_n", "summing gradients over two nodes", brief_seconds),
    ("beta_n", "β_n", "each further node", brief_seconds),
    ("gamma", "γ", "overlap of the two, 1 none to 10 full", "{:.2f}".format),
    ("data_seconds", "T_data", "waiting for data", brief_seconds),
)
STATISTICAL: tuple[tuple[str, str, str, Text], ...] = (
    ("s_min", "S_min", "steps with a batch without limit", "{:,.3g}".format),
    ("e_min", "E_min", "examples with a batch near one", "{:,.0f}".format),
    ("b_crit", "B_crit", "critical batch at this target: it needs twice S_min steps", "{:,.0f}".format),
    (
        "near_perfect",
        "B_crit/5",
        "critical batch of Shallue et al. at this target: 20 % more steps than perfect scaling",
        "{:,.0f}".format,
    ),
    ("noise_scale", "B_noise", "gradient noise scale, a proxy for B_crit", "{:,.0f}".format),
)


def law_tables(summary: Summary) -> Tables:
    """Return the parameters of every law, with intervals or what would identify them. A missing law has a sentence."""
    return [
        *_tables(summary, "throughput_model", "Time of a step", _step_table),
        *_tables(summary, "statistical_efficiency", "Steps to the target", _steps_table),
        *_tables(summary, "lr_rule", "Learning-rate rule", _rate_table),
    ]


def _tables(summary: Summary, key: str, title: str, table: Callable[[str, Mapping[str, Any]], TextTable]) -> Tables:
    """Return a table for each combination of swept keys that has this part, a sentence for each other.

    Equal sentences are joined.
    """
    part, tables = part_of(summary, key), Tables()
    for each in (part, *(part.get("others") or ())):
        name = f"{title}{_of(each)}"
        made = table(name, each) if present(each) else TextTable(title=name, lead=f"{why_of(each)}.")
        if made not in tables:
            tables.append(made)
    return tables


def _step_table(title: str, part: Mapping[str, Any]) -> TextTable:
    error = part.get("median_error")
    judged = (
        f"Its median error at cells left out is {error:.1%}." if error is not None else "Not checked at other cells."
    )
    return TextTable(
        title=title,
        lead="T = (T_compute^γ + T_sync^γ)^(1/γ) + T_data, fitted to "
        f"{len(part['points'])} sizes. {judged}{_flagged(part)}",
        header=["parameter", "value (90% interval)", "what it is"],
        rows=_parameters(part, STEP_TIME),
    )


def _parameters(part: Mapping[str, Any], wanted: Sequence[tuple[str, str, str, Text]]) -> list[list[str]]:
    return [
        [symbol, str(estimate_text(part[key], text, space=UNBROKEN)), meaning]
        for key, symbol, meaning, text in wanted
        if part.get(key) is not None
    ]


def _steps_table(title: str, part: Mapping[str, Any]) -> TextTable:
    return TextTable(
        title=title,
        lead=f"S(B) = S_min (1 + B_crit / B){_to(part)}, each batch at its best rate.",
        header=["parameter", "value (90% interval)", "meaning"],
        rows=_parameters(part, STATISTICAL),
    )


def _to(part: Mapping[str, Any]) -> str:
    return f" to {part['target']:g}" if part["target"] is not None else ""


def _rate_table(title: str, part: Mapping[str, Any]) -> TextTable:
    exponent = estimate_text(part["exponent"], "{:.2f}".format)
    known = f"is {exponent}" if isinstance(exponent, Missing) else f"= {exponent}"
    nearest = f", nearest {part['nearest']}" if part.get("nearest") else ""
    by = f" Best: {part['target_or_metric']}." if part.get("target_or_metric") else ""
    return TextTable(
        title=title,
        lead=f"Best rate ∝ batch^p: p {known}{nearest}. 0.5 is the square-root rule, 1 the linear one.{by}",
        header=["batch", "best rate", "runs", "note"],
        rows=[
            [
                value_text(point["batch_size"]),
                f"{point['best_rate']:g}",
                value_text(point["n"]),
                f"{point['edge']} rate tried" if point["edge"] else "",
            ]
            for point in part["points"]
        ],
    )


def prediction_table(summary: Summary) -> TextTable:
    """Return a row for each num_gpus: the batch that is predicted to be best there, and what it would take."""
    part, title = part_of(summary, "predictions"), "Beyond the cluster"
    if not present(part):
        return TextTable(title=title, lead=f"{why_of(part)}.")
    broken = part.get("breaks_at")
    ends = f"The prediction ends at {plural(broken['num_gpus'], 'worker')}: {why_of(broken)}." if broken else ""
    last = broken["num_gpus"] if broken else None
    made = f"Steps to {part['target']:g} times the time of a step; batch: {part['batch_size']}{_of(part)}."
    mark = FLAGGED if part.get("flagged") else ""
    header = ["workers", "batch", "a worker", "lr", "step", f"time to {part['target']:g}", "90% interval"]
    return TextTable(
        title=title,
        lead=sentences(made, ends, steps_doubt(part), used_all_the_same(part)),
        header=[*header, "worker-seconds", "cost", "note"],
        rows=[
            _prediction_row(row, part.get("best") or {}, mark, ends_here=row["num_gpus"] == last)
            for row in part["rows"]
        ],
    )


def _prediction_row(row: Mapping[str, Any], best: Mapping[str, Any], mark: str, *, ends_here: bool) -> list[str]:
    """Return a row.

    mark: follows what comes from the time of a step. ends_here: whether the text above the table says why the
    prediction ends at this row.
    """

    def text(key: str, write: Callable[[Any], str], mark: str = "") -> str:
        return NOTHING if row.get(key) is None else f"{write(row[key])}{mark}"

    both = row["low"] is not None and row["high"] is not None
    roles = [role for role, choice in best.items() if present(choice) and choice["num_gpus"] == row["num_gpus"]]
    beyond = ["beyond the measured"] if row["beyond"] else []
    why = [] if row["valid"] and not row["why"] else ["not predicted" if ends_here else why_of(row)]
    return [
        value_text(row["num_gpus"]),
        text("batch_size", value_text),
        text("per_worker_batch", value_text),
        text("learning_rate", "{:.3g}".format),
        text("step_seconds", brief_seconds, mark),
        text("seconds_to_target", seconds_text, mark),
        f"{seconds_text(row['low'])} to {seconds_text(row['high'])}" if both else NOTHING,
        text("worker_seconds", three_digits, mark),
        text("cost", money_text, mark),
        "; ".join([*roles, *beyond, *why]),
    ]


def looks_table(summary: Summary) -> TextTable | None:
    """Return what an adaptive search tried and why, a row a look. None for another study."""
    part = summary.get("adaptive")
    if part is None:
        return None
    header = ["", "look", "why", "best so far", "near the best", "ended", "worker-seconds"]
    rows = [
        [
            str(step["number"]),
            step["name"],
            look_words(step, part["minimises"]),
            step.get("best") or NOTHING,
            NOTHING if step.get("probability") is None else f"{step['probability']:.0%}",
            step["status"].replace("_", " "),
            three_digits(step["took"]),
        ]
        for step in part["steps"]
    ]
    return TextTable(title="What was tried and why", lead=search_words(part), header=header, rows=rows)


def _of(part: Mapping[str, Any]) -> str:
    return f", {part['of']}" if part.get("of") else ""


def _flagged(part: Mapping[str, Any]) -> str:
    return f" {used_all_the_same(part)}".rstrip()
