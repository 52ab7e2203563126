"""The strategies by themselves, a step at a time.

First the exact ones: sums, bits, bytes, messages, measured norms, divergence. Then bf16, PowerSGD and local SGD, which
only approximate the batch's gradient.
"""

from __future__ import annotations

import dataclasses
import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.profiler import profile

from scalestudy.training.distributed import Worker, start_process_group, stop_process_group
from scalestudy.training.gradient_sync import SyncOptions
from scalestudy.training.gradient_sync.base import FlatBuffer, by_dtype
from scalestudy.training.losses import ShardLoss, cross_entropy
from scalestudy.training.models import LeNet
from scalestudy.training.seeding import seed_parameters
from tests.support.gloo import GlooPool
from tests.support.training.helpers import largest_difference, same_bits, smallest_movement, state_of
from tests.support.training.sync_steps import (
    CLASSES,
    EXACT,
    INPUTS,
    LOSSY,
    Run,
    Steps,
    run_steps,
    shard_of,
    small_model,
)

TOLERANCE = 1e-12  # of parameters in float64, after 20 steps
MOVEMENT = 1e-3
ELEMENTS = 24 * 32 + 32 + 32 * 16 + 16 + 16 * 5  # 1,408 in the small model
BYTES = 8 * ELEMENTS  # 11,264

CASES: dict[str, Steps] = {
    "even": Steps(),
    "batches that do not divide": Steps(batches=(25, 23, 7, 2, 1) * 4),
    "uneven, and one worker without examples": Steps(weights=(3.0, 0.0, 2.0, 1.0)),
    "micro-batches of uneven shards": Steps(accumulation=2, batches=(25, 1) * 10, weights=(3.0, 0.0, 2.0, 1.0)),
    "gradients of 1.4 MB, two of DistributedDataParallel's buckets": Steps(batches=(16,) * 5, hidden=(400, 400)),
    "momentum and clipping": Steps(momentum=0.9, clip=0.3, learning_rate=0.1),
}


@pytest.mark.parametrize(("case", "world_size"), [*((case, 4) for case in CASES), ("batches that do not divide", 3)])
def test_every_exact_strategy_trains_like_one_worker(ranks: GlooPool, case: str, world_size: int) -> None:
    (alone,) = ranks.run(1, run_steps, dataclasses.replace(CASES[case], accumulation=1, weights=None))
    assert smallest_movement(alone["first_state"], alone["state"]) > MOVEMENT
    for strategy in EXACT:
        steps = dataclasses.replace(CASES[case], strategy=strategy)
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


def transfers(worker: Worker, strategy: str) -> list[tuple[str, int]]:
    """Every transfer of one synchronisation, as PyTorch's profiler saw them: its name and its elements."""
    run = Run(worker, Steps(strategy=strategy))
    run.backward(0)
    with profile(record_shapes=True) as seen:
        run.sync.synchronise()
    found = [(event.name, event.input_shapes) for event in seen.events() if event.name.startswith("gloo:")]
    return [(name.removeprefix("gloo:"), torch.Size(shapes[0]).numel()) for name, shapes in found]


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_a_ring_is_made_of_messages_of_an_equal_share(ranks: GlooPool, world_size: int) -> None:
    """Each worker sends, and receives, 2 (k - 1) messages of ⌈n / k⌉ numbers, and nothing else."""
    chunk = {2: 704, 3: 470, 4: 352}[world_size]
    for found in ranks.run(world_size, transfers, "ring"):
        assert sorted(found) == sorted([("recv", chunk), ("send", chunk)] * 2 * (world_size - 1))


def test_flat_is_one_allreduce_and_naive_two_collectives_a_parameter(ranks: GlooPool) -> None:
    sizes = [24 * 32, 32, 32 * 16, 16, 16 * 5]
    for found in ranks.run(2, transfers, "flat"):
        assert found == [("all_reduce", ELEMENTS)]
    for found in ranks.run(2, transfers, "naive"):
        assert [name for name, _ in found] == ["gather", "broadcast"] * 5
        assert [count for name, count in found if name == "broadcast"] == sizes


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


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("weights", [(1.0, 1.0), (3.0, 1.0), (1.0, 0.0)], ids=str)
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


