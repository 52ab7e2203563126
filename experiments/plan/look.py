"""Why an adaptive search asked for a trial, as the trial's plan, the journal and its line of `trials.jsonl` keep it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

Kind = Literal["size", "first", "training", "whole", "confirmation"]
"""What a look is for.

size: seconds of a step. first: a training before any has reached the target. training: one that tells much of the
answer for its cost. whole: the same, to its last evaluation, as a test of the rule that ends others earlier.
confirmation: of the choice, with a fresh seed.
"""
Ending = Literal["sure", "budget", "uses"]
"""Why looking ended.

sure: the choice is likely enough within a share of the best. budget: it had no room for another training. uses: another
look costs more than it saves.
"""


@dataclass(frozen=True, kw_only=True)
class Look:
    """A trial that an adaptive search asked for, and why."""

    number: int  # from 1, in the order in which they were asked for
    kind: Kind
    evaluations: int | None = None
    """A training ends after so many: its prediction ends there, with 99 %. None: at its last one."""
    gain: float | None = None
    """By how much it was to lower the logarithm of the least time to be expected, or of the least cost."""
    repeats: int | None = None
    """Looks of its kind that bring this gain together."""
    row: int | None = None
    """So many looks of its kind are made in a row before the next decision; of the last of them, 1 or None."""
    worker_seconds: float | None = None
    """What one of them was to take."""
    best: str | None = None
    """The label of the cell that was believed best; of a confirmation, the choice."""
    probability: float | None = None
    """That this cell is within `next_look.WITHIN` of the best of all that can run; None: nothing had been reached."""
    ended: Ending | None = None
    """Of a confirmation: why looking ended."""
    budget: float | None = None
    """Of a confirmation: the budget at that time, in its unit."""
    uses: float | None = None
    """Of a confirmation: `budget.uses` at that time."""

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Self:
        """Return the look behind `to_dict`'s data; keys of a newer version are left out."""
        return cls(**{key: value for key, value in plain.items() if key in cls.__dataclass_fields__})

    def to_dict(self) -> dict[str, Any]:
        """Return what is known, as plain data."""
        return {key: value for key, value in asdict(self).items() if value is not None}
