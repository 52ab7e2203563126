"""Stage 8, analysis: a recommendation in words – each choice with its evidence and its caveats."""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.analysis.parts import Part, present
from experiments.analysis.words import beyond_line, cell_words, chosen_lines, clipped, metric_of

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
