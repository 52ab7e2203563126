"""The proof of data parallelism: k workers make the same parameters as one, and replicas equal to the last bit.

First through `train`, with LeNet; then every exact strategy with every split, by itself.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
import torch.distributed as dist

from scalestudy.training.config import OptimizerConfig, TrainConfig
from scalestudy.training.data.loading import open_data
from scalestudy.training.distributed import Worker
from scalestudy.training.gradient_sync import StepPlan
from scalestudy.training.gradient_sync.ddp import DistributedDataParallelSync
from scalestudy.training.gradient_sync.explicit import FlatSync, NaiveSync
from scalestudy.training.losses import cross_entropy
from scalestudy.training.models import build_model
from scalestudy.training.seeding import epoch_order, seed_parameters
from scalestudy.training.task import ShardLoss
from tests.support.gloo import GlooPool
from tests.support.training.helpers import (
    ALONE,
    largest_difference,
    make_config,
    refusal,
    run_training,
    same_bits,
    smallest_movement,
    state_of,
)
from tests.unit.training.gradient_sync.sync_steps import (
    ELEMENTS,
    EXACT,
    LOSSY,
    TOLERANCE,
    Run,
    Steps,
    run_steps,
    shard_of,
)

HERE = "tests.unit.training.gradient_sync.test_gradient_sync"
STRATEGIES = ["ddp", "naive", "flat", "ring"]
DOUBLE_TOLERANCE = 1e-11
SINGLE_TOLERANCE = 1e-5
MOVEMENT = 1e-3  # at least 100 × the larger tolerance


def images(train_samples: int) -> dict[str, int]:
    """The data set's arguments."""
    return {"train_samples": train_samples, "test_samples": 32, "image_size": 16}


def lenet_config(**changes: Any) -> TrainConfig:
    """Six steps of LeNet in float64 with Xavier initialisation, on images of 16 × 16 pixels."""
    values: dict[str, Any] = {
        "model": "tests.support.training.workloads:DoubleLeNet",
        "model_args": {"init": "xavier", "image_size": 16},
        "data_args": images(6 * 32),
        "batch_size": 32,
        "learning_rate": 0.1,
    }
    return make_config(**(values | changes))


ODD = {"data_args": images(5 * 30 + 17), "batch_size": 30}  # 30 = 8 + 8 + 7 + 7
SPLITS: dict[str, dict[str, Any]] = {
    "even": {},
    "batches that do not divide": ODD,
    "last batch smaller than the workers": {"data_args": images(5 * 32 + 1)},
    "momentum, decay and clipping": {
        "gradient_clip": 0.5,
        "optimizer": OptimizerConfig(momentum=0.9, weight_decay=1e-3),
        "learning_rate": 0.02,
    },
    "micro-batches": {"accumulation": 3, **ODD},
    "weighted": {"shards": (0.5, 0.25, 0.15, 0.1)},
    "a worker without examples": {"shards": (1.0, 0.0, 2.0, 1.0)},
}


def check_equals_one_worker(
    ranks: GlooPool, world_size: int, config: TrainConfig, one_worker: TrainConfig, tolerance: float
) -> None:
    """Replicas are equal to the bit, every tensor moved, and one worker gets the same parameters."""
    replicas = ranks.run(world_size, run_training, config)
    alone = train_alone(one_worker)
    assert all(same_bits(replicas[0]["state"], replica["state"]) for replica in replicas), "replicas differ"
    assert max(replicas[0]["replica_max_diff"]) == 0.0, "the record says that replicas differ"
    assert smallest_movement(alone["first_state"], alone["state"]) >= MOVEMENT, "a tensor hardly moved"
    assert same_bits(alone["first_state"], replicas[0]["first_state"]), "other initial parameters"
    assert largest_difference(alone["state"], replicas[0]["state"]) <= tolerance, "parameters differ from one worker's"


_alone: dict[str, dict[str, Any]] = {}


def train_alone(config: TrainConfig) -> dict[str, Any]:
    """One worker's outcome; the same config is trained once a session."""
    key = repr(config)
    if key not in _alone:
        _alone[key] = run_training(ALONE, config)
    return _alone[key]


