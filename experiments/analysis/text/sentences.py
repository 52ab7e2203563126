"""A recommendation as sentences, and the cells as the book's table."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from scalestudy.experiments.analysis.measures.intervals import ENOUGH_SEEDS
from scalestudy.experiments.analysis.measures.parts import NOTHING, Figure, Row, Summary, present
from scalestudy.experiments.analysis.measures.scaling import NEITHER, WEAK
from scalestudy.experiments.analysis.measures.units import (
    FLAGGED,
    clipped,
    metric_of,
    other_parameters,
    period_of,
    plural,
    rates_of,
    three_digits,
)
from scalestudy.experiments.analysis.measures.usable import STATUSES
from scalestudy.experiments.analysis.text.answer import NAMED_CELLS, beyond_line, chosen_lines
from scalestudy.experiments.plan.plan import short_name, value_text

INDENT = "  "
MARKS: Mapping[str, str] = {WEAK: "weak scaling", NEITHER: "neither strong nor weak scaling"}
"""How a speed-up is marked if its comparison is not strong scaling."""


def recommendation_lines(recommendation: Figure) -> list[str]:
    """Return a recommendation (`recommend`) as text: recommended, fastest and cheapest, each with evidence and caveats.

    Caveats that hold for every choice stand at the end, then those of the study, if there are `caveats`, and what more
    workers would bring, if there are `predictions`.
    With these there must be `study` (num_gpus, device), as `study.advice` adds it.
    """
    chosen, fastest, cheapest = (recommendation[role] for role in ("recommended", "fastest", "cheapest"))
    lines_told = chosen_lines(recommendation)
    if present(fastest):
        others = {each["label"]: each for each in (fastest, cheapest) if each["label"] != chosen["label"]}
        about = [chosen, *others.values()]
    else:
        best = chosen if present(chosen) else recommendation[metric_of(recommendation).choice_key]
        about = [None, *([best] if present(best) else [])]
    shared = shared_caveats([caveats_of([choice]) for choice in about if choice])
    lines: list[str] = []
    for line, choice in zip(lines_told, about, strict=True):
        own = [each for each in caveats_of([choice]) if each not in shared] if choice else []
        lines += [str(line), *(f"{INDENT}{words}" for words in (*_evidence_lines([choice] if choice else []), *own))]
    lines += [*shared, *caveats_of([recommendation])]
    told = any(choice["n_seeds"] < ENOUGH_SEEDS and choice.get("caveats") for choice in about if choice)
    if recommendation["provisional"] and not told:
        lines.append("Provisional: fewer than five seeds a cell.")
    if "predictions" in recommendation:
        study, most = recommendation["study"], recommendation["max_gpus"]
        wanted = most is None or most >= 2 * max(study["num_gpus"])  # predictions go by doublings
        beyond = beyond_line(
            {"study": study, "recommendation": recommendation, "predictions": recommendation["predictions"]}
        )
        lines += [str(beyond)] if wanted and beyond is not None else []
    return [clipped(line) for line in lines]


def _evidence_lines(choices: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the evidence of choices that are one cell, with the names of other cells that were trained for it."""
    if not choices or not (words := evidence_words(choices[0])):
        return []
    cells = [cell for cell in (choices[0].get("evidence") or {}).get("cells") or () if cell != choices[0]["label"]]
    more = f" and {len(cells) - NAMED_CELLS} more" if len(cells) > NAMED_CELLS else ""
    named = f" ({', '.join(cells[:NAMED_CELLS])}{more})" if cells else ""
    return [f"Evidence – {words}{named}."]


def evidence_words(choice: Mapping[str, Any]) -> str:
    """Return the seeds and cells that a choice rests on, `trained: 5 seeds`; empty if they are unknown."""
    evidence = choice.get("evidence") or {}
    seeds = evidence.get("seeds") or choice.get("n_seeds")
    if not seeds:
        return ""
    cells = evidence.get("cells") or []
    of = f" of {len(cells)} cells" if len(cells) > 1 else ""
    how = "trainings times timings" if evidence.get("kind") == "lent" else "trained"
    return f"{how}: {plural(seeds, 'seed')}{of}"


