"""Of a study of runs that others made: what was taken as what, what is unfair in them, and what is left out."""

from typing import Any

from scalestudy.experiments.analysis.measures.parts import Summary
from scalestudy.experiments.analysis.measures.units import plural
from scalestudy.experiments.report.charts import sentences

MOST_ROWS = 100
"""Runs left out that the page shows; judged.json has all of them."""
PROGRESS = {
    "steps": "",
    "epochs": "Their epochs are known, and not their updates: no figure here is in updates or examples.",
    "seconds": "Nothing but their times is known: no law of them is told.",
}


def runs_tables(summary: Summary) -> dict[str, Any] | None:
    """Return the lead, and rows of text: columns, unfair, left_out. None: the study made its runs."""
    judged = summary.get("judged")
    if judged is None:
        return None
    left_out = judged["left_out"]
    more = len(left_out) - MOST_ROWS
    apart = f"Compared apart by {', '.join(judged['apart'])}." if judged["apart"] else ""
    aside = f"They differ in {', '.join(judged['aside'])} too, which plays no part." if judged["aside"] else ""
    none = "Phases of a step, noise of gradients and equal replicas can't be seen in them."
    return {
        "lead": sentences(
            f"{plural(judged['runs'], 'run')} of {', '.join(judged['sources'])}.",
            PROGRESS.get(judged["progress"], ""),
            apart,
            aside,
            none,
        ),
        "columns": [[row["role"], row["name"], row["note"]] for row in judged["columns"]],
        "unfair": [[each["words"], each["certainty"]] for each in judged["unfair"]],
        "left_out": [
            *([each["where"], each["why"]] for each in left_out[:MOST_ROWS]),
            *([[f"and {more} more", "in judged.json"]] if more > 0 else []),
        ],
    }
