"""What Transformers' Trainer does by default: the model's own loss, weight decay in groups, a linear schedule.

Name them in a spec as `task: trainer_parts:Labelled`, `optimizer: {name: "trainer_parts:decayed"}` and
`schedule: {name: "trainer_parts:linear", args: {warm_up: 500}}`, with this file in the folder where you call
`scalestudy`; see docs/coming-from.md.
"""

from typing import Any

import torch
from torch import nn


class Labelled:
    """A model that is called with a batch's keys, and returns an object with `loss` and `logits`.

    The loss is a mean over examples, with one label each. Where it is one over labelled tokens, weigh by their number.
    """

    def forward(self, model: nn.Module, batch: dict[str, torch.Tensor]) -> Any:
        return model(**batch)

    def loss(self, outputs: Any, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, int]:
        return outputs.loss * len(batch["labels"]), len(batch["labels"])

    def evaluate(self, outputs: Any, batch: dict[str, torch.Tensor]) -> dict[str, Any]:
        return {"right": (outputs.logits.argmax(dim=-1) == batch["labels"]).sum(), "all": len(batch["labels"])}

    def finish(self, sums: dict[str, Any]) -> dict[str, float]:
        return {"accuracy": float(sums["right"] / sums["all"])}


def decayed(model: nn.Module, learning_rate: float, weight_decay: float = 0.0) -> torch.optim.Optimizer:
    """AdamW that decays matrices, and neither biases nor norms."""
    trained = [each for each in model.parameters() if each.requires_grad]
    groups = [
        {"params": [each for each in trained if each.dim() > 1], "weight_decay": weight_decay},
        {"params": [each for each in trained if each.dim() <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=learning_rate)


def linear(step: int, steps: int, warm_up: int = 0) -> float:
    """Rise from 0, which the first step has, to 1 at the step warm_up; then fall to 0 at the end."""
    return step / warm_up if step < warm_up else (steps - step) / (steps - warm_up)
