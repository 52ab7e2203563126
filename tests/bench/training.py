"""`make bench BENCH="loop measuring uneven book accuracy"`: the training loop against loops written by hand.

Everything in a table runs in one process, or one group of processes, in turn: what disturbs one disturbs all.
"""

from __future__ import annotations

import atexit
import gzip
import itertools
import math
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from scipy.special import stdtrit
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, Subset

from scalestudy.training.config import TrainConfig
from scalestudy.training.data import Splits
from scalestudy.training.data.downloads import default_root
from scalestudy.training.data.loading import load_splits
from scalestudy.training.distributed import Worker
from scalestudy.training.loop.hooks import Hook
from scalestudy.training.loop.noise_scale import NoiseScale
from scalestudy.training.loop.train import train
from scalestudy.training.models import LeNet
from scalestudy.training.seeding import epoch_order, seed_parameters
from tests.bench.tables import Part, Rows, print_parts
from tests.support.gloo import gloo_pool

CPU = torch.device("cpu")
REPEATS = 3
PAIRS = 20  # of our loop and one written by hand, by turns
PAIRS_AT_A_TIME = 5  # for which a group of processes has three minutes
EXAMPLES = 60 * 256  # of Fashion-MNIST, an epoch of a timed run
SEEDS = range(5)
ACCURACY_EPOCHS = 2


def config_of(**changes: Any) -> TrainConfig:
    """LeNet on tensors like Fashion-MNIST's, one epoch."""
    values: dict[str, Any] = {
        "model": "lenet",
        "data": "synthetic",
        "data_args": {"train_samples": EXAMPLES, "test_samples": 64},
        "batch_size": 256,
        "learning_rate": 0.1,
        "epochs": 1,
        "warm_up_steps": 3,
    }
    return TrainConfig(**(values | changes))


def rate_of(config: TrainConfig, worker: Worker, hooks: Sequence[Hook] = ()) -> float:
    """Examples a second of one training, its warm-up left out, all workers together."""
    rate = train(config, worker, hooks=hooks).records[-1].samples_per_second
    assert rate is not None
    return rate


def rounds(runs: dict[str, Callable[[], float]], repeats: int) -> list[dict[str, float]]:
    """Each run's figure in every round, the runs taking turns; the first round is thrown away."""
    return [{name: run() for name, run in runs.items()} for _ in range(repeats + 1)][1:]


def in_turn(runs: dict[str, Callable[[], float]], repeats: int) -> dict[str, float]:
    """The median of each run's figures over the rounds."""
    found = rounds(runs, repeats)
    return {name: statistics.median(each[name] for each in found) for name in runs}


# --- the book's loop ----------------------------------------------------------------------------------------------


def fashion_mnist(train_set: bool) -> Dataset[Any]:
    """torchvision's data set, as the book reads it: an image is decoded, turned and scaled whenever it is asked for."""
    from scalestudy.training.torchvision_compat import define_missing_operators

    define_missing_operators()
    from torchvision import datasets, transforms

    root = unpacked(default_root())
    data: Dataset[Any] = datasets.FashionMNIST(str(root), train=train_set, transform=transforms.ToTensor())
    return data