@pytest.mark.parametrize(
    ("split", "world_size", "strategy"),
    [
        ("micro-batches", 4, "ddp"),
        ("micro-batches", 2, "flat"),
        ("batches that do not divide", 4, "ring"),
        ("last batch smaller than the workers", 4, "naive"),
        ("momentum, decay and clipping", 2, "ddp"),
        ("momentum, decay and clipping", 2, "flat"),
        ("even", 2, "ring"),
        ("weighted", 4, "naive"),
        *(("a worker without examples", 4, strategy) for strategy in ("ddp", "flat")),
    ],
)
def test_any_number_of_workers_trains_like_one(ranks: GlooPool, split: str, world_size: int, strategy: str) -> None:
    config = lenet_config(**SPLITS[split], gradient_sync=strategy)
    one_worker = lenet_config(**{**SPLITS[split], "accumulation": 1, "shards": "even"})
    check_equals_one_worker(ranks, world_size, config, one_worker, DOUBLE_TOLERANCE)


@pytest.mark.parametrize("strategy", ["ddp", "ring"])
def test_float32_too(ranks: GlooPool, strategy: str) -> None:
    """With the product's own LeNet.

    Seed and rate are chosen: where an activation happens to lie within rounding of ReLU's kink, the two sums fall on
    different sides of it, and training amplifies that beyond 1e-5. The tests in float64 above need no such choice.
    """
    one_worker = make_config(
        model="lenet", model_args={}, batch_size=64, data_args={"train_samples": 6 * 64}, learning_rate=0.1
    )
    config = one_worker.replace(gradient_sync=strategy)
    check_equals_one_worker(ranks, 2, config, one_worker, SINGLE_TOLERANCE)


@pytest.mark.parametrize("strategy", [*EXACT, *LOSSY])
def test_channels_last_trains_the_same(ranks: GlooPool, strategy: str) -> None:
    """Gradients, their views in buffers and momentum lie in memory as their parameters do, on every rank.

    PowerSGD makes its first two steps, which are exact: what it compresses later has its columns in another order.
    """
    config = lenet_config(
        gradient_sync=strategy,
        optimizer=OptimizerConfig(momentum=0.9),
        learning_rate=0.1 if strategy == "powersgd" else 0.02,
        local_steps=3 if strategy == "local_sgd" else None,
        warm_up_steps=0,
        max_steps=2 if strategy == "powersgd" else None,
    )
    contiguous = ranks.run(2, run_training, config)[0]
    replicas = ranks.run(2, run_training, config.replace(channels_last=True))
    assert same_bits(replicas[0]["state"], replicas[1]["state"])
    assert smallest_movement(contiguous["first_state"], contiguous["state"]) >= MOVEMENT
    assert largest_difference(contiguous["state"], replicas[0]["state"]) < DOUBLE_TOLERANCE


class WrongScaleSync(DistributedDataParallelSync):
    """Forgets that DistributedDataParallel averages: gradients are k times too small."""

    def factor(self, plan: StepPlan) -> float:
        return 1.0 / plan.batch


class RebindingSync(NaiveSync):
    """The bug of the book's notebook: what comes back is bound to a name, and never reaches the gradient."""

    def _sum_in_place(self, gradient: torch.Tensor) -> None:
        if self.worker.rank == 0:
            super()._sum_in_place(gradient)
        else:
            dist.gather(gradient, dst=0)
            received = torch.empty_like(gradient)
            dist.broadcast(received, src=0)
            gradient = received


class LopsidedSync(FlatSync):
    """Each rank leaves its own rounding in the sum: replicas drift apart by bits, and nothing else is wrong."""

    def _sum_in_place(self, buffer: torch.Tensor) -> None:
        super()._sum_in_place(buffer)
        buffer.mul_(1 + self.worker.rank * torch.finfo(buffer.dtype).eps)


@pytest.mark.parametrize(
    ("strategy", "world_size", "found"),
    [
        ("WrongScaleSync", 4, "parameters differ from one worker's"),
        ("RebindingSync", 2, "replicas differ"),
        ("LopsidedSync", 4, "replicas differ"),
    ],
)
def test_the_proof_refuses_a_wrong_strategy(ranks: GlooPool, strategy: str, world_size: int, found: str) -> None:
    config = lenet_config(gradient_sync=f"{HERE}:{strategy}")
    with pytest.raises(AssertionError, match=found):
        check_equals_one_worker(ranks, world_size, config, lenet_config(), SINGLE_TOLERANCE)


