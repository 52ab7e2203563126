"""A task of your own: prices from two inputs of different kinds, a loss of two terms, and R² as the metric.

Name it in a spec as `model: two_inputs:build`, `data: two_inputs:load`, `task: two_inputs:Prices`, `metric: r2`, with
this file in the folder where you call `scalestudy`; see docs/tasks.md.

Shapes: N houses in a batch.
"""

import torch
from torch import nn

from scalestudy.training.data import Splits

STREETS = 12


def load(root: str, train_houses: int = 4000, test_houses: int = 800) -> Splits:
    """Houses {"sizes": (n, 4), "street": (n,), "price": (n,)}: tensors in memory."""
    generator = torch.Generator().manual_seed(0)
    streets = torch.randn(STREETS, generator=generator)

    def draw(count: int) -> dict[str, torch.Tensor]:
        sizes = torch.rand(count, 4, generator=generator)
        street = torch.randint(STREETS, (count,), generator=generator)
        price = sizes @ torch.tensor([3.0, 1.0, -1.0, 2.0]) + streets[street]
        return {"sizes": sizes, "street": street, "price": price + 0.1 * torch.randn(count, generator=generator)}

    return Splits.from_tensors(draw(train_houses), draw(test_houses), for_model={"streets": STREETS})


class Pricing(nn.Module):
    """(sizes (N, 4), street (N,)) -> (price (N,), its street's part (N,))."""

    def __init__(self, streets: int) -> None:
        super().__init__()
        self.sizes = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
        self.street = nn.Embedding(streets, 1)

    def forward(self, sizes: torch.Tensor, street: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        part = self.street(street).squeeze(1)
        return self.sizes(sizes).squeeze(1) + part, part


def build(streets: int) -> nn.Module:
    return Pricing(streets)


class Prices:
    """The mean squared error, and a small pull of the streets' parts to 0."""

    def forward(self, model: nn.Module, batch: dict) -> tuple[torch.Tensor, torch.Tensor]:
        return model(batch["sizes"], batch["street"])

    def loss(self, outputs: tuple, batch: dict) -> tuple[torch.Tensor, int]:
        price, part = outputs
        return ((price - batch["price"]).square() + 1e-3 * part.square()).sum(), len(price)

    def evaluate(self, outputs: tuple, batch: dict) -> dict[str, torch.Tensor | int]:
        price, wanted = outputs[0], batch["price"].double()
        error = (price - wanted).square().sum()
        return {"error": error, "sum": wanted.sum(), "squares": wanted.square().sum(), "houses": len(wanted)}

    def finish(self, sums: dict) -> dict[str, float]:
        """R² = 1 - Σ (ŷ - y)² / Σ (y - ȳ)², with Σ (y - ȳ)² = Σ y² - (Σ y)² / n."""
        return {"r2": 1 - sums["error"] / (sums["squares"] - sums["sum"] ** 2 / sums["houses"])}