@cache
def unpacked(root: Path) -> Path:
    """A folder with the data set's files as torchvision wants them: not compressed."""
    folder = Path(tempfile.mkdtemp(prefix="fashion-mnist-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    raw = folder / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    for packed in (root / "FashionMNIST" / "raw").glob("*.gz"):
        (raw / packed.stem).write_bytes(gzip.decompress(packed.read_bytes()))
    return folder


def books_epoch(model: nn.Module, loader: DataLoader[Any], learning_rate: float) -> Iterator[int]:
    """One epoch as the book writes it; gives each batch's size when its update is made."""
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    loss = nn.CrossEntropyLoss()
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss(model(inputs), targets).backward()
        optimizer.step()
        yield len(targets)


def books_rate(num_workers: int) -> float:
    """Examples a second of the book's loop, its first three batches left out."""
    loader = DataLoader(Subset(fashion_mnist(True), range(EXAMPLES)), 256, shuffle=True, num_workers=num_workers)
    seed_parameters(0)
    sizes, started = [], 0.0
    for step, size in enumerate(books_epoch(LeNet(10, 1), loader, 0.1)):
        if step == 2:
            started = time.perf_counter()
        if step > 2:
            sizes.append(size)
    return sum(sizes) / (time.perf_counter() - started)


def against_the_book(folder: Path, *, small: bool = False) -> Rows:
    """A row a way: examples a second of LeNet on one worker with two threads, and against the book's best loop."""
    torch.set_num_threads(2)
    worker = Worker(0, 1, CPU, threads=2)
    data = {"data": "fashion_mnist", "data_args": {}}
    ways = {
        "fp32": {},
        "fp32, channels-last": {"channels_last": True},
        "bf16": {"precision": "bf16"},
        "bf16, channels-last": {"precision": "bf16", "channels_last": True},
        "bf16, channels-last: auto": {"precision": "bf16", "channels_last": "auto"},
    }
    runs: dict[str, Callable[[], float]] = {
        f"the book's, DataLoader({workers})": lambda workers=workers: books_rate(workers) for workers in (0, 2, 4)
    }
    runs |= {name: lambda way=way: rate_of(config_of(**data, **way), worker) for name, way in ways.items()}
    found = in_turn(runs, repeats=1 if small else REPEATS)
    best = max(rate for name, rate in found.items() if "book" in name)
    return [[name, f"{rate:,.0f}", f"{rate / best:.2f}"] for name, rate in found.items()]


def accuracies(folder: Path, *, small: bool = False) -> Rows:
    """A row a way: test accuracy of LeNet on all of Fashion-MNIST after the same epochs, over five seeds."""
    seeds = SEEDS[:1] if small else SEEDS
    found = {"the book's": [books_accuracy(seed) for seed in seeds]}
    for name, way in {"fp32": {}, "bf16, channels-last": {"precision": "bf16", "channels_last": True}}.items():
        found[name] = [our_accuracy(seed, way) for seed in seeds]
    return [
        [name, f"{statistics.median(values):.4f}", f"{min(values):.4f} – {max(values):.4f}"]
        for name, values in found.items()
    ]


def books_accuracy(seed: int) -> float:
    """The book's loop over all training images, then its test accuracy."""
    torch.set_num_threads(2)
    seed_parameters(seed)
    model = LeNet(10, 1)
    for _ in range(ACCURACY_EPOCHS):
        for _ in books_epoch(model, DataLoader(fashion_mnist(True), 256, shuffle=True, num_workers=2), 0.1):
            pass
    splits = load_splits(config_of(data="fashion_mnist", data_args={}), CPU)
    with torch.inference_mode():
        outputs = torch.cat([model(part) for part in splits.test_inputs.split(1000)])
    return (outputs.argmax(dim=1) == splits.test_targets).double().mean().item()


def our_accuracy(seed: int, way: dict[str, Any]) -> float:
    """Ours, the same epochs."""
    config = config_of(data="fashion_mnist", data_args={}, epochs=ACCURACY_EPOCHS, seed=seed, **way)
    return train(config, Worker(0, 1, CPU, threads=2)).records[-1].test_metric


# --- a DDP loop written by hand -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Contest:
    """A training of ours and the same by hand. steps: of a run, its first ones left out."""

    config: TrainConfig
    steps: int
    model: Callable[[], nn.Module]
    loss: Callable[[nn.Module, Any], torch.Tensor]  # of (module, batch): the mean that is trained


def lenet_contest(batch_size: int, steps: int) -> Contest:
    """A pair of tensors, the fast path."""
    data = {"train_samples": batch_size * steps, "test_samples": 64}
    return Contest(
        config=config_of(batch_size=batch_size, data_args=data),
        steps=steps,
        model=lambda: LeNet(10, 1),
        loss=lambda module, batch: F.cross_entropy(module(batch[0]), batch[1]),
    )


def dict_contest(batch_size: int, steps: int) -> Contest:
    """A task whose batches are dicts, with a second loss term."""
    here = "tests.bench.training"
    return Contest(
        config=config_of(
            model=f"{here}:two_heads",
            data=f"{here}:dict_data",
            task=f"{here}:DigitsAndInk",
            data_args={"train_samples": batch_size * steps},
            batch_size=batch_size,
        ),
        steps=steps,
        model=two_heads,
        loss=lambda module, batch: digit_and_ink(module(batch["image"]), batch).mean(),
    )


def dict_data(root: str, train_samples: int) -> Splits:
    """Images {"image": (n, 1, 28, 28), "digit": (n,), "ink": (n,)}."""
    generator = torch.Generator().manual_seed(0)

    def draw(count: int) -> dict[str, torch.Tensor]:
        image = torch.rand(count, 1, 28, 28, generator=generator)
        digit = torch.randint(10, (count,), generator=generator)
        return {"image": image, "digit": digit, "ink": image.mean(dim=(1, 2, 3))}

    return Splits.from_tensors(draw(train_samples), draw(64))


def two_heads() -> nn.Module:
    """Ten numbers for the digit, one for the ink."""
    return LeNet(11, 1)


def digit_and_ink(outputs: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """The loss of each example, (N,)."""
    digit = F.cross_entropy(outputs[:, :10], batch["digit"], reduction="none")
    return digit + 0.1 * (outputs[:, 10] - batch["ink"]).square()


class DigitsAndInk:
    """The task of `dict_contest`."""

    def forward(self, model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        outputs: torch.Tensor = model(batch["image"])
        return outputs

    def loss(self, outputs: torch.Tensor, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, int]:
        return digit_and_ink(outputs, batch).sum(), len(outputs)

    def evaluate(self, outputs: torch.Tensor, batch: dict[str, torch.Tensor]) -> dict[str, Any]:
        return {"hits": (outputs[:, :10].argmax(dim=1) == batch["digit"]).sum(), "count": len(outputs)}

    def finish(self, sums: dict[str, Any]) -> dict[str, float]:
        return {"accuracy": sums["hits"] / sums["count"]}


CONTESTS: dict[str, Callable[[], Contest]] = {
    "LeNet, batch 256": lambda: lenet_contest(256, 40),
    "LeNet, batch 64": lambda: lenet_contest(64, 120),
    "LeNet, batch 8": lambda: lenet_contest(8, 500),
    "dict, batch 256": lambda: dict_contest(256, 40),
}


def hand_written_rate(worker: Worker, contest: Contest) -> float:
    """Examples a second of a plain DDP loop over the same tensors, its first three steps left out."""
    config, steps = contest.config, contest.steps
    examples = load_splits(config, worker.device).train
    seed_parameters(config.seed)
    model = contest.model()
    module = DistributedDataParallel(model, gradient_as_bucket_view=True) if worker.world_size > 1 else model
    optimizer = torch.optim.SGD(model.parameters(), config.learning_rate, fused=True)
    share = config.batch_size // worker.world_size
    order = epoch_order(steps * config.batch_size, config.seed, 1)
    started = 0.0
    for step in range(steps):
        if step == config.warm_up_steps:
            started = time.perf_counter()
        first = step * config.batch_size + worker.rank * share
        batch = rows_of(examples, order[first : first + share])
        optimizer.zero_grad()
        contest.loss(module, batch).backward()
        optimizer.step()
    return (steps - config.warm_up_steps) * config.batch_size / (time.perf_counter() - started)


def rows_of(examples: Any, chosen: torch.Tensor) -> Any:
    """A batch of a dict or a pair of tensors, as people write it."""
    if isinstance(examples, dict):
        return {name: tensor[chosen] for name, tensor in examples.items()}
    return tuple(tensor[chosen] for tensor in examples)


def pairs_of_rates(worker: Worker, name: str, pairs: int) -> list[tuple[float, float]]:
    """(ours, the hand-written loop's) rate of each pair; which is first alternates. The first pair is thrown away."""
    contest = CONTESTS[name]()
    found = []
    for number in range(pairs + 1):
        if number % 2:
            theirs, ours = hand_written_rate(worker, contest), rate_of(contest.config, worker)
        else:
            ours, theirs = rate_of(contest.config, worker), hand_written_rate(worker, contest)
        found.append((ours, theirs))
    return found[1:]


def against_ddp(folder: Path, *, small: bool = False) -> Rows:
    """A row a world size and training: rates, and the ratio of both with its 90 % interval over the pairs."""
    rows: Rows = []
    turns = [2] if small else [PAIRS_AT_A_TIME] * (PAIRS // PAIRS_AT_A_TIME)
    with gloo_pool(2) as ranks:
        for world_size, name in itertools.product((1, 2), CONTESTS):
            found = [pair for count in turns for pair in ranks.run(world_size, pairs_of_rates, name, count)[0]]
            ours, theirs = (statistics.median(rates) for rates in zip(*found, strict=True))
            ratio = Ratio.of([one / other for one, other in found])
            rows.append([f"{world_size} × 1", name, f"{ours:,.0f}", f"{theirs:,.0f}", ratio.text])
    return rows


@dataclass(frozen=True)
class Ratio:
    """The geometric mean of paired ratios, and the 90 % interval of that mean by Student's t."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, ratios: Sequence[float]) -> Ratio:
        """At least two."""
        logs = [math.log(ratio) for ratio in ratios]
        mean, error = statistics.fmean(logs), statistics.stdev(logs) / math.sqrt(len(logs))
        half = float(stdtrit(len(logs) - 1, 0.95)) * error
        return cls(math.exp(mean), math.exp(mean - half), math.exp(mean + half))

    @property
    def text(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"


# --- hooks, uneven workers ---------------------------------------------------------------------------------------


def hook_costs(worker: Worker, batch_size: int, repeats: int) -> dict[str, float]:
    """What measuring costs, as a share of the step: medians over rounds, within which the rates are compared."""
    from scalestudy.training.loop import measures

    config = config_of(batch_size=batch_size, data_args={"train_samples": 48 * batch_size, "test_samples": 64})
    sampled = measures.is_sampled

    def without_phases() -> float:
        measures.is_sampled = lambda step, steps: False
        try:
            return rate_of(config, worker)
        finally:
            measures.is_sampled = sampled

    found = rounds(
        {
            "plain": lambda: rate_of(config, worker),
            "without phases": without_phases,
            "with noise scale": lambda: rate_of(config, worker, [NoiseScale()]),
        },
        repeats,
    )
    return {
        "phase timing": statistics.median(each["without phases"] / each["plain"] for each in found) - 1,
        "noise scale": statistics.median(each["plain"] / each["with noise scale"] for each in found) - 1,
    }


def costs_of_measuring(folder: Path, *, small: bool = False) -> Rows:
    """A row a world size and batch: share of a step that phase timing and the noise scale cost."""
    rows = []
    with gloo_pool(2) as ranks:
        for world_size, batch_size in itertools.product((1, 2), (64, 256)):
            found = ranks.run(world_size, hook_costs, batch_size, 1 if small else 9)[0]
            rows.append([f"{world_size} × 1", str(batch_size), *(f"{100 * cost:+.1f} %" for cost in found.values())])
    return rows


class HalfSpeedLeNet(LeNet):
    """On rank 1 every forward and backward is computed twice: a device of half the speed."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs = super().forward(inputs)
        if self.training and dist.is_initialized() and dist.get_rank() == 1 and len(inputs):
            with torch.enable_grad():
                again = super().forward(inputs.detach())
            parameters = list(self.parameters())
            torch.autograd.grad(again.sum(), parameters)
        return outputs


def shards_rate(worker: Worker, shards: str) -> float:
    """Examples a second with one worker slowed to half."""
    return rate_of(config_of(model="tests.bench.training:HalfSpeedLeNet", shards=shards), worker)


def uneven(folder: Path, *, small: bool = False) -> Rows:
    """A row a way of splitting: milliseconds a step, against even shards."""
    with gloo_pool(2) as ranks:
        runs = {name: lambda name=name: ranks.run(2, shards_rate, name)[0] for name in ("even", "speed")}
        found = in_turn(runs, 1 if small else REPEATS)
    return [[name, f"{256_000 / rate:.1f}", f"{found['even'] / rate:.2f}"] for name, rate in found.items()]


PARTS = {
    "loop": Part(
        "A DDP loop written by hand",
        ["workers × threads", "training", "ours, examples/s", "by hand", f"ratio, {PAIRS} pairs (90 %)"],
        against_ddp,
    ),
    "measuring": Part(
        "What measuring costs of a step",
        ["workers × threads", "batch", "phase timing", "noise scale"],
        costs_of_measuring,
    ),
    "uneven": Part("One worker at half speed", ["shards", "ms a step", "of even"], uneven),
    "book": Part(
        "LeNet on Fashion-MNIST, one worker, two threads",
        ["loop", "images/s", "of the book's best"],
        against_the_book,
    ),
    "accuracy": Part(
        f"Test accuracy after {ACCURACY_EPOCHS} epochs, {len(SEEDS)} seeds", ["loop", "median", "range"], accuracies
    ),
}

if __name__ == "__main__":
    print_parts(PARTS, sys.argv[1:])
