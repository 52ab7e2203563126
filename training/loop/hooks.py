"""The six points at which an optional feature may read a training, or change it.

Hooks run on every rank. The three points inside a step lie inside the timed period. Their cost counts in the phase that
follows: `backward_ends` in gradient_sync, `gradients_ready` in optimizer, `step_ends` in none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scalestudy.training.loop.trial import Trial
    from scalestudy.training.records import EpochRecord


class Hook:
    """An optional feature: override the points that it needs. A point's text says when the loop calls it."""

    def train_starts(self, trial: Trial) -> None:
        """Handle the start: data, model and optimizer are ready, no step is made.

        May restore the trial from a checkpoint.
        """

    def backward_ends(self, trial: Trial, step: int, micro_batch: int) -> None:
        """Handle a micro-batch's gradients (from 0); only DistributedDataParallel has summed them already."""

    def gradients_ready(self, trial: Trial, step: int) -> None:
        """Handle each `.grad` after the sum over the workers, before clipping and update (step from 0).

        May not be finite.
        """

    def step_ends(self, trial: Trial, step: int) -> None:
        """Handle the end of a step.

        Parameters are updated, unless this step or an earlier one is not finite: see `trial.look`.
        """

    def epoch_measured(self, trial: Trial) -> Mapping[str, float | None]:
        """Return entries for the record of a period after its steps, equal on all ranks; may use collectives."""
        return {}

    def epoch_ends(self, trial: Trial, record: EpochRecord) -> None:
        """Handle an evaluated period; the record is equal on all ranks, apart from its time stamp."""


def call(hooks: Sequence[Hook], point: str, *arguments: object) -> None:
    """Call each hook at this point."""
    for hook in hooks:
        getattr(hook, point)(*arguments)
