"""What is built on PyTorch's DistributedDataParallel and only approximates the batch's gradient: bf16 and PowerSGD."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from scalestudy.training.distributed import Worker, start_process_group, stop_process_group
from scalestudy.training.gradient_sync import SyncOptions
from scalestudy.training.losses import cross_entropy
from tests.support.gloo import GlooPool
from tests.support.training.helpers import ALONE, largest_difference, same_bits
from tests.unit.training.gradient_sync.sync_steps import (
    ELEMENTS,
    TOLERANCE,
    Run,
    Steps,
    checkpoint_after,
    resumed,
    run_steps,
    saved,
    shard_of,
    state_after_resuming,
)

COMPRESSED = (24 + 32) * 2 + 32 + (32 + 16) * 2 + 16 + 16 * 5  # 336: P and Q of rank 2 of two layers, the rest whole


def movement(outcome: dict[str, Any]) -> float:
    """How far the parameters have come."""
    return largest_difference(outcome["first_state"], outcome["state"])


@pytest.mark.parametrize("world_size", [2, 4])
def test_bf16_is_near_the_exact_sum(ranks: GlooPool, world_size: int) -> None:
    """Each gradient carries a relative error of some 2⁻⁸; over 20 steps 1 % of the way is its stated tolerance."""
    steps = Steps("bf16", dtype=torch.float32, momentum=0.5)
    replicas = ranks.run(world_size, run_steps, steps)
    exact = run_steps(ALONE, steps)
    assert all(same_bits(replicas[0]["state"], replica["state"]) for replica in replicas)
    assert 0 < largest_difference(replicas[0]["state"], exact["state"]) < 0.01 * movement(exact)


def test_powersgd_starts_exact_and_stays_near(ranks: GlooPool) -> None:
    """The first 2 of 10 steps are the exact ones; rank 2 of 24 stays within half of the way, its stated tolerance."""
    for count in (2, 10):
        steps = Steps("powersgd", batches=(24,) * count)
        replicas = ranks.run(4, run_steps, steps)
        exact = run_steps(ALONE, steps)
        assert all(same_bits(replicas[0]["state"], replica["state"]) for replica in replicas)
        difference = largest_difference(replicas[0]["state"], exact["state"])
        if count == 2:
            assert difference < TOLERANCE
        else:
            assert TOLERANCE < difference < 0.5 * movement(exact)


def test_powersgd_tells_what_it_compressed(ranks: GlooPool) -> None:
    """20 steps, 2 exact: 18 compressed; between 2 workers an allreduce of n bytes counts n."""
    outcome = ranks.run(2, run_steps, Steps("powersgd"))[0]
    assert outcome["details"] == {"powersgd_compressed_steps": 18, "powersgd_sent_share": COMPRESSED / ELEMENTS}
    assert outcome["bytes"] == 8 * (2 * ELEMENTS + 18 * COMPRESSED)


@pytest.mark.parametrize(("total_steps", "compressed"), [(20, 4), (50, 1), (60, 0), (3, 4)])
def test_powersgd_starts_after_a_tenth_of_the_steps(ranks: GlooPool, total_steps: int, compressed: int) -> None:
    """max(2, a tenth): of six steps the last 4, 1, none, and 4 are compressed."""
    steps = Steps("powersgd", batches=(24,) * 6, options=SyncOptions(total_steps=total_steps))
    assert ranks.run(2, run_steps, steps)[0]["details"]["powersgd_compressed_steps"] == compressed


def test_powersgd_of_a_full_rank_compresses_nothing(ranks: GlooPool) -> None:
    steps = Steps("powersgd", batches=(24,) * 5, options=SyncOptions(total_steps=5, powersgd_rank=32))
    exact = run_steps(ALONE, steps)
    outcome = ranks.run(2, run_steps, steps)[0]
    assert largest_difference(outcome["state"], exact["state"]) < TOLERANCE
    assert outcome["details"]["powersgd_sent_share"] == 1.0


@pytest.mark.parametrize("count", [2, 3, 6])
def test_powersgd_resumes_to_the_bit(ranks: GlooPool, count: int) -> None:
    """Before, at and after the first compressed step."""
    steps = Steps("powersgd", batches=(16,) * 8, momentum=0.5)
    checkpoints = ranks.run(2, checkpoint_after, steps, count)
    assert len(checkpoints[0]["sync"]["errors"]) == (1 if count > 2 else 0)
    whole = ranks.run(2, run_steps, steps)
    for one, other in zip(whole, ranks.run(2, state_after_resuming, steps, checkpoints, count), strict=True):
        assert same_bits(one["state"], other["state"])
        assert one["details"] == other["details"]


def test_powersgd_needs_its_rehearsal(ranks: GlooPool) -> None:
    """Without it the error memory meets the tensors in another order: the test above can fail."""
    steps = Steps("powersgd", batches=(16,) * 6)
    checkpoints = ranks.run(2, checkpoint_after, steps, 4)
    unrehearsed = ranks.run(2, state_after_resuming, steps, checkpoints, 4, False)[0]
    assert not same_bits(unrehearsed["state"], ranks.run(2, run_steps, steps)[0]["state"])


NINE_STEPS = Steps("powersgd", batches=(24,) * 9)


def flat(tensors: Any) -> NDArray[Any]:
    """All of the numbers in one row."""
    return torch.cat([tensor.detach().flatten() for tensor in tensors]).numpy().copy()


def batch_gradient(run: Run, index: int) -> NDArray[Any]:
    """The exact gradient of a whole batch at the model as it is."""
    inputs, targets, _ = shard_of(run.steps, index, ALONE)
    loss = cross_entropy(run.model(inputs), targets).mean()
    return flat(torch.autograd.grad(loss, list(run.model.parameters())))


def asked_in(run: Run, first: int, stop: int) -> NDArray[Any]:
    """The sum of the batches' gradients in these steps, which are made."""
    asked = np.zeros(ELEMENTS)
    for index in range(first, stop):
        asked += batch_gradient(run, index)
        run.step(index)
    return asked


