"""The proof of data parallelism: k workers make the same parameters as one, and replicas equal to the last bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.support.gloo import GlooPool
from tests.training.helpers import (
    ALONE,
    largest_difference,
    make_config,
    run_training,
    same_bits,
    smallest_movement,
    state_of,
)
from training.config import TrainConfig
from training.data.loading import load_splits
from training.distributed import Worker
from training.gradient_sync import ShardLoss, cross_entropy_sum, make_gradient_sync
from training.models import LeNet, build_model
from training.seeding import epoch_order, seed_parameters

STRATEGIES = ["ddp", "naive"]
DOUBLE_TOLERANCE = 1e-11
SINGLE_TOLERANCE = 1e-5
MOVEMENT = 1e-3  # at least 100 × the larger tolerance


def lenet_config(**changes: Any) -> TrainConfig:
    """20 steps of LeNet in float64 with Xavier initialisation."""
    values: dict[str, Any] = {
        "model": "tests.training.workloads:DoubleLeNet",
        "model_args": {"init": "xavier"},
        "data_args": {"train_samples": 20 * 64, "test_samples": 32},
        "batch_size": 64,
        "learning_rate": 0.1,
    }
    return make_config(**(values | changes))


SPLITS: dict[str, dict[str, Any]] = {
    "even": {},
    "smaller last batch": {"data_args": {"train_samples": 19 * 64 + 37, "test_samples": 32}},
    "last batch smaller than the workers": {"data_args": {"train_samples": 19 * 64 + 1, "test_samples": 32}},
    "momentum and clipping": {"gradient_clip": 0.5, "learning_rate": 0.2},
}
UNEVEN = {"batch_size": 250, "data_args": {"train_samples": 1000, "test_samples": 32}, "epochs": 5}
WEIGHTED = {"weighted": (0.5, 0.25, 0.15, 0.1), "a worker without examples": (1.0, 0.0, 2.0, 1.0)}


def check_equals_one_worker(
    ranks: GlooPool, world_size: int, config: TrainConfig, one_worker: TrainConfig, tolerance: float
) -> None:
    """Replicas are equal to the bit, every tensor moved, and one worker gets the same parameters."""
    replicas = ranks.run(world_size, run_training, config)
    alone = _train_alone(ranks, one_worker)
    assert all(same_bits(replicas[0]["state"], replica["state"]) for replica in replicas), "replicas differ"
    assert max(replicas[0]["replica_max_diff"]) == 0.0, "the record says that replicas differ"
    assert smallest_movement(alone["first_state"], alone["state"]) >= MOVEMENT, "a tensor hardly moved"
    assert same_bits(alone["first_state"], replicas[0]["first_state"]), "other initial parameters"
    assert largest_difference(alone["state"], replicas[0]["state"]) <= tolerance, "parameters differ from one worker's"


_alone: dict[str, dict[str, Any]] = {}


def _train_alone(ranks: GlooPool, config: TrainConfig) -> dict[str, Any]:
    """One worker's outcome; the same config is trained once a session."""
    key = repr(config)
    if key not in _alone:
        (_alone[key],) = ranks.run(1, run_training, config)
    return _alone[key]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("split", SPLITS)
def test_any_number_of_workers_trains_like_one(ranks: GlooPool, split: str, world_size: int, strategy: str) -> None:
    config = lenet_config(**SPLITS[split], gradient_sync=strategy)
    check_equals_one_worker(ranks, world_size, config, lenet_config(**SPLITS[split]), DOUBLE_TOLERANCE)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_batch_that_does_not_divide_trains_like_one_worker(ranks: GlooPool, strategy: str) -> None:
    """B = 250 over 4 workers: 63 + 63 + 62 + 62."""
    config = lenet_config(**UNEVEN, gradient_sync=strategy)
    check_equals_one_worker(ranks, 4, config, lenet_config(**UNEVEN), DOUBLE_TOLERANCE)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("shards", WEIGHTED.values(), ids=WEIGHTED)
def test_any_split_trains_like_one_worker(ranks: GlooPool, shards: tuple[float, ...], strategy: str) -> None:
    config = lenet_config(shards=shards, gradient_sync=strategy)
    check_equals_one_worker(ranks, 4, config, lenet_config(), DOUBLE_TOLERANCE)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("world_size", [2, 4])
def test_float32_too(ranks: GlooPool, world_size: int, strategy: str) -> None:
    """With the product's own LeNet.

    Seed and rate are chosen: where an activation happens to lie within rounding of ReLU's kink, the two sums fall on
    different sides of it, and training amplifies that beyond 1e-5. The tests in float64 above need no such choice.
    """
    config = lenet_config(model="lenet", learning_rate=0.05, gradient_sync=strategy)
    one_worker = lenet_config(model="lenet", learning_rate=0.05)
    check_equals_one_worker(ranks, world_size, config, one_worker, SINGLE_TOLERANCE)


