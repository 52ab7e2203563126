"""The exact strategies by themselves: sums, bits, bytes, messages, measured norms, divergence."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch.profiler import profile

from scalestudy.training.distributed import Worker
from scalestudy.training.gradient_sync.base import FlatBuffer, by_dtype
from scalestudy.training.losses import ShardLoss, cross_entropy
from scalestudy.training.models import LeNet
from tests.support.gloo import GlooPool
from tests.training.helpers import largest_difference, same_bits, smallest_movement
from tests.training.sync_steps import CLASSES, EXACT, INPUTS, LOSSY, Run, Steps, run_steps, shard_of

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