@pytest.mark.parametrize("strategy", [*EXACT, "bf16", "powersgd"])
def test_no_rank_updates_after_one_met_a_nan(ranks: GlooPool, strategy: str) -> None:
    """The parameters are those of the step before, on every rank."""
    spoilt = ranks.run(3, run_steps, Steps(strategy, spoilt=(4, 1)))
    before = ranks.run(3, run_steps, Steps(strategy, batches=(24,) * 4))
    assert [outcome["diverged_at"] for outcome in spoilt] == [4] * 3
    assert all(same_bits(outcome["state"], before[0]["state"]) for outcome in spoilt)


class OwnWords(torch.nn.Module):
    """Parameters of two number formats, one of them unused, and one that is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = torch.nn.Linear(INPUTS, CLASSES).double()
        self.narrow = torch.nn.Parameter(torch.ones(CLASSES))
        self.unused = torch.nn.Parameter(torch.ones(2, dtype=torch.float64))
        self.frozen = torch.nn.Parameter(torch.ones(CLASSES), requires_grad=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.wide(inputs) * self.narrow + self.frozen


def gradients_of_own_words(worker: Worker, strategy: str) -> list[Any]:
    """Every parameter's gradient after one synchronisation."""
    from scalestudy.training.gradient_sync import make_gradient_sync

    torch.manual_seed(0)
    model = OwnWords()
    sync = make_gradient_sync(strategy, ShardLoss(model, cross_entropy), worker)
    inputs, targets, plan = shard_of(Steps(), 0, worker)
    sync.step_starts(plan)
    sync.module(inputs, targets).mul(sync.factor(plan)).backward()
    sync.synchronise()
    return [None if each.grad is None else each.grad.numpy().copy() for each in model.parameters()]


@pytest.mark.parametrize("strategy", ["naive", "flat", "ring"])
def test_mixed_formats_and_unused_parameters(ranks: GlooPool, strategy: str) -> None:
    """A parameter without a gradient counts as zeros; one that is not trained has none."""
    first, second = ranks.run(2, gradients_of_own_words, strategy)
    (whole,) = ranks.run(1, gradients_of_own_words, strategy)
    narrow, unused, frozen, weight, bias = range(5)
    assert first[frozen] is None
    assert not first[unused].any()
    for position in (narrow, weight, bias):
        assert first[position].tobytes() == second[position].tobytes()
        assert first[position].dtype == whole[position].dtype
        assert abs(first[position] - whole[position]).max() < 1e-6


def test_an_empty_shard_gives_zero_loss_and_zero_gradients() -> None:
    shard_loss = ShardLoss(LeNet(10, 1), cross_entropy)
    loss = shard_loss(torch.empty(0, 1, 28, 28), torch.empty(0, dtype=torch.int64))
    loss.backward()
    assert loss.item() == 0.0
    assert all(parameter.grad.count_nonzero() == 0 for parameter in shard_loss.trained_parameters())


def test_a_flat_buffer_keeps_shapes_and_memory_orders() -> None:
    image = torch.arange(120.0).reshape(2, 3, 4, 5).to(memory_format=torch.channels_last)
    tensors = [torch.tensor(7.0), image, torch.arange(6.0).reshape(2, 3).t()]
    flat = FlatBuffer(tensors, multiple_of=5)
    flat.copy_in(tensors)
    assert flat.memory.shape == (130,)  # 1 + 120 + 6, padded
    assert flat.memory[1:121].tolist() == image.permute(0, 2, 3, 1).flatten().tolist()
    assert flat.memory[127:].tolist() == [0.0] * 3
    assert [view.stride() for view in flat.views] == [tensor.stride() for tensor in tensors]
    flat.memory.mul_(2)
    doubled = [torch.empty_like(tensor) for tensor in tensors]
    flat.copy_out(doubled)
    assert all(torch.equal(one, 2 * other) for one, other in zip(doubled, tensors, strict=True))
    flat.copy_in([None, image, None])
    assert flat.memory[0] == 0.0 == flat.memory[121:].abs().sum()


def test_tensors_of_one_format_go_together() -> None:
    formats = [torch.float32, torch.float64, torch.float32]
    assert by_dtype([torch.zeros(1, dtype=each) for each in formats]) == [[0, 2], [1]]


