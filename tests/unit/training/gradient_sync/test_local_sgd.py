"""Local SGD by itself, a step at a time."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from scalestudy.training.distributed import Worker
from scalestudy.training.gradient_sync import SyncOptions
from scalestudy.training.losses import cross_entropy
from scalestudy.training.seeding import seed_parameters
from tests.support.gloo import GlooPool
from tests.support.training.helpers import ALONE, largest_difference, same_bits, state_of
from tests.unit.training.gradient_sync.sync_steps import (
    TOLERANCE,
    Run,
    Steps,
    checkpoint_after,
    run_steps,
    shard_of,
    small_model,
    state_after_resuming,
)


def local_sgd_written_out(steps: Steps, world_size: int) -> dict[str, NDArray[Any]]:
    """Every worker's model in one process, updated and averaged by hand."""
    models = [_first_model(steps) for _ in range(world_size)]
    momenta = [[torch.zeros_like(parameter) for parameter in model.parameters()] for model in models]
    seen = [0] * world_size
    since = 0
    for index in range(len(steps.batches)):
        since += 1
        for rank, model in enumerate(models):
            inputs, targets, plan = shard_of(steps, index, Worker(rank, world_size, torch.device("cpu")))
            seen[rank] += plan.shard
            parameters = list(model.parameters())
            loss = cross_entropy(model(inputs), targets).sum() / max(plan.shard, 1)
            gradients = torch.autograd.grad(loss, parameters)
            with torch.no_grad():
                for parameter, gradient, momentum in zip(parameters, gradients, momenta[rank], strict=True):
                    momentum.mul_(steps.momentum).add_(gradient)
                    parameter -= steps.learning_rate * momentum
        if since == steps.options.local_steps or plan.is_last:
            _average(models, [count / sum(seen) for count in seen])
            seen, since = [0] * world_size, 0
    return state_of(models[0])


def _first_model(steps: Steps) -> torch.nn.Module:
    seed_parameters(3)
    return small_model(*steps.hidden).to(steps.dtype)


def _average(models: list[torch.nn.Module], shares: list[float]) -> None:
    with torch.no_grad():
        for replicas in zip(*(model.parameters() for model in models), strict=True):
            mean = sum(share * replica for share, replica in zip(shares, replicas, strict=True))
            for replica in replicas:
                replica.copy_(mean)


LOCAL = {
    "even": Steps("local_sgd", batches=(24,) * 10, epoch_steps=6, options=SyncOptions(local_steps=4)),
    "momentum": Steps(
        "local_sgd", batches=(24,) * 7, momentum=0.9, learning_rate=0.05, options=SyncOptions(local_steps=3)
    ),
    "uneven": Steps("local_sgd", batches=(25, 23, 7) * 2, weights=(3.0, 1.0, 2.0), options=SyncOptions(local_steps=4)),
    "a worker without examples": Steps(
        "local_sgd", batches=(24,) * 6, weights=(3.0, 0.0, 1.0), options=SyncOptions(local_steps=5)
    ),
    "shards that are empty at times": Steps("local_sgd", batches=(3, 1, 2, 1) * 2, options=SyncOptions(local_steps=4)),
}


@pytest.mark.parametrize("case", LOCAL)
def test_local_sgd_is_what_it_is_by_hand(ranks: GlooPool, case: str) -> None:
    replicas = ranks.run(3, run_steps, LOCAL[case])
    by_hand = local_sgd_written_out(LOCAL[case], 3)
    assert all(same_bits(replicas[0]["state"], replica["state"]) for replica in replicas)
    assert largest_difference(replicas[0]["state"], by_hand) < TOLERANCE
    exact = run_steps(ALONE, dataclasses.replace(LOCAL[case], weights=None))
    assert largest_difference(exact["state"], by_hand) > 1e-4


@pytest.mark.parametrize("world_size", [2, 4])
def test_local_sgd_that_averages_every_step_equals_ddp(ranks: GlooPool, world_size: int) -> None:
    steps = Steps("local_sgd", batches=(25, 23, 7, 2, 1), options=SyncOptions(local_steps=1))
    local = ranks.run(world_size, run_steps, steps)[0]
    ddp = ranks.run(world_size, run_steps, dataclasses.replace(steps, strategy="ddp"))[0]
    assert largest_difference(local["state"], ddp["state"]) < TOLERANCE
    assert local["details"] == {"local_sgd_averages": 5}


def test_local_sgd_sends_only_averages(ranks: GlooPool) -> None:
    """20 steps in two epochs of 10, averages after 8, 10, 18 and 20; 2 · 3 / 4 of 11,264 bytes each with 4 workers."""
    outcomes = ranks.run(4, run_steps, Steps("local_sgd", options=SyncOptions(local_steps=8)))
    assert [outcome["bytes"] for outcome in outcomes] == [4 * 16_896] * 4
    assert outcomes[0]["details"] == {"local_sgd_averages": 4}


def rest_and_difference(worker: Worker) -> list[tuple[bool, bool]]:
    """After each of eight steps with H = 3: whether the strategy is at rest, and whether this replica is rank 0's."""
    from scalestudy.training.distributed import largest_difference_from_first

    run = Run(worker, Steps("local_sgd", batches=(24,) * 8, options=SyncOptions(local_steps=3)))
    seen = []
    for index in range(8):
        run.step(index)
        seen.append((run.sync.at_rest, largest_difference_from_first(run.model.parameters(), worker) == 0))
    return seen


def test_local_sgd_is_at_rest_when_replicas_are_equal(ranks: GlooPool) -> None:
    apart, equal = (False, False), (True, True)
    assert ranks.run(2, rest_and_difference)[1] == [apart, apart, equal, apart, apart, equal, apart, equal]


def test_local_sgd_goes_on_counting(ranks: GlooPool) -> None:
    """To the bit from an average, momentum kept by each worker, at the same world size."""
    steps = Steps("local_sgd", momentum=0.5, options=SyncOptions(local_steps=4))
    checkpoints = ranks.run(2, checkpoint_after, steps, 8)
    whole = ranks.run(2, run_steps, steps)
    for one, other in zip(whole, ranks.run(2, state_after_resuming, steps, checkpoints, 8), strict=True):
        assert same_bits(one["state"], other["state"])
        assert one["details"] == other["details"] == {"local_sgd_averages": 6}  # after 4, 8, 10, 14, 18, 20


@pytest.mark.parametrize(
    ("spoilt", "told", "clip"),
    [((0, 1), 3, None), ((2, 0), 3, 0.1), ((3, 1), 3, None), ((5, 2), 7, 0.1), ((9, 1), 9, None)],
)
def test_local_sgd_diverges_on_all_ranks_at_the_next_average(
    ranks: GlooPool, spoilt: tuple[int, int], told: int, clip: float | None
) -> None:
    """With H = 4: a NaN of steps 0 to 3 is told in step 3; no rank has taken it into its parameters."""
    steps = Steps("local_sgd", spoilt=spoilt, clip=clip, momentum=0.5, options=SyncOptions(local_steps=4))
    for outcome in ranks.run(3, run_steps, steps):
        assert outcome["diverged_at"] == told
        assert all(np.isfinite(values).all() for values in outcome["state"].values())
