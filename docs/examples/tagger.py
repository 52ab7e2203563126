"""A task of your own: a tag for each word of texts of different lengths, some of which nobody has tagged.

Name it in a spec as `model: tagger:build`, `data: tagger:load`, `task: tagger:Tagging`, `metric: macro_f1`, with this
file in the folder where you call `scalestudy`; see docs/tasks.md.

Shapes: N texts in a batch, L words in its longest, K tags.
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from scalestudy.training.data import Splits

TAGS = 3
PADDING = 0  # of words
UNKNOWN = -1  # of tags: padding, and words that nobody has tagged


class Texts(torch.utils.data.Dataset):
    """Words are numbers from 1. A word's tag tells how it compares with the word before it."""

    def __init__(self, count: int, vocabulary: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        lengths = torch.randint(3, 20, (count,), generator=generator).tolist()
        self.words = [torch.randint(1, vocabulary, (length,), generator=generator) for length in lengths]
        self.hidden = [torch.rand(length, generator=generator) < 0.3 for length in lengths]

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        words = self.words[index]
        before = F.pad(words[:-1], (1, 0))
        tags = 1 + torch.sign(words - before)
        return words, tags.masked_fill(self.hidden[index], UNKNOWN)


def collate(texts: list[tuple[torch.Tensor, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Texts as one batch: {"words": (N, L), "tags": (N, L)}."""
    words, tags = zip(*texts, strict=True)
    return {
        "words": pad_sequence(words, batch_first=True, padding_value=PADDING),
        "tags": pad_sequence(tags, batch_first=True, padding_value=UNKNOWN),
    }


def load(root: str, train_texts: int = 2000, test_texts: int = 400, vocabulary: int = 30) -> Splits:
    """The two sets, and what the model is told of them."""
    train, test = Texts(train_texts, vocabulary, seed=0), Texts(test_texts, vocabulary, seed=1)
    return Splits.from_datasets(train, test, collate=collate, for_model={"vocabulary": vocabulary, "tags": TAGS})


def build(vocabulary: int, tags: int, width: int = 32) -> nn.Module:
    """Words (N, L) -> logits (N, K, L). A word sees its neighbours, and padding is zeros to it."""
    return nn.Sequential(
        Embedded(vocabulary, width), nn.Conv1d(width, width, 3, padding=1), nn.ReLU(), nn.Conv1d(width, tags, 1)
    )


class Embedded(nn.Embedding):
    """Words (N, L) -> (N, width, L)."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__(vocabulary, width, padding_idx=PADDING)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return super().forward(words).transpose(1, 2)


class Tagging:
    """The mean loss over tagged words, and macro-F1 over the whole test set."""

    def forward(self, model: nn.Module, batch: dict) -> torch.Tensor:
        return model(batch["words"])

    def loss(self, logits: torch.Tensor, batch: dict) -> tuple[torch.Tensor, torch.Tensor]:
        total = F.cross_entropy(logits, batch["tags"], ignore_index=UNKNOWN, reduction="sum")
        return total, (batch["tags"] != UNKNOWN).sum()

    def evaluate(self, logits: torch.Tensor, batch: dict) -> dict[str, torch.Tensor]:
        """Sums by tag: how often it was right, how often it was said, how often it was there."""
        known = batch["tags"] != UNKNOWN
        said = F.one_hot(logits.argmax(dim=1)[known], TAGS)
        there = F.one_hot(batch["tags"][known], TAGS)
        return {"right": (said * there).sum(dim=0), "said": said.sum(dim=0), "there": there.sum(dim=0)}

    def finish(self, sums: dict) -> dict[str, float]:
        """F1 of a tag is 2 · right / (said + there); macro-F1 is the mean over the tags."""
        f1 = 2 * sums["right"] / (sums["said"] + sums["there"]).clamp(min=1)
        return {"macro_f1": f1.mean().item(), "word_accuracy": (sums["right"].sum() / sums["there"].sum()).item()}

    def tokens(self, batch: dict) -> torch.Tensor:
        """Optional: what `train.tokens` counts, and each record tells."""
        return (batch["words"] != PADDING).sum()
