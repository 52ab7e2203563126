"""A recommendation as sentences; the book's table."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from scalestudy.experiments.analysis.measures.metric import StudyMetric
from scalestudy.experiments.analysis.measures.parts import NOTHING, Part, present
from scalestudy.experiments.analysis.measures.scaling import NEITHER, WEAK
from scalestudy.experiments.analysis.measures.units import (
    clipped,
    metric_of,
    other_parameters,
    plain_text,
    three_digits,
)
from scalestudy.experiments.analysis.text.answer import FLAGGED, beyond_line, cell_words, chosen_lines
from scalestudy.experiments.plan.plan import short_name

NAMED_CELLS = 3
"""Cells that a line of evidence names; of more it tells how many."""
INDENT = "  "


def recommendation_lines(recommendation: Part) -> list[str]:
    """A recommendation (`recommend`) in words: target, fastest, cheapest, knee, below each its evidence and its
    caveats; then caveats that hold for every one, and what more workers would bring where there are `predictions`.

    With `predictions` there must be `study` (num_gpus, device) and `max_gpus` (null: any number), as
    `orchestration.advice` adds them.
    """
    told = _told(recommendation)
    caveats = [caveats_of(choices) for _, choices in told if choices]
    shared = shared_caveats(caveats)
    lines: list[str] = []
    for line, choices in told:
        own = [each for each in caveats_of(choices) if each not in shared]
        lines += [line, *(f"{INDENT}{words}" for words in (*_evidence_lines(choices), *own))]
    lines += shared
    if recommendation["provisional"] and not any("Provisional: " in line for line in lines):
        lines.append("Provisional: fewer than five seeds a cell.")
    return [clipped(line) for line in (*lines, *_beyond(recommendation))]


def _told(recommendation: Part) -> list[tuple[str, list[Part]]]:
    """Lines, each with the choices that it is about: none of a line that says why there is none."""
    lines, fastest, cheapest = chosen_lines(recommendation), recommendation["fastest"], recommendation["cheapest"]
    if not present(fastest):
        best = recommendation[metric_of(recommendation).choice_key]
        about = [[], [best]] if present(best) else [[]]
    else:
        about = [[fastest, cheapest]] if fastest["label"] == cheapest["label"] else [[fastest], [cheapest]]
    told = list(zip(lines, about, strict=True))
    if present(recommendation["knee"]):
        told.append((f"Knee between the two: {cell_words(recommendation['knee'])}.", [recommendation["knee"]]))
    return told


def caveats_of(choices: Sequence[Mapping[str, Any]]) -> list[str]:
    """The caveats of choices that are one cell, each once."""
    return list(dict.fromkeys(str(each) for choice in choices for each in choice.get("caveats") or ()))


def shared_caveats(caveats: Sequence[Sequence[str]]) -> list[str]:
    """Those that every one of several choices has, to be said once; none of a single choice. caveats: of each."""
    if len(caveats) < 2:
        return []
    return [each for each in caveats[0] if all(each in others for others in caveats)]


def evidence_words(choice: Mapping[str, Any]) -> str:
    """How many seeds of how many cells a choice rests on, `measured: 5 seeds`; nothing where that is not known."""
    evidence = choice.get("evidence") or {}
    seeds = evidence.get("seeds") or choice.get("n_seeds")
    if not seeds:
        return ""
    cells = evidence.get("cells") or []
    of = f" of {len(cells)} cells" if len(cells) > 1 else ""
    how = "trainings times timings" if evidence.get("kind") == "factorised" else "measured"
    return f"{how}: {seeds} seed{'' if seeds == 1 else 's'}{of}"


def _evidence_lines(choices: Sequence[Mapping[str, Any]]) -> list[str]:
    """The evidence of choices that are one cell, with the names of other cells that were trained for it."""
    if not choices or not (words := evidence_words(choices[0])):
        return []
    cells = [cell for cell in (choices[0].get("evidence") or {}).get("cells") or () if cell != choices[0]["label"]]
    more = f" and {len(cells) - NAMED_CELLS} more" if len(cells) > NAMED_CELLS else ""
    named = f" ({', '.join(cells[:NAMED_CELLS])}{more})" if cells else ""
    return [f"Evidence – {words}{named}."]


def _beyond(recommendation: Part) -> list[str]:
    """What more workers than were measured would bring, unless the user wants no more than those."""
    if "predictions" not in recommendation:
        return []
    study, most = recommendation["study"], recommendation["max_gpus"]
    if most is not None and most < 2 * max(study["num_gpus"]):  # predictions go by doublings
        return []
    line = beyond_line({"study": study, "recommendation": recommendation, "predictions": recommendation["predictions"]})
    return [line] if line else []


MARKS: Mapping[str, str] = {WEAK: "weak scaling", NEITHER: "neither strong nor weak scaling"}
"""How a speed-up is marked whose comparison is not strong scaling."""

Summary = Mapping[str, Any]
Row = Mapping[str, Any]


def book_table(summary: Summary) -> tuple[list[str], list[list[str]]]:
    """The table in the book's form, a row a cell: header and rows of text.

    num_gpus, batch, lr, other swept parameters, epoch s, test acc, speed-up, efficiency, where a target was reached the
    training seconds to it, and notes: comparisons that are not strong scaling, trials that did not finish, flags. On
    CPU the first column says so. A number that comes from flagged timings is marked †.
    """
    cpu = "cpu" in (summary["study"]["device"] or "")
    others, metric = other_parameters(summary), metric_of(summary["study"])
    header = ["num_gpus (CPU)" if cpu else "num_gpus", "batch", "lr", *(short_name(key) for key in others)]
    header += ["epoch s", metric.heading, "speed-up", "efficiency"]
    target = summary["recommendation"]["target"]
    header += [*([] if target is None else [f"s to {target:g}"]), "notes"]
    times = {row["label"]: [row["seconds"]] for row in summary["time_to_target"] if row["target"] == target}
    rows = summary["cells"]
    flagged = {row["label"] for row in rows if row["flags"]}
    return header, [
        [
            *_settings(row["params"], others),
            *_figures(row, metric, flagged),
            *(_marked(_seconds(seconds), row["label"] in flagged) for seconds in times.get(row["label"], [])),
            ", ".join(_row_notes(row)),
        ]
        for row in rows
    ]


def _settings(params: Mapping[str, Any], others: Sequence[str]) -> list[str]:
    """What was set: the usual three, and what else was swept."""
    usual = [str(params["num_gpus"]), str(params["batch_size"]), f"{params['learning_rate']:g}"]
    return [*usual, *(plain_text(params[key]) for key in others)]


def _figures(row: Row, metric: StudyMetric, flagged: set[str]) -> list[str]:
    """What was measured: seconds an epoch, the metric, speed-up and efficiency."""
    value, doubtful = row[metric.key], row["label"] in flagged
    gains = [NOTHING if row[key] is None else f"{row[key]:.2f}" for key in ("speedup", "efficiency")]
    return [
        _marked(_seconds(row["epoch_seconds"]["value"]), doubtful),
        metric.text(value["value"]) if present(value) else NOTHING,
        *(_marked(gain, doubtful or row["base"] in flagged) for gain in gains),
    ]


def _marked(text: str, touched: bool) -> str:
    return f"{text}{FLAGGED}" if touched and text != NOTHING else text


def best_rows(summary: Summary, count: int) -> list[int]:
    """Positions, in their order, of the cells that are best: those recommended, then soonest at the target, then by the
    metric's value.
    """
    metric, recommendation = metric_of(summary["study"]), summary["recommendation"]
    target = recommendation["target"]
    chosen = [recommendation[role] for role in ("fastest", "cheapest", "knee", metric.choice_key)]
    recommended = {choice["label"] for choice in chosen if present(choice)}
    seconds = {row["label"]: row["seconds"] for row in summary["time_to_target"] if row["target"] == target}
    turned = -1.0 if metric.mode == "max" else 1.0

    def rank(position: int) -> tuple[bool, float, float]:
        row = summary["cells"][position]
        reached, value = seconds.get(row["label"]), row[metric.key]
        return (
            row["label"] not in recommended,
            math.inf if reached is None else reached,
            turned * value["value"] if present(value) else math.inf,
        )

    return sorted(sorted(range(len(summary["cells"])), key=rank)[:count])


def _seconds(seconds: float | None) -> str:
    return NOTHING if seconds is None else three_digits(seconds)


def _row_notes(row: Mapping[str, Any]) -> list[str]:
    """What marks a cell: a comparison that is not strong scaling, that it is the product of trainings with another
    num_gpus and a timing run, trials that did not finish (a stopped one ends before the last epoch), flags.
    """
    trials = row["trials"]
    ended = [
        f"{trials[status]} {status.replace('_', ' ')}"
        for status in ("stopped", "diverged", "out_of_memory", "failed", "skipped")
        if trials[status]
    ]
    kind = [MARKS[row["scaling"]]] if row["scaling"] in MARKS else []
    inferred = ["inferred"] if row.get("kind") == "factorised" else []
    return [*(kind if row["speedup"] is not None else []), *inferred, *ended, *row["flags"]]
