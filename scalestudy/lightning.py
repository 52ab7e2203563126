"""Lightning's trainings in a study: `StepCallback` calls `scalestudy.step` for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ModuleNotFoundError:  # which of its two packages: in the order of ray.train.lightning
    from pytorch_lightning import Callback, LightningModule, Trainer

from scalestudy.training import trees
from scalestudy.training.steps import step


class StepCallback(Callback):
    """Counts each optimizer step with the examples of all its micro-batches: `Trainer(callbacks=[StepCallback()])`.

    A batch in which a module with manual optimization makes several steps is one step.

    Args:
        count: the examples of a batch; the default takes the rows of its first tensor
    """

    def __init__(self, count: Callable[[Any], float] = trees.count) -> None:
        super().__init__()
        self._count = count
        self._samples = 0.0  # since the last optimizer step
        self._global_step = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin where a resumed training is."""
        self._samples, self._global_step = 0.0, trainer.global_step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count the micro-batch, and the step if it was the last one of it."""
        self._samples += self._count(batch)
        if trainer.global_step != self._global_step:
            step(self._samples)
            self._samples, self._global_step = 0.0, trainer.global_step