def digits_config(**changes: Any) -> TrainConfig:
    """A small network on real digits, until it is well above nine in ten."""
    values = {"model_args": {"hidden": [64]}, "data": "digits", "data_args": {}, "batch_size": 64, "epochs": 6}
    how = {"learning_rate": 0.05, "optimizer": OptimizerConfig(momentum=0.9), "schedule": "cosine"}
    return make_config(**(values | how | changes))


def test_two_workers_with_the_rebinding_bug_look_normal_but_for_the_replica_check(ranks: GlooPool) -> None:
    """The bug of the book's notebook: rank 1 trains on its own half, rank 0 on all; the curve alone shows nothing."""
    config = digits_config(gradient_sync=f"{HERE}:RebindingSync")
    faulty = ranks.run(2, run_training, config)[0]
    sound = train_alone(digits_config())
    accuracies = [outcome["curve"][-1][2] for outcome in (faulty, sound)]
    assert max(sound["replica_max_diff"]) == 0.0
    assert min(faulty["replica_max_diff"]) > 1e-2
    assert min(accuracies) > 0.95
    assert abs(accuracies[0] - accuracies[1]) < 0.02


def test_four_workers_with_the_rebinding_bug_are_found_too(ranks: GlooPool) -> None:
    config = lenet_config(gradient_sync=f"{HERE}:RebindingSync")
    assert ranks.run(4, run_training, config)[0]["replica_max_diff"][0] > 1e-3


@pytest.mark.parametrize("strategy", [*STRATEGIES, "bf16", "powersgd", "local_sgd"])
def test_batch_normalisation_bears_an_empty_shard(ranks: GlooPool, strategy: str) -> None:
    config = make_config(
        model="tests.support.training.workloads:BatchNormNet",
        model_args={},
        data_args={"train_samples": 96, "test_samples": 32},
        shards=(1.0, 0.0),
        gradient_sync=strategy,
    )
    replicas = ranks.run(2, run_training, config)
    assert replicas[0]["status"] == "finished"
    assert same_bits(replicas[0]["state"], replicas[1]["state"])


def test_one_worker_equals_plain_pytorch() -> None:
    """The reference itself against a loop written out: the mean loss of each global batch, SGD."""
    config = lenet_config()
    data = open_data(config, ALONE)
    order = epoch_order(192, config.seed, 1)
    bounds = [(start, start + 32) for start in range(0, 192, 32)]
    seed_parameters(config.seed)
    model = build_model(config.model, (10, 1), dict(config.model_args))
    optimizer = torch.optim.SGD(model.parameters(), config.learning_rate)
    for inputs, targets in data.shards(order, bounds, 1):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    ours = run_training(ALONE, config)["state"]
    assert largest_difference(ours, state_of(model)) < DOUBLE_TOLERANCE


def no_sync(shard_loss: ShardLoss, worker: object, options: object) -> str:
    """Not a strategy."""
    return "no strategy"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (f"{HERE}:no_sync", " gave a str; the callable must return a scalestudy.training.gradient_sync.GradientSync"),
        (
            "tests.support.training.workloads:parameterless",
            ": parameterless(num_classes: 'int', in_channels: 'int') is called with (<ShardLoss>, <Worker>, "
            "<SyncOptions>): too many positional arguments; it takes num_classes, in_channels",
        ),
    ],
)
def test_a_strategy_of_the_users_own_must_be_one(ranks: GlooPool, name: str, message: str) -> None:
    assert ranks.run(2, refusal, make_config(gradient_sync=name)) == [f"gradient_sync: {name!r}{message}"] * 2


# --- the exact strategies by themselves, a step at a time: sums, bits, bytes, measured norms, divergence --------------


BYTES = 8 * ELEMENTS  # 11,264
STEPS: dict[str, Steps] = {
    "batches that do not divide": Steps(batches=(25, 23, 7, 2, 1)),
    "uneven, and one worker without examples": Steps(batches=(24,) * 4, weights=(3.0, 0.0, 2.0, 1.0)),
    "micro-batches of uneven shards": Steps(accumulation=2, batches=(25, 1) * 2, weights=(3.0, 0.0, 2.0, 1.0)),
    "gradients of 1.4 MB, two of DistributedDataParallel's buckets": Steps(batches=(16,) * 3, hidden=(400, 400)),
    "momentum and clipping": Steps(batches=(24,) * 5, momentum=0.9, clip=0.3, learning_rate=0.1),
}