def test_every_strategy_is_tested() -> None:
    from scalestudy.training.registry import GRADIENT_SYNCS

    assert set(GRADIENT_SYNCS) == {*EXACT, *LOSSY}


# --- bf16, PowerSGD, local SGD ----------------------------------------------------------------------------------------

COMPRESSED = (24 + 32) * 2 + 32 + (32 + 16) * 2 + 16 + 16 * 5  # 336: P and Q of rank 2 of two layers, the rest whole


def movement(outcome: dict[str, Any]) -> float:
    """How far the parameters have come."""
    return largest_difference(outcome["first_state"], outcome["state"])


@pytest.mark.parametrize("world_size", [2, 4])
def test_bf16_is_near_the_exact_sum(ranks: GlooPool, world_size: int) -> None:
    """Each gradient carries a relative error of some 2⁻⁸; over 20 steps 1 % of the way is its stated tolerance."""
    steps = Steps("bf16", dtype=torch.float32, momentum=0.5)
    replicas = ranks.run(world_size, run_steps, steps)
    (exact,) = ranks.run(1, run_steps, steps)
    assert all(same_bits(replicas[0]["state"], replica["state"]) for replica in replicas)
    assert 0 < largest_difference(replicas[0]["state"], exact["state"]) < 0.01 * movement(exact)


def test_powersgd_starts_exact_and_stays_near(ranks: GlooPool) -> None:
    """The first 2 of 20 steps are the exact ones; rank 2 of 24 stays within half of the way, its stated tolerance."""
    for count in (2, 20):
        steps = Steps("powersgd", batches=(24,) * count)
        replicas = ranks.run(4, run_steps, steps)
        (exact,) = ranks.run(1, run_steps, steps)
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
    steps = Steps("powersgd", options=SyncOptions(total_steps=20, powersgd_rank=32))
    (exact,) = ranks.run(1, run_steps, steps)
    outcome = ranks.run(2, run_steps, steps)[0]
    assert largest_difference(outcome["state"], exact["state"]) < TOLERANCE
    assert outcome["details"]["powersgd_sent_share"] == 1.0


def batch_gradient(run: Run, index: int) -> NDArray[Any]:
    """The exact gradient of a whole batch at the model as it is, all parameters in one row."""
    inputs, targets, _ = shard_of(run.steps, index, Worker(0, 1, torch.device("cpu")))
    loss = cross_entropy(run.model(inputs), targets).mean()
    return flat(torch.autograd.grad(loss, list(run.model.parameters())))


def flat(tensors: Any) -> NDArray[Any]:
    """All of the numbers in one row."""
    return torch.cat([tensor.detach().flatten() for tensor in tensors]).numpy().copy()


def through_a_file(state: Any) -> Any:
    """Written and read as a checkpoint may be: nothing but tensors, numbers and strings passes."""
    stream = io.BytesIO()
    torch.save(state, stream)
    stream.seek(0)
    return torch.load(stream, weights_only=True)


def saved(run: Run) -> dict[str, Any]:
    """What a checkpoint of this rank holds."""
    parts = {"model": run.model.state_dict(), "optimizer": run.optimizer.state_dict(), "sync": run.sync.state()}
    return through_a_file(parts)


def resumed(worker: Worker, steps: Steps, checkpoints: list[dict[str, Any]], rehearsed: bool = True) -> Run:
    """A new training that takes up the checkpoints of all ranks, after a first backward that is thrown away."""
    run = Run(worker, steps)
    if rehearsed:
        run.backward(0)
    checkpoints = through_a_file(checkpoints)  # an optimizer goes on in the very tensors that it is given
    mine = checkpoints[worker.rank]
    run.model.load_state_dict(mine["model"])
    run.optimizer.load_state_dict(mine["optimizer"])
    run.sync.load_state([checkpoint["sync"] for checkpoint in checkpoints])
    return run


def checkpoint_after(worker: Worker, steps: Steps, count: int) -> dict[str, Any]:
    """This rank's checkpoint after so many steps, with what the steps applied in all and what their batches asked."""
    run = Run(worker, steps)
    start, asked = flat(run.model.parameters()), 0.0
    for index in range(count):
        asked = asked + batch_gradient(run, index)
        run.step(index)
    return {**saved(run), "start": torch.from_numpy(start), "asked": torch.from_numpy(asked)}