def caveats_of(choices: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the caveats of choices that are one cell, each once."""
    return list(dict.fromkeys(str(each["words"]) for choice in choices for each in choice.get("caveats") or ()))


def shared_caveats(caveats: Sequence[Sequence[str]]) -> list[str]:
    """Return the caveats that all of several choices have, to be said once. A single choice shares none."""
    if len(caveats) < 2:
        return []
    return [each for each in caveats[0] if all(each in others for others in caveats)]


def book_table(summary: Summary) -> tuple[list[str], list[list[str]]]:
    """Return the table in the book's form: header, and a row of text for each cell.

    Its columns are workers, batch, lr, other swept parameters, epoch s or evaluation s, tokens/s (samples/s if no task
    counts tokens), test acc, speed-up, efficiency, training seconds to the target if one was reached, and notes. On CPU
    the first column says so. A number that comes from flagged timings is marked †.
    """
    cpu = "cpu" in (summary["study"]["device"] or "")
    others, metric = other_parameters(summary), metric_of(summary["study"])
    target = summary["recommendation"]["target"]
    header = ["workers (CPU)" if cpu else "workers", "batch", "lr", *(short_name(key) for key in others)]
    *_, (rate, rate_heading) = rates_of(summary).items()
    header += [f"{period_of(summary)} s", rate_heading, metric.heading, "speed-up", "efficiency"]
    header += [*([] if target is None else [metric.seconds_heading(target)]), "notes"]
    flagged = {row["label"] for row in summary["cells"] if row["flags"]}

    def marked(text: str, doubtful: bool) -> str:
        return f"{text}{FLAGGED}" if doubtful and text != NOTHING else text

    def seconds_of(seconds: float | None) -> str:
        return NOTHING if seconds is None else three_digits(seconds)

    times = {
        row["label"]: "met at the last evaluation"
        if row["seconds"] is None and row.get("met_last")
        else seconds_of(row["seconds"])
        for row in summary["time_to_target"]
        if row["target"] == target
    }

    rows = []
    for row in summary["cells"]:
        params, value, doubtful = row["params"], row[metric.key], row["label"] in flagged
        gains = [NOTHING if row[key] is None else f"{row[key]:.2f}" for key in ("speedup", "efficiency")]
        rows.append(
            [
                str(params["num_gpus"]),
                str(params["batch_size"]),
                f"{params['learning_rate']:g}",
                *(value_text(params[key]) for key in others),
                marked(seconds_of(row["epoch_seconds"]["value"]), doubtful),
                marked(f"{row[rate]['value']:,.0f}" if present(row.get(rate)) else NOTHING, doubtful),
                metric.text(value["value"]) if present(value) else NOTHING,
                *(marked(gain, doubtful or row["base"] in flagged) for gain in gains),
                *([marked(times[row["label"]], doubtful)] if row["label"] in times else []),
                ", ".join(_row_notes(row)),
            ]
        )
    return header, rows


def _row_notes(row: Row) -> list[str]:
    """Return what marks a cell: no strong scaling, lent trials, trials that did not finish, several nodes, flags.

    A trial that was cut counts as one that did not finish, since it ends before the last epoch.
    """
    ended = [
        f"{count} {'stopped at the target' if status == 'at_target' else status.replace('_', ' ')}"
        for status in STATUSES
        if status != "finished" and (count := row["trials"].get(status))
    ]
    kind = [MARKS[row["scaling"]]] if row["scaling"] in MARKS and row["speedup"] is not None else []
    lent = ["trained with other workers"] if row["kind"] == "lent" else []
    nodes = [f"{row['nodes']} nodes"] if row.get("nodes", 1) > 1 else []
    return [*kind, *lent, *ended, *nodes, *row["flags"]]


def best_rows(summary: Summary, count: int) -> list[int]:
    """Return positions of the best cells, in the summary's order: all that an answer names, then the first ranked."""
    metric, recommendation = metric_of(summary["study"]), summary["recommendation"]
    chosen = [recommendation[role] for role in ("recommended", "fastest", "cheapest", metric.choice_key)]
    named = {choice["label"] for choice in chosen if present(choice)}
    best = sorted(ranked_cells(summary), key=lambda position: summary["cells"][position]["label"] not in named)
    return sorted(best[:count])


def ranked_cells(summary: Summary) -> list[int]:
    """Return positions of all cells, the best first: the recommended, then the soonest, then by the metric."""
    metric, recommendation = metric_of(summary["study"]), summary["recommendation"]
    target, recommended = recommendation["target"], recommendation["recommended"]
    first = recommended["label"] if present(recommended) else None
    seconds = {row["label"]: row["seconds"] for row in summary["time_to_target"] if row["target"] == target}

    def rank(position: int) -> tuple[bool, float, float]:
        row = summary["cells"][position]
        reached, value = seconds.get(row["label"]), row[metric.key]
        return (
            row["label"] != first,
            math.inf if reached is None else reached,
            metric.order(value["value"]) if present(value) else math.inf,
        )

    return sorted(range(len(summary["cells"])), key=rank)
