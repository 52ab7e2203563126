"""Stage 8, analysis: which other options a choice can't be told apart from (docs/formulas.md §6)."""

from collections.abc import Sequence
from dataclasses import dataclass

from experiments.analysis.intervals import Interval, apart

SHOWN_TIES = 20
"""A choice lists no more of them; it says how many there are."""
LEAST_SEEDS = 2
"""One seed has no interval: whether it differs is not known, which is not the same as a tie."""


@dataclass(frozen=True, kw_only=True)
class Contender:
    """An option by what is compared: figures, the less the better, and an interval over seeds of each."""

    label: str
    figures: tuple[float, ...]
    intervals: tuple[Interval | None, ...]
    n_seeds: int


def tied(chosen: Contender, others: Sequence[Contender]) -> list[str]:
    """Labels of the others whose intervals overlap the chosen one's in every figure, the best first figure first."""
    alike = [other for other in others if other.label != chosen.label and not _told_apart(chosen, other)]
    return [other.label for other in sorted(alike, key=lambda other: other.figures)]


def _told_apart(one: Contender, other: Contender) -> bool:
    if min(one.n_seeds, other.n_seeds) < LEAST_SEEDS:
        return True
    pairs = list(zip(one.intervals, other.intervals, strict=True))
    return any(first is None or second is None or apart(first, second) for first, second in pairs)


def tie_sentence(labels: Sequence[str]) -> str | None:
    """The tie in words, for people; None where there is none. labels: of `tied`, all of them."""
    if not labels:
        return None
    others = len(labels) - 1
    more = "" if not others else " and 1 other" if others == 1 else f" and {others} others"
    return f"Not told apart from {labels[0]}{more}: their intervals overlap."