def state_after_resuming(
    worker: Worker, steps: Steps, checkpoints: list[dict[str, Any]], first: int, rehearsed: bool = True
) -> dict[str, Any]:
    """Where the steps from `first` on lead."""
    run = resumed(worker, steps, checkpoints, rehearsed)
    run.go_on(first)
    return {"state": state_of(run.model), "details": run.sync.details()}


@pytest.mark.parametrize("count", [1, 2, 3, 11])
def test_powersgd_resumes_to_the_bit(ranks: GlooPool, count: int) -> None:
    """Before, at and after the first compressed step."""
    steps = Steps("powersgd", batches=(16,) * 14, momentum=0.5)
    checkpoints = ranks.run(2, checkpoint_after, steps, count)
    assert len(checkpoints[0]["sync"]["errors"]) == (1 if count > 2 else 0)
    whole = ranks.run(2, run_steps, steps)
    for one, other in zip(whole, ranks.run(2, state_after_resuming, steps, checkpoints, count), strict=True):
        assert same_bits(one["state"], other["state"])
        assert one["details"] == other["details"]


def test_powersgd_needs_its_rehearsal(ranks: GlooPool) -> None:
    """Without it the error memory meets the tensors in another order: the test above can fail."""
    steps = Steps("powersgd", batches=(16,) * 14)
    checkpoints = ranks.run(2, checkpoint_after, steps, 8)
    unrehearsed = ranks.run(2, state_after_resuming, steps, checkpoints, 8, False)[0]
    assert not same_bits(unrehearsed["state"], ranks.run(2, run_steps, steps)[0]["state"])


def unsent_after_resuming(
    worker: Worker, steps: Steps, checkpoints: list[dict[str, Any]], first: int
) -> dict[str, NDArray[Any]]:
    """What the batches asked for and the updates did not yet apply, and this rank's error memory."""
    run, asked = resumed(worker, steps, checkpoints), checkpoints[0]["asked"].numpy()
    memory = run.sync.state()["errors"][0].numpy().copy()
    for index in range(first, len(steps.batches)):
        asked = asked + batch_gradient(run, index)
        run.step(index)
    applied = (checkpoints[0]["start"].numpy() - flat(run.model.parameters())) / steps.learning_rate
    return {"unsent": asked - applied, "loaded": memory, "errors": run.sync.state()["errors"][0].numpy()}


@pytest.mark.parametrize("world_size", [2, 3])
def test_powersgd_loses_nothing_at_another_world_size(ranks: GlooPool, world_size: int) -> None:
    """What the batches' gradients hold and the updates do not is, to rounding, the mean error memory of the ranks.

    Without momentum the updates sum to the gradients that were applied. The memory lies in the bucket's order, hence
    the comparison of sorted numbers.
    """
    steps = Steps("powersgd", batches=(24,) * 14)
    checkpoints = ranks.run(4, checkpoint_after, steps, 6)
    mean = np.mean([checkpoint["sync"]["errors"][0].numpy() for checkpoint in checkpoints], axis=0)
    after = ranks.run(world_size, unsent_after_resuming, steps, checkpoints, 6)
    assert all(np.array_equal(outcome["loaded"], after[0]["loaded"]) for outcome in after)
    assert np.allclose(after[0]["loaded"], mean, rtol=0, atol=1e-15)
    unsent, errors = np.sort(after[0]["unsent"]), np.sort(np.mean([outcome["errors"] for outcome in after], axis=0))
    assert np.abs(unsent).max() > 1e-3
    assert np.abs(unsent - errors).max() < TOLERANCE


def test_powersgd_of_a_model_larger_than_a_bucket(ranks: GlooPool) -> None:
    """1.4 MB of gradients, of which PyTorch would make two buckets."""
    replicas = ranks.run(4, run_steps, Steps("powersgd", batches=(16,) * 6, hidden=(400, 400)))
    assert all(same_bits(replicas[0]["state"], replica["state"]) for replica in replicas)
    assert replicas[0]["details"]["powersgd_compressed_steps"] == 4