def checkpoint_with_sums(worker: Worker) -> dict[str, Any]:
    """This rank's checkpoint after five steps, the parameters before them, and what their batches asked for."""
    run = Run(worker, NINE_STEPS)
    start, asked = flat(run.model.parameters()), asked_in(run, 0, 5)
    return {**saved(run), "start": torch.from_numpy(start), "asked": torch.from_numpy(asked)}


def unsent_after_resuming(worker: Worker, checkpoints: list[dict[str, Any]]) -> dict[str, NDArray[Any]]:
    """What the batches asked for and the updates did not yet apply, and this rank's error memory."""
    run, start, before = resumed(worker, NINE_STEPS, checkpoints), checkpoints[0]["start"], checkpoints[0]["asked"]
    memory = run.sync.state()["errors"][0].numpy().copy()
    asked = before.numpy() + asked_in(run, 5, 9)
    applied = (start.numpy() - flat(run.model.parameters())) / NINE_STEPS.learning_rate
    return {"unsent": asked - applied, "loaded": memory, "errors": run.sync.state()["errors"][0].numpy()}


@pytest.fixture(scope="module")
def checkpoints_of_four(ranks: GlooPool) -> list[dict[str, Any]]:
    """After five of nine steps."""
    return ranks.run(4, checkpoint_with_sums)


@pytest.mark.parametrize("world_size", [2, 3])
def test_powersgd_loses_nothing_at_another_world_size(
    ranks: GlooPool, checkpoints_of_four: list[dict[str, Any]], world_size: int
) -> None:
    """What the batches' gradients hold and the updates do not is, to rounding, the mean error memory of the ranks.

    Without momentum the updates sum to the gradients that were applied. The memory lies in the bucket's order, hence
    the comparison of sorted numbers.
    """
    mean = np.mean([checkpoint["sync"]["errors"][0].numpy() for checkpoint in checkpoints_of_four], axis=0)
    after = ranks.run(world_size, unsent_after_resuming, checkpoints_of_four)
    assert all(np.array_equal(outcome["loaded"], after[0]["loaded"]) for outcome in after)
    assert np.allclose(after[0]["loaded"], mean, rtol=0, atol=1e-15)
    unsent, errors = np.sort(after[0]["unsent"]), np.sort(np.mean([outcome["errors"] for outcome in after], axis=0))
    assert np.abs(unsent).max() > 1e-3
    assert np.abs(unsent - errors).max() < TOLERANCE


def test_powersgd_of_a_model_larger_than_a_bucket(ranks: GlooPool) -> None:
    """1.4 MB of gradients, of which PyTorch would make two buckets."""
    replicas = ranks.run(4, run_steps, Steps("powersgd", batches=(16,) * 4, hidden=(400, 400)))
    assert all(same_bits(replicas[0]["state"], replica["state"]) for replica in replicas)
    assert replicas[0]["details"]["powersgd_compressed_steps"] == 2


def end_often(worker: Worker, folder: str) -> int:
    """Join a process group, train and leave it, again and again, with Python's threads taking turns hardly ever."""
    stop_process_group()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(20)
    try:
        for turn in range(20):
            start_process_group(worker.rank, 2, init_method=f"file://{folder}/{turn}", timeout_seconds=60)
            Run(worker, Steps("powersgd", batches=(8,) * 3)).go_on(0)
            stop_process_group()
    finally:
        sys.setswitchinterval(interval)
    return turn + 1


def test_powersgd_lets_go_of_its_process_group(ranks: GlooPool, tmp_path: Path) -> None:
    """A thread of gloo that still ends PowerSGD's callback must not be the group's last holder: that aborts."""
    assert ranks.run(2, end_often, str(tmp_path)) == [20, 20]


def load_from_one_worker(worker: Worker) -> dict[str, Any]:
    """What PowerSGD tells after the checkpoint of a single worker, which had no strategy."""
    run = Run(worker, Steps("powersgd", batches=(24,) * 4))
    run.sync.load_state([{}])
    run.go_on(0)
    return run.sync.details()


def test_powersgd_goes_on_from_a_single_worker(ranks: GlooPool) -> None:
    assert ranks.run(2, load_from_one_worker)[0]["powersgd_compressed_steps"] == 2
