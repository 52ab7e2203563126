"""Trainings by Transformers' Trainer in a study: `StepCallback` calls `scalestudy.step` for them."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from scalestudy.training.steps import step


class StepCallback(TrainerCallback):
    """Counts each optimizer step with the examples of its micro-batches: `Trainer(callbacks=[StepCallback()])`.

    Trainer tells its callbacks no batch, only the size that one has in this process, and this counts as many examples
    for each micro-batch. With several workers that is exact: Trainer fills an epoch's last batches up with examples of
    its beginning. One worker alone keeps a smaller last batch, which is counted as a whole one, unless
    `dataloader_drop_last` leaves it out. Call `scalestudy.step` yourself where Trainer does not make the batches
    (Ray Data) or divides them (`split_batches`).
    """

    def __init__(self) -> None:
        self._micro_batches = 0  # since the last optimizer step

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Begin a step."""
        self._micro_batches = 0

    def on_substep_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Count a micro-batch that is not the last one of its step."""
        self._micro_batches += 1

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Count the step. The last one of an epoch may have fewer micro-batches than the others."""
        size = state.train_batch_size or args.train_batch_size  # the first one is what auto_find_batch_size found
        step((self._micro_batches + 1) * size)
