"""Stage 9, report: the page – what the template is given, and the template filled in.

Names, messages and every other text of a study are untrusted: the template escapes all of it. Only the figures' SVG,
made here from escaped text, goes in as it is.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.analysis.parts import present
from experiments.analysis.verdicts import DATA_SHARE, SMALL_BATCH_RATIO, SYNC_SHARE
from experiments.analysis.words import (
    NOTHING,
    answer_lines,
    book_table,
    headline,
    metric_of,
    money_text,
    range_text,
    seconds_text,
    setting_text,
    three_digits,
    work_unit,
)
from experiments.report.drawing import Drawn

HERE = Path(__file__).parent
Summary = Mapping[str, Any]
ROLES = ("fastest", "cheapest", "knee")


def render_page(summary: Summary, figures: Sequence[Drawn], spec_yaml: str) -> str:
    """The report as one HTML text: no script, nothing outside it."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    header, rows = book_table(summary)
    return environment.get_template("template.html").render(
        study=summary["study"],
        metric=metric_of(summary["study"]),
        counts=summary["trials"],
        headline=headline(summary),
        answer=answer_lines(summary),
        merits=merits(summary),
        header=header,
        rows=[_table_row(row, cells, summary) for row, cells in zip(summary["cells"], rows, strict=True)],
        details=details_table(summary),
        figures=[{"drawn": figure, "svg": Markup(figure.svg)} for figure in figures],
        verdicts=summary["verdicts"],
        no_verdict=no_verdict(summary),
        caveats=summary["caveats"],
        failures=summary["failures"],
        style=Markup((HERE / "style.css").read_text("utf-8")),
        spec_yaml=spec_yaml,
    )


def no_verdict(summary: Summary) -> str:
    """What to say where no rule found a cause."""
    if not any(present(row["step_seconds"]) for row in summary["timings"]):
        return "No finished trial measured the phases of its steps, so that no cause can be named."
    return (
        f"No threshold was passed: waiting for data stays within {DATA_SHARE:.0%} of a step, summing gradients within "
        f"{SYNC_SHARE:.0%}, and an example costs at most {SMALL_BATCH_RATIO} times as much in small batches as in the "
        "largest."
    )


def merits(summary: Summary) -> list[dict[str, str]]:
    """Three figures of merit: fastest, cheapest, overhead; each name, value, detail."""
    recommendation = summary["recommendation"]
    return [
        _merit("Fastest", recommendation, "fastest", "seconds"),
        _merit("Cheapest", recommendation, "cheapest", work_unit(summary)),
        _overhead(summary["cost"]),
    ]


def _merit(name: str, recommendation: Mapping[str, Any], role: str, unit: str) -> dict[str, str]:
    choice = recommendation[role]
    if not present(choice):
        return {"name": name, "value": NOTHING, "detail": choice["why"], "more": ""}
    more = [f"to {recommendation['target']:g} {metric_of(recommendation).title}"]
    if unit == "seconds":
        value = seconds_text(choice["seconds"])
        more += [extent] if (extent := range_text(choice["interval"])) else []
    else:
        value = three_digits(choice["gpu_seconds"])
        more = [f"{unit} {more[0]}", *([f"cost {money_text(choice['cost'])}"] if choice["cost"] is not None else [])]
    return {"name": name, "value": value, "detail": choice["label"], "more": "; ".join(more)}


def _overhead(cost: Mapping[str, Any]) -> dict[str, str]:
    if cost["overhead_ratio"] is None:
        return {"name": "Overhead", "value": NOTHING, "detail": cost["why"], "more": ""}
    detail = f"{seconds_text(cost['wall_seconds'])} wall for {seconds_text(cost['critical_path_seconds'])} of training"
    more = "start-up, evaluation and recording are the difference"
    return {"name": "Overhead", "value": f"{cost['overhead_ratio']:.2f}×", "detail": detail, "more": more}


def _table_row(row: Mapping[str, Any], cells: Sequence[str], summary: Summary) -> dict[str, Any]:
    recommendation, metric = summary["recommendation"], metric_of(summary["study"])
    roles = [role for role in ROLES if present(recommendation[role]) and recommendation[role]["label"] == row["label"]]
    best = recommendation[metric.choice_key]
    if present(best) and best["label"] == row["label"]:
        roles.append(metric.superlative)
    return {"cells": cells, "roles": roles}


def details_table(summary: Summary) -> tuple[list[str], list[list[str]]]:
    """Every figure with its range over seeds: the metric, epoch seconds, samples/s, time to each target, and what
    training picked by itself where it picked something.
    """
    targets, metric = summary["study"]["targets"], metric_of(summary["study"])
    picks = any("details" in row for row in summary["cells"])
    times = {(row["label"], row["target"]): row for row in summary["time_to_target"]}
    header = ["cell", "seeds", f"{metric.heading}, last epoch", f"{metric.heading}, best epoch", "epoch s", "samples/s"]
    header += [*(f"time to {target:g}" for target in targets), *(["picked by training"] if picks else [])]
    rows = [
        [
            row["label"],
            f"{row['trials']['finished'] + row['trials']['stopped']} of {row['trials']['planned']}",
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


def _picked_text(details: Mapping[str, Sequence[Any]]) -> str:
    """`channels_last: true; shards: [0.6, 0.4]`; where the trials of a cell differ, every value."""
    texts = {name: " or ".join(setting_text(value) for value in values) for name, values in details.items()}
    return "; ".join(f"{name}: {text}" for name, text in texts.items()) or NOTHING


def _ranged(part: Mapping[str, Any], text: Callable[[float], str]) -> str:
    if not present(part):
        return NOTHING
    value, low, high = (text(part[key]) for key in ("value", "low", "high"))
    return value if low == high else f"{value} ({low} to {high})"


def _time_text(row: Mapping[str, Any]) -> str:
    seconds = "not reached" if row["seconds"] is None else seconds_text(row["seconds"])
    if row["n_seeds"] == 0:
        return NOTHING
    return (
        seconds if row["reached"] in (0, row["n_seeds"]) else f"{seconds} ({row['reached']} of {row['n_seeds']} seeds)"
    )
