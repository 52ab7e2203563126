"""The documentation's tasks in float64, and tasks with a mistake each."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from docs.examples import detector, tagger, two_inputs
from scalestudy.training.config import TrainConfig
from scalestudy.training.data import Splits
from scalestudy.training.trees import mapped
from tests.support.training.helpers import make_config

HERE = "tests.support.training.tasks"
STREAMS = "tests.support.training.streams"
TASKS = {"tagger": "Tagging", "two_inputs": "Prices", "detector": "Detection", "examples": "Examples"}
METRICS = {"tagger": "macro_f1", "two_inputs": "r2", "detector": "overlap", "examples": "accuracy"}


def task_config(name: str, **changes: Any) -> TrainConfig:
    """A training of a task of the documentation, or of the default task's words in a user's: in float64."""
    values = {
        "model": f"{HERE}:{name}_model",
        "model_args": {},
        "data": f"{HERE}:{name}_data",
        "data_args": {},
        "task": f"{HERE}:Examples" if name == "examples" else f"docs.examples.{name}:{TASKS[name]}",
        "metric": METRICS[name],
        "batch_size": 30,
        "learning_rate": 0.1,
        "epochs": 2,
    }
    return make_config(**{**values, **changes})


def stream_config(kind: str = "drawing", **changes: Any) -> TrainConfig:
    """Eleven steps of 16 over passes of 50, so that batches span two; evaluated each four steps; in float64."""
    values = {"batch_size": 16, "epochs": None, "steps": 11, "eval_every": {"steps": 4}, "learning_rate": 0.2}
    if kind == "texts":
        return task_config("tagger", **{**values, "data": f"{STREAMS}:texts", **changes})
    return task_config("examples", **{**values, "data": f"{STREAMS}:drawing", **changes})


def counted_config(**changes: Any) -> TrainConfig:
    """A training on the counted numbers."""
    values = {
        "model": f"{STREAMS}:linear",
        "model_args": {},
        "data": f"{STREAMS}:counted",
        "data_args": {},
        "batch_size": 6,
        "epochs": None,
        "steps": 4,
    }
    return make_config(**{**values, **changes})


def _doubled(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def tagger_model(vocabulary: int, tags: int) -> nn.Module:
    return tagger.build(vocabulary, tags).double()


def tagger_data(root: str) -> Splits:
    """Texts are whole numbers. The first are all hidden: shards differ in their weight, and one may have none."""
    return tagger.load(root, train_texts=100, test_texts=37)


def two_inputs_model(streets: int) -> nn.Module:
    return two_inputs.build(streets).double()


def two_inputs_data(root: str) -> Splits:
    found = two_inputs.load(root, train_houses=100, test_houses=37)
    return Splits.from_tensors(mapped(_doubled, found.train), mapped(_doubled, found.test), for_model=found.for_model)


def detector_model() -> nn.Module:
    return DoubleDetector()


class DoubleDetector(nn.Module):
    """The detector on the task's float32 pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = detector.build(16).double()

    def forward(self, pictures: torch.Tensor, wanted: Any) -> Any:
        return self.inner(pictures.double(), wanted)


def detector_data(root: str) -> Splits:
    found = detector.load(root, train_pictures=100, test_pictures=37)
    return Splits.from_tensors(mapped(_doubled, found.train), mapped(_doubled, found.test))


def examples_model() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def examples_data(root: str) -> Splits:
    """Three classes of six numbers."""
    generator = torch.Generator().manual_seed(0)

    def draw(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        inputs = torch.randn(count, 6, generator=generator, dtype=torch.float64)
        return inputs, inputs[:, :3].argmax(dim=1)

    return Splits.from_tensors(draw(100), draw(37))


class Examples:
    """What the default task does, in a user's words."""

    def forward(self, model: nn.Module, batch: Any) -> torch.Tensor:
        outputs: torch.Tensor = model(batch[0])
        return outputs

    def loss(self, outputs: torch.Tensor, batch: Any) -> Any:
        return F.cross_entropy(outputs, batch[1], reduction="sum"), len(outputs)

    def evaluate(self, outputs: torch.Tensor, batch: Any) -> Any:
        return {"hits": (outputs.argmax(dim=1) == batch[1]).sum(), "count": len(outputs)}

    def finish(self, sums: Any) -> Any:
        return {"accuracy": sums["hits"] / sums["count"]}


class MeanOfAPart(tagger.Tagging):
    """The mistake that a study must not make: each part's mean counts the same, whatever its words."""

    def loss(self, logits: torch.Tensor, batch: Any) -> Any:
        total, weight = super().loss(logits, batch)
        return total / weight.clamp(min=1), 1


class Weighing(Examples):
    """Its first batch has the weight that the class says."""

    weight: Any = 0

    def __init__(self) -> None:
        self.batches = 0

    def loss(self, outputs: torch.Tensor, batch: Any) -> Any:
        self.batches += 1
        total, weight = super().loss(outputs, batch)
        return total, self.weight if self.batches == 1 else weight


class Weightless(Weighing):
    weight = 0


class NegativelyWeighing(Weighing):
    weight = torch.tensor(-3.0)


class NanWeighing(Weighing):
    weight = float("nan")


class InfinitelyWeighing(Weighing):
    weight = torch.tensor(float("inf"))
