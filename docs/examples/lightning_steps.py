"""A LightningModule as it is: `training_step` gives the loss, and what `validation_step` logs are the metrics.

Name them in a spec as `model: my_module:Lit`, `task: lightning_steps:Steps`, `metric: val_acc` and
`optimizer: {name: "lightning_steps:optimizer"}`, with this file in the folder where you call `scalestudy`; see
docs/coming-from.md. Without a Trainer: no callbacks, no other hooks than the three that are called here.
"""

import re
from typing import Any

import torch
from torch import nn

from scalestudy.training.trees import count

ROWS = "rows_evaluated"


class Steps:
    """Losses and logged values are means over a batch's examples, which are made sums by their number."""

    def forward(self, model: nn.Module, batch: Any) -> dict[str, Any]:
        """The loss; in evaluations also what validation_step logs."""
        logged: dict[str, Any] = {}
        model.log = lambda name, value, **how: logged.update({name: value})
        model.log_dict = lambda values, **how: logged.update(values)
        try:
            loss = model.training_step(batch, 0)
            if not model.training:
                logged.clear()
                model.validation_step(batch, 0)
        finally:
            del model.log, model.log_dict
        return {"loss": loss["loss"] if isinstance(loss, dict) else loss, "logged": logged}

    def loss(self, outputs: dict[str, Any], batch: Any) -> tuple[torch.Tensor, int]:
        return outputs["loss"] * count(batch), count(batch)

    def evaluate(self, outputs: dict[str, Any], batch: Any) -> dict[str, Any]:
        sums = {re.sub(r"\W", "_", name): value * count(batch) for name, value in outputs["logged"].items()}
        return {**sums, ROWS: count(batch)}

    def finish(self, sums: dict[str, Any]) -> dict[str, float]:
        return {name: float(total / sums[ROWS]) for name, total in sums.items() if name != ROWS}


def optimizer(model: nn.Module, learning_rate: float, rate: str = "lr") -> torch.optim.Optimizer:
    """What configure_optimizers returns, at the study's rate, which the module reads as self.lr or self.hparams.lr."""
    setattr(model.hparams if rate in getattr(model, "hparams", ()) else model, rate, learning_rate)
    made = model.configure_optimizers()
    if not isinstance(made, torch.optim.Optimizer):
        raise ValueError("configure_optimizers returns more than an optimizer: name its schedule as train.schedule")
    if learning_rate not in [group["lr"] for group in made.param_groups]:
        raise ValueError(f"configure_optimizers does not read self.{rate}: name what it reads in train.optimizer.args")
    return made