@pytest.mark.parametrize("world_size", [2, 4])
def test_the_proof_refuses_a_wrong_scale_factor(ranks: GlooPool, world_size: int) -> None:
    config = lenet_config(gradient_sync="tests.training.workloads:WrongScaleSync")
    with pytest.raises(AssertionError, match="parameters differ from one worker's"):
        check_equals_one_worker(ranks, world_size, config, lenet_config(), SINGLE_TOLERANCE)


@pytest.mark.parametrize("world_size", [2, 4])
def test_the_proof_refuses_the_rebinding_bug(ranks: GlooPool, world_size: int) -> None:
    config = lenet_config(gradient_sync="tests.training.workloads:RebindingSync")
    with pytest.raises(AssertionError, match="replicas differ"):
        check_equals_one_worker(ranks, world_size, config, lenet_config(), SINGLE_TOLERANCE)


def test_the_record_shows_the_rebinding_bug(ranks: GlooPool) -> None:
    config = lenet_config(gradient_sync="tests.training.workloads:RebindingSync")
    assert ranks.run(2, run_training, config)[0]["replica_max_diff"][0] > 0


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_batch_normalisation_bears_an_empty_shard(ranks: GlooPool, strategy: str) -> None:
    config = make_config(
        model="tests.training.workloads:BatchNormNet", model_args={}, shards=(1.0, 0.0), gradient_sync=strategy
    )
    replicas = ranks.run(2, run_training, config)
    assert replicas[0]["status"] == "finished"
    assert same_bits(replicas[0]["state"], replicas[1]["state"])


def test_one_worker_equals_plain_pytorch() -> None:
    """The reference itself against a loop written out: the mean loss of each global batch, SGD."""
    config = lenet_config()
    splits = load_splits(config, torch.device("cpu"))
    seed_parameters(config.seed)
    model = build_model(config.model, 10, 1, dict(config.model_args))
    optimizer = torch.optim.SGD(model.parameters(), config.learning_rate)
    for batch in epoch_order(1280, config.seed, 1).split(64):
        optimizer.zero_grad()
        outputs = model(splits.train_inputs[batch])
        torch.nn.functional.cross_entropy(outputs, splits.train_targets[batch]).backward()
        optimizer.step()
    ours = run_training(ALONE, config)["state"]
    assert largest_difference(ours, state_of(model)) < DOUBLE_TOLERANCE


def summed_gradients(worker: Worker, strategy: str, sizes: list[int]) -> list[torch.Tensor]:
    """Each parameter's gradient after one backward over shards of the given sizes."""
    torch.manual_seed(0)
    inputs, targets = torch.rand(sum(sizes), 1, 28, 28), torch.randint(10, (sum(sizes),))
    shard_loss = ShardLoss(LeNet(10, 1), cross_entropy_sum)
    sync = make_gradient_sync(strategy, shard_loss, worker)
    start = sum(sizes[: worker.rank])
    mine = slice(start, start + sizes[worker.rank])
    (sync.module(inputs[mine], targets[mine]) * (sync.loss_factor / sum(sizes))).backward()
    sync.synchronise()
    return [parameter.grad.numpy().copy() for parameter in shard_loss.trained_parameters()]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("sizes", [[8, 8], [1, 15], [16, 0], [5, 0, 0, 11], [7, 3, 2, 4]], ids=str)
def test_summed_gradients_are_those_of_the_whole_batch(ranks: GlooPool, sizes: list[int], strategy: str) -> None:
    per_rank = ranks.run(len(sizes), summed_gradients, strategy, sizes)
    (whole,) = ranks.run(1, summed_gradients, strategy, [sum(sizes)])
    for gradients in per_rank:
        for gradient, first, expected in zip(gradients, per_rank[0], whole, strict=True):
            assert gradient.tobytes() == first.tobytes()
            assert abs(gradient - expected).max() < 1e-6


def test_an_empty_shard_gives_zero_loss_and_zero_gradients() -> None:
    shard_loss = ShardLoss(LeNet(10, 1), cross_entropy_sum)
    loss = shard_loss(torch.empty(0, 1, 28, 28), torch.empty(0, dtype=torch.int64))
    loss.backward()
    assert loss.item() == 0.0
    assert all(parameter.grad.count_nonzero() == 0 for parameter in shard_loss.trained_parameters())