def end_often(worker: Worker, folder: str) -> int:
    """Join a process group, train and leave it, again and again, with Python's threads taking turns hardly ever."""
    stop_process_group()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(20)
    try:
        for turn in range(40):
            start_process_group(worker.rank, 2, init_method=f"file://{folder}/{turn}", timeout_seconds=60)
            Run(worker, Steps("powersgd", batches=(8,) * 3)).go_on(0)
            stop_process_group()
    finally:
        sys.setswitchinterval(interval)
    return turn + 1


def test_powersgd_lets_go_of_its_process_group(ranks: GlooPool, tmp_path: Path) -> None:
    """A thread of gloo that still ends PowerSGD's callback must not be the group's last holder: that aborts."""
    assert ranks.run(2, end_often, str(tmp_path)) == [40, 40]


def load_from_one_worker(worker: Worker) -> dict[str, Any]:
    """What PowerSGD tells after the checkpoint of a single worker, which had no strategy."""
    run = Run(worker, Steps("powersgd", batches=(24,) * 4))
    run.sync.load_state([{}])
    run.go_on(0)
    return run.sync.details()


def test_powersgd_goes_on_from_a_single_worker(ranks: GlooPool) -> None:
    assert ranks.run(2, load_from_one_worker)[0]["powersgd_compressed_steps"] == 2


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
    "even": Steps("local_sgd", options=SyncOptions(local_steps=4)),
    "momentum": Steps("local_sgd", momentum=0.9, learning_rate=0.05, options=SyncOptions(local_steps=3)),
    "uneven": Steps("local_sgd", batches=(25, 23, 7) * 5, weights=(3.0, 1.0, 2.0), options=SyncOptions(local_steps=4)),
    "a worker without examples": Steps("local_sgd", weights=(3.0, 0.0, 1.0), options=SyncOptions(local_steps=5)),
    "shards that are empty at times": Steps("local_sgd", batches=(3, 1, 2, 1) * 5, options=SyncOptions(local_steps=4)),
}


@pytest.mark.parametrize("case", LOCAL)
def test_local_sgd_is_what_it_is_by_hand(ranks: GlooPool, case: str) -> None:
    replicas = ranks.run(3, run_steps, LOCAL[case])
    by_hand = local_sgd_written_out(LOCAL[case], 3)
    assert all(same_bits(replicas[0]["state"], replica["state"]) for replica in replicas)
    assert largest_difference(replicas[0]["state"], by_hand) < TOLERANCE
    (exact,) = ranks.run(1, run_steps, dataclasses.replace(LOCAL[case], weights=None))
    assert largest_difference(exact["state"], by_hand) > 1e-4


@pytest.mark.parametrize("world_size", [2, 4])
def test_local_sgd_that_averages_every_step_equals_ddp(ranks: GlooPool, world_size: int) -> None:
    steps = Steps("local_sgd", batches=(25, 23, 7, 2, 1) * 4, options=SyncOptions(local_steps=1))
    local = ranks.run(world_size, run_steps, steps)[0]
    ddp = ranks.run(world_size, run_steps, dataclasses.replace(steps, strategy="ddp"))[0]
    assert largest_difference(local["state"], ddp["state"]) < TOLERANCE
    assert local["details"] == {"local_sgd_averages": 20}


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


@pytest.mark.parametrize("clip", [None, 0.1])
@pytest.mark.parametrize(("spoilt", "told"), [((0, 1), 3), ((2, 0), 3), ((3, 1), 3), ((5, 2), 7), ((9, 1), 9)])
def test_local_sgd_diverges_on_all_ranks_at_the_next_average(
    ranks: GlooPool, spoilt: tuple[int, int], told: int, clip: float | None
) -> None:
    """With H = 4: a NaN of steps 0 to 3 is told in step 3; no rank has taken it into its parameters."""
    steps = Steps("local_sgd", spoilt=spoilt, clip=clip, momentum=0.5, options=SyncOptions(local_steps=4))
    for outcome in ranks.run(3, run_steps, steps):
        assert outcome["diverged_at"] == told
        assert all(np.isfinite(values).all() for values in outcome["state"].values())
