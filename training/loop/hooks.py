"""The six points at which an optional feature may look at, or add to, a training.

Hooks run on every rank. The three points inside a step lie inside the timed epoch; what they cost counts as part of the
phase that follows: `backward_ends` of gradient_sync, `gradients_ready` of optimizer, `step_ends` of none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scalestudy.training.loop.trial import Trial
    from scalestudy.training.records import EpochRecord


class Hook:
    """Override the points that are needed; each does nothing by default."""

    def train_starts(self, trial: Trial) -> None:
        """Data, model and optimizer are there; no step has been made. May put the trial where it is to go on."""

    def backward_ends(self, trial: Trial, step: int, micro_batch: int) -> None:
        """The gradients of a micro-batch (from 0) are there; not yet summed over the workers, unless backward did."""

    def gradients_ready(self, trial: Trial, step: int) -> None:
        """Every `.grad` is the finite sum over the workers; not clipped, no update made yet (step from 0)."""

    def step_ends(self, trial: Trial, step: int) -> None:
        """The parameters are updated."""

    def epoch_measured(self, trial: Trial) -> Mapping[str, float | None]:
        """All steps of the epoch are made: what goes into its record, the same on every rank; may use collectives."""
        return {}

    def epoch_ends(self, trial: Trial, record: EpochRecord) -> None:
        """The epoch is evaluated; the record is the same on every rank but for its time stamp."""
