"""Stage 5, training loop: the six points at which an optional feature may look at, or add to, a training.

Hooks run on every rank, outside the timed phases but, for `gradients_ready` and `step_ends`, inside the timed epoch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from training.loop import TrainResult
    from training.records import EpochRecord
    from training.trial import Trial


class Hook:
    """Override the points that are needed; each does nothing by default."""

    def train_starts(self, trial: Trial) -> None:
        """Data, model and optimizer are there; no step has been made."""

    def epoch_starts(self, trial: Trial, epoch: int) -> None:
        """Before the first step of the epoch (from 1)."""

    def gradients_ready(self, trial: Trial, step: int) -> None:
        """Every `.grad` is the finite sum over the workers; not clipped, no update made yet (step from 0)."""

    def step_ends(self, trial: Trial, step: int) -> None:
        """The parameters are updated."""

    def epoch_ends(self, trial: Trial, record: EpochRecord) -> None:
        """The epoch is evaluated; the record is the same on every rank but for its time stamp."""

    def train_ends(self, trial: Trial, result: TrainResult) -> None:
        """Nothing follows, whether finished or diverged; not called after an exception."""
