"""A task of your own: a model that computes its losses itself, as detectors do, from pictures of bytes.

Name it in a spec as `model: detector:build`, `data: detector:load`, `task: detector:Detection` and `metric: overlap`,
with this file in the folder where you call `scalestudy`; see docs/tasks.md.

Shapes: N pictures in a batch, of 16 × 16 pixels; a box is left, top, right, bottom, in shares of the side.
"""

import torch
import torch.nn.functional as F
from torch import nn

from scalestudy.training.data import Splits

SIDE = 16
KINDS = 2


def load(root: str, train_pictures: int = 2000, test_pictures: int = 400) -> Splits:
    """Pictures with one rectangle each, dark or bright: (pictures (n, 1, 16, 16) of bytes, {"box": …, "kind": …})."""
    generator = torch.Generator().manual_seed(0)

    def draw(count: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        first = torch.randint(0, SIDE // 2, (count, 2), generator=generator)
        last = first + torch.randint(4, SIDE // 2, (count, 2), generator=generator)
        kind = torch.randint(KINDS, (count,), generator=generator)
        line = torch.arange(SIDE)
        across = (line >= first[:, :1]) & (line < last[:, :1])
        down = (line >= first[:, 1:]) & (line < last[:, 1:])
        inside = down[:, :, None] & across[:, None, :]
        pictures = (
            torch.randint(0, 40, (count, SIDE, SIDE), generator=generator) + inside * (80 + 100 * kind)[:, None, None]
        )
        box = torch.cat([first, last], dim=1) / SIDE
        return pictures.to(torch.uint8).unsqueeze(1), {"box": box, "kind": kind}

    return Splits.from_tensors(draw(train_pictures), draw(test_pictures))


class Detector(nn.Module):
    """(pictures, wanted) -> {"boxes": (N, 4), "box": (N,), "kind": (N,)}: what it found, and its losses."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Flatten(), nn.Linear(SIDE * SIDE, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        )
        self.box, self.kind = nn.Linear(width, 4), nn.Linear(width, KINDS)

    def forward(self, pictures: torch.Tensor, wanted: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        features = self.body(pictures)
        boxes = self.box(features).sigmoid()
        return {
            "boxes": boxes,
            "box": (boxes - wanted["box"]).abs().sum(dim=1),
            "kind": F.cross_entropy(self.kind(features), wanted["kind"], reduction="none"),
        }


def build(width: int = 64) -> nn.Module:
    return Detector(width)


class Detection:
    """The sum of the model's losses, and the mean overlap of the boxes (intersection over union)."""

    def forward(self, model: nn.Module, batch: tuple) -> dict[str, torch.Tensor]:
        pictures, wanted = batch
        return model(pictures.float() / 255, wanted)  # bytes travel to the device, and become numbers there

    def loss(self, outputs: dict, batch: tuple) -> tuple[torch.Tensor, int]:
        return (outputs["box"] + 0.3 * outputs["kind"]).sum(), len(batch[0])

    def evaluate(self, outputs: dict, batch: tuple) -> dict[str, torch.Tensor | int]:
        found, wanted = outputs["boxes"], batch[1]["box"]
        first, last = torch.maximum(found[:, :2], wanted[:, :2]), torch.minimum(found[:, 2:], wanted[:, 2:])
        both = (last - first).clamp(min=0).prod(dim=1)
        areas = [(box[:, 2:] - box[:, :2]).clamp(min=0).prod(dim=1) for box in (found, wanted)]
        return {"overlap": (both / (areas[0] + areas[1] - both)).sum(), "pictures": len(found)}

    def finish(self, sums: dict) -> dict[str, float]:
        return {"overlap": sums["overlap"] / sums["pictures"]}