@pytest.mark.parametrize(("case", "world_size"), [*((case, 4) for case in STEPS), ("batches that do not divide", 3)])
def test_every_exact_strategy_trains_like_one_worker(ranks: GlooPool, case: str, world_size: int) -> None:
    alone = run_steps(ALONE, dataclasses.replace(STEPS[case], accumulation=1, weights=None))
    assert smallest_movement(alone["first_state"], alone["state"]) > MOVEMENT
    for strategy in EXACT:
        steps = dataclasses.replace(STEPS[case], strategy=strategy)
        replicas = ranks.run(world_size, run_steps, steps)
        assert all(same_bits(replicas[0]["state"], replica["state"]) for replica in replicas), strategy
        assert largest_difference(alone["state"], replicas[0]["state"]) < TOLERANCE, strategy


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_bytes_are_counted_by_the_algorithm(ranks: GlooPool, world_size: int) -> None:
    """Over two steps. In float64; with 3 workers the ring's 1,408 numbers are padded to 3 · 470."""
    steps = Steps(batches=(24, 24))
    allreduce = round(2 * (world_size - 1) / world_size * BYTES)  # 11,264; 15,019; 16,896
    chunk = {2: 704, 3: 470, 4: 352}[world_size]
    expected = {
        "ddp": [2 * allreduce] * world_size,
        "flat": [2 * allreduce] * world_size,
        "naive": [2 * (world_size - 1) * BYTES, *[2 * BYTES] * (world_size - 1)],
        "ring": [2 * 2 * (world_size - 1) * chunk * 8] * world_size,
        "bf16": [2 * round(2 * (world_size - 1) / world_size * 2 * ELEMENTS)] * world_size,
    }
    for strategy, sent in expected.items():
        outcomes = ranks.run(world_size, run_steps, dataclasses.replace(steps, strategy=strategy))
        assert [outcome["bytes"] for outcome in outcomes] == sent, strategy


def measured_and_expected(worker: Worker, steps: Steps) -> tuple[list[float | None], list[float]]:
    """local_sq_norm of each step, and |gradient of this worker's loss sum times the factor|² from autograd alone."""
    run, expected = Run(worker, steps), []
    for index in range(len(steps.batches)):
        inputs, targets, plan = shard_of(steps, index, worker)
        loss_sum = cross_entropy(run.model(inputs), targets).sum() * run.sync.factor(plan)
        gradients = torch.autograd.grad(loss_sum, list(run.model.parameters()))
        expected.append(sum(gradient.square().sum().item() for gradient in gradients))
        run.step(index)
    return run.local_sq_norms, expected


@pytest.mark.parametrize(("weights", "accumulation"), [((1.0, 1.0), 1), ((3.0, 1.0), 3), ((1.0, 0.0), 3)], ids=str)
def test_the_norm_of_the_local_gradient(ranks: GlooPool, weights: tuple[float, ...], accumulation: int) -> None:
    """As it was before the sum, with micro-batches too, in the steps that ask for it."""
    steps = Steps(batches=(24, 24, 25, 24), measured=(0, 2), weights=weights, accumulation=accumulation)
    for strategy in EXACT:
        for rank, (measured, expected) in enumerate(
            ranks.run(2, measured_and_expected, dataclasses.replace(steps, strategy=strategy))
        ):
            assert [measured[1], measured[3]] == [None, None]
            assert [measured[0], measured[2]] == pytest.approx([expected[0], expected[2]], rel=1e-12, abs=0), strategy
            assert expected[0] > 0 or weights[rank] == 0


@pytest.mark.parametrize("strategy", EXACT)
def test_measuring_changes_no_bit(ranks: GlooPool, strategy: str) -> None:
    steps = Steps(strategy, batches=(24,) * 6, accumulation=2)
    measured = ranks.run(2, run_steps, dataclasses.replace(steps, measured=(0, 1, 4)))
    assert same_bits(measured[0]["state"], ranks.run(2, run_steps, steps)[0]["state"])


def test_every_strategy_is_tested() -> None:
    from scalestudy.training.registry import GRADIENT_SYNCS

    assert set(GRADIENT_SYNCS) == {*EXACT, *LOSSY}
