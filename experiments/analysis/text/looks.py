"""What an adaptive search did, and why, in words."""

import math
from collections.abc import Mapping
from typing import Any

from scalestudy.experiments.analysis.measures.endings import WHY_OVER
from scalestudy.experiments.analysis.measures.parts import Figure
from scalestudy.experiments.analysis.measures.units import plural, seconds_text, share_text

UNMEASURED: Mapping[str, str] = {
    "size": "a step of a size that lies apart from the others",
    "first": "no training had reached the target yet",
}
"""Why a look was made before anything could be gained by the posterior, by its kind."""
NAMES: Mapping[str, str] = {"steps": "steps to the target", "seconds": "seconds a step"}
WHOLE = "it went on to its end, as a test of the limits at which trainings end"


def look_words(look: Mapping[str, Any], minimises: str = "time") -> str:
    """Return why a look was made, from `Look.to_dict`'s data: `may lower the best time by 3.1%`.

    minimises: what the search wants least of, time or cost.
    """
    if look["kind"] == "confirmation":
        return "a fresh seed, to confirm the choice"
    gain, repeats = look.get("gain"), look.get("repeats") or 1
    if gain is None:
        return UNMEASURED[look["kind"]]
    lower = f"{-100 * math.expm1(-gain):.2g}%"  # the gain is of a logarithm
    words = f"may lower the best {minimises} by {lower}" if gain > 0 else "tells whether the best cell is near the best"
    together = f", with {repeats - 1} more of its kind" if repeats > 1 else ""
    return f"{words}{together}{f'; {WHOLE}' if look['kind'] == 'whole' else ''}"


def search_words(part: Figure) -> str:
    """Return what an adaptive search looked at, why it ended, and whether fresh seeds confirm its choice.

    part: the `adaptive` of `summary.json`.
    """
    looks, untried = part["looks"], part["untried"]
    made = f"{plural(looks['trainings'], 'training')} and {plural(looks['timings'], 'timing run')}"
    left = (
        f"{untried['steps']} of {untried['of_steps']} pairs of batch size and rate were not trained, "
        f"{untried['sizes']} of {untried['of_sizes']} of workers and batch size not timed"
    )
    if part["chosen"] is None:
        return f"{made}: {part['why']}; {left}."
    likely = f"{part['chosen']} is {share_text(part['probability'])} likely within {part['within']:.0%} of the best of "
    of = plural(untried["of"], "cell")
    if part["possible"] < untried["of"]:
        of = f"the {part['possible']} that can run of {of}"
    ended = f", ended since {WHY_OVER[part['ended']]}" if part["ended"] else f"; {part['why']}"
    unconfirmed = part["why"] if part["ended"] else None
    leans = [NAMES[name] for name, basis in part["leans_on"].items() if basis == "law"]
    law = f" Its {' and '.join(leans)} are by the law." if leans else ""
    return " ".join(
        [
            f"{made}{ended}: {likely}{of}; {left}.{law}",
            *map(confirmed_words, part["confirmation"]),
            *([f"{unconfirmed[:1].upper()}{unconfirmed[1:]}."] if unconfirmed else []),
        ]
    )


def confirmed_words(row: Mapping[str, Any]) -> str:
    """Return whether fresh seeds confirm what was predicted of a cell."""
    low, value, high = (seconds_text(row[name]) for name in ("low", "seconds", "high"))
    predicted = f"{value} predicted ({low} to {high}, 98%)"
    if row["fresh_seconds"] is None:
        return f"Not confirmed: {row['reached']} of {plural(row['seeds'], 'fresh seed')} of {row['label']} arrived."
    fresh = f"{seconds_text(row['fresh_seconds'])} with {plural(row['seeds'], 'fresh seed')} of {row['label']}"
    return f"{'Confirmed' if row['confirmed'] else 'Not confirmed'}: {fresh}, {predicted}."
