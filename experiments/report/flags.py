"""The report's words on timings that carry a flag."""

from collections.abc import Mapping, Sequence
from typing import Any

from scalestudy.experiments.analysis.measures.units import FLAGGED


def flag_mark(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the mark that follows what flagged timings touch."""
    return f" {FLAGGED}" if any(row["flags"] for row in rows) else ""


def flag_words(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a sentence about what the mark means here. Empty if no row is flagged."""
    flags = sorted({flag.replace("_", " ") for row in rows for flag in row["flags"]})
    return f"{FLAGGED} Timed under doubtful conditions ({', '.join(flags)})." if flags else ""


def used_all_the_same(part: Mapping[str, Any]) -> str:
    """Return a sentence saying that a law, or what follows from it, rests on flagged timings. Empty if it does not."""
    return f"Flagged timings ({FLAGGED}) were used anyway." if part.get("flagged") else ""
