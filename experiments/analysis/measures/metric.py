"""The study's target metric: its names in records, tables and text, and which way is better."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from scalestudy.experiments.spec.reaching import arrival
from scalestudy.experiments.spec.study_spec import metric_name
from scalestudy.training.config import JUDGED, Workload

MANY = 1_000_000.0
"""From this number on, an exponent is written."""


@dataclass(frozen=True, kw_only=True)
class StudyMetric:
    """What a study compares its trials by. It is measured on the test set at each evaluation."""

    name: str
    """`accuracy`; for an import path, the part after the colon."""
    mode: Literal["max", "min"]
    """Whether more or less of it is better."""
    share: bool
    """Whether it always lies between 0 and 1, as accuracy does. Figures then show that range."""
    named_by_others: bool = False
    """Whether its name says by itself what it was measured on, such as `val_acc` of runs that others made."""

    @classmethod
    def of(cls, workload: Workload) -> Self:
        """Return the metric that a spec's workload names."""
        return cls(
            name=metric_name(workload.metric),
            mode="min" if workload.metric_mode == "min" else "max",
            share=workload.metric == "accuracy",
            named_by_others=workload.metric.startswith(JUDGED),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, as in `summary.json`. `StudyMetric(**plain)` gives an equal metric."""
        return {key: value for key, value in vars(self).items() if value or key != "named_by_others"}

    @property
    def key(self) -> str:
        """Its key in an epoch's record and its MLflow metric: `test_accuracy`."""
        return f"test_{self.name}"

    @property
    def best_key(self) -> str:
        """The key of a trial's best epoch in the summary and in MLflow: `best_test_accuracy`."""
        return f"best_{self.key}"

    @property
    def choice_key(self) -> str:
        """The recommendation's key for the cell of the best value: `best_accuracy`."""
        return f"best_{self.name}"

    def time_key(self, target: float) -> str:
        """Return the MLflow metric for the training seconds to a target: `time_to_accuracy_0.85`."""
        return f"time_to_{self.name}_{target:g}"

    @property
    def title(self) -> str:
        """Its name in sentences and on axes: `test accuracy`, `test mse`; `val_acc` of runs that others made."""
        return self.name if self.named_by_others else f"test {self.name}"

    @property
    def heading(self) -> str:
        """Its name at the head of a column: `test acc`, `test mse`."""
        return "test acc" if self.share else self.title

    def seconds_heading(self, target: float) -> str:
        """Return the head of a column of seconds to a target: `s to accuracy 0.85`."""
        return f"s to {self.name} {target:g}"

    @property
    def superlative(self) -> str:
        """How the cell of the best value is marked: `most accurate`, `best test mse`."""
        return "most accurate" if self.share else f"best {self.title}"

    def order(self, value: float) -> float:
        """Return a sort key that puts the best value first."""
        return -value if self.mode == "max" else value

    def better(self, value: float, other: float) -> bool:
        """Whether a value beats another. An equal one does not."""
        return self.order(value) < self.order(other)

    def arrival(self, values: Sequence[float], target: float) -> int | None:
        """Return the position of the first of two consecutive values that meet a target, or None (`arrival`)."""
        return arrival(values, target, self.mode)

    def best(self, values: Iterable[float]) -> float | None:
        """Return the best of the values, or None if there are none."""
        return min(values, key=self.order, default=None)

    def hardest_first(self, targets: Iterable[float]) -> list[float]:
        """Return the targets in reverse order of being reached."""
        return sorted(targets, key=self.order)

    def easiest_first(self, targets: Iterable[float]) -> list[float]:
        """Return the targets in the order in which they are reached."""
        return self.hardest_first(targets)[::-1]

    def text(self, value: float, digits: int = 3) -> str:
        """Return a value as text: a share with `digits` decimals, others with at least as many significant digits."""
        if self.share:
            return f"{value:.{digits}f}"
        if 10.0**digits - 0.5 <= abs(value) < MANY:
            return f"{value:,.0f}"
        return f"{value:.{digits}g}"

    def named(self, number: str) -> str:
        """Return a number with the metric's name; accuracy, which readers expect, is not named."""
        return number if self.share else f"{number} {self.title}"


ACCURACY = StudyMetric(name="accuracy", mode="max", share=True)
"""The metric of a study whose spec names no other."""
