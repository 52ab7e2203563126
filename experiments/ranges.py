"""Stage 1, study spec: a range of numbers that a search draws from, `{uniform: [a, b]}` or `{log_uniform: [a, b]}`."""

import math
from typing import Any, Literal, get_args

from pydantic import model_serializer

from experiments.spec_models import Section, Train

KINDS = ("uniform", "log_uniform")
DIGITS = 4
"""Significant digits of a number that is drawn: it can be read, typed again, and is the same on every machine, where
logarithms may differ in their last bit; a trial's id hashes it."""


class Range(Section):
    """Every number from low to high, both included; whole numbers where the bounds are.

    uniform: each is as likely as another; log_uniform: each magnitude is. Whole numbers are rounded to the nearest.
    """

    kind: Literal["uniform", "log_uniform"]
    low: int | float
    high: int | float

    @model_serializer
    def _plain(self) -> dict[str, list[Any]]:
        return {self.kind: [self.low, self.high]}

    @property
    def whole(self) -> bool:
        """Whether it is of whole numbers."""
        return isinstance(self.low, int)

    @property
    def count(self) -> float:
        """How many numbers it holds; infinity where they are not whole."""
        return self.high - self.low + 1 if self.whole else math.inf

    def at(self, share: float) -> int | float:
        """The number below which this share of the draws lies, 0 to 1."""
        half = 0.5 if self.whole else 0.0  # the first and the last whole number are as wide as the others
        low, high = self.low - half, self.high + half
        logarithmic = self.kind == "log_uniform"
        return self.tidy(low * (high / low) ** share if logarithmic else low + share * (high - low))

    def tidy(self, value: float) -> int | float:
        """A number as trials have it: whole, or with a few significant digits; never beyond the bounds."""
        if self.whole:
            return min(max(math.floor(value + 0.5), int(self.low)), int(self.high))
        width = (self.high - self.low) / max(abs(self.low), abs(self.high))
        digits = DIGITS + max(0, math.floor(-math.log10(width)))
        return min(max(float(f"{value:.{digits}g}"), self.low), self.high)

    @property
    def text(self) -> str:
        """In words: `0.01 to 1, log_uniform`."""
        return f"{self.low:g} to {self.high:g}, {self.kind}"


def number_type(key: str) -> type | None:
    """int or float where a parameter is such a number, so that it may have a range; None for any other and the seed."""
    known: dict[str, Any] = {"num_gpus": int, "batch_size": int, "learning_rate": float}
    if not key.startswith("train."):
        return known.get(key)
    annotation: Any = Train
    for part in key.split(".")[1:]:
        annotation = annotation.model_fields[part].annotation
    options = get_args(annotation) or (annotation,)  # of `Count | None`, each may be Annotated
    types = {getattr(option, "__origin__", option) for option in options} - {type(None)}
    return next((number for number in (int, float) if types == {number}), None)
