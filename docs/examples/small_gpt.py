"""A small GPT that learns to add: characters of lines such as `17+25=42`, one after the other.

Name it in a spec as `model: small_gpt:build`, `data: small_gpt:load`, `task: small_gpt:NextCharacter`,
`metric: bits_per_character`, `metric_mode: min`, with this file in the folder where you call `scalestudy`:

train:
  tokens: 400000
  eval_every: {tokens: 50000}
  warmup_share: 0.05
  schedule: {name: cosine, args: {floor: 0.1}}
  optimizer: {name: "small_gpt:with_decay", args: {weight_decay: 0.1}}

Shapes: N windows in a batch, L characters in a window, W the width.
"""

import math
import random

import torch
import torch.nn.functional as F
from torch import nn

from scalestudy.training.data import Splits

CHARACTERS = "0123456789+=\n"
LENGTH = 32


def windows(count: int, seed: int) -> torch.Tensor:
    """Windows (count, L + 1) of one long text of sums, as places in CHARACTERS."""
    chance, text = random.Random(seed), ""
    lines = []
    while len(text) <= count * LENGTH:
        one, other = chance.randrange(100), chance.randrange(100)
        lines.append(f"{one}+{other}={one + other}\n")
        if len(lines) == 1000:
            text, lines = text + "".join(lines), []
    places = torch.tensor([CHARACTERS.index(character) for character in text[: count * LENGTH + 1]])
    return places.unfold(0, LENGTH + 1, LENGTH)


def load(root: str, train_windows: int = 4000, test_windows: int = 400) -> Splits:
    """The two sets in memory, and what the model is told of them."""
    train, test = ({"text": windows(count, seed)} for seed, count in enumerate((train_windows, test_windows)))
    return Splits.from_tensors(train, test, for_model={"characters": len(CHARACTERS)})


class Block(nn.Module):
    """Causal attention and a perceptron, each added to what comes in (N, L, W)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_perceptron = nn.LayerNorm(width), nn.LayerNorm(width)
        self.to_attend, self.attended = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.perceptron = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        parts = self.to_attend(self.before_attention(inputs)).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2).flatten(2)
        inputs = inputs + self.attended(seen)
        return inputs + self.perceptron(self.before_perceptron(inputs))


class GPT(nn.Module):
    """Characters (N, L) -> logits of the next ones (N, L, characters)."""

    def __init__(self, characters: int, width: int, heads: int, blocks: int) -> None:
        super().__init__()
        self.characters, self.places = nn.Embedding(characters, width), nn.Embedding(LENGTH, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(blocks)))
        self.last, self.head = nn.LayerNorm(width), nn.Linear(width, characters, bias=False)
        self.apply(begin)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        places = self.places(torch.arange(text.shape[1], device=text.device))
        return self.head(self.last(self.blocks(self.characters(text) + places)))


def begin(module: nn.Module) -> None:
    """Draw the weights of a layer from a narrow normal distribution."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)


def build(characters: int, width: int = 32, heads: int = 2, blocks: int = 2) -> nn.Module:
    """What the study calls, with `model_args`."""
    return GPT(characters, width, heads, blocks)


class NextCharacter:
    """The mean loss over characters, and bits a character over the whole test set."""

    def forward(self, model: nn.Module, batch: dict) -> torch.Tensor:
        return model(batch["text"][:, :-1])

    def loss(self, logits: torch.Tensor, batch: dict) -> tuple[torch.Tensor, int]:
        following = batch["text"][:, 1:]
        return F.cross_entropy(logits.flatten(0, 1), following.flatten(), reduction="sum"), following.numel()

    def evaluate(self, logits: torch.Tensor, batch: dict) -> dict[str, torch.Tensor]:
        total, count = self.loss(logits, batch)
        return {"loss": total, "count": torch.tensor(count)}

    def finish(self, sums: dict) -> dict[str, float]:
        return {"bits_per_character": sums["loss"] / sums["count"] / math.log(2)}

    def tokens(self, batch: dict) -> torch.Tensor:
        return torch.tensor(batch["text"][:, 1:].numel())


def with_decay(model: nn.Module, learning_rate: float, weight_decay: float = 0.1) -> torch.optim.Optimizer:
    """AdamW that keeps matrices small, and leaves biases and norms alone."""
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    others = [parameter for parameter in model.parameters() if parameter.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.95))
