"""naive, flat and ring: their messages, and gradients that are missing or of two formats."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.profiler import profile

from scalestudy.training.distributed import Worker
from scalestudy.training.task import ShardLoss
from tests.support.gloo import GlooPool
from tests.support.training.helpers import examples_task
from tests.unit.training.gradient_sync.sync_steps import CLASSES, ELEMENTS, INPUTS, Run, Steps, shard_of


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
    sync = make_gradient_sync(strategy, ShardLoss(model, examples_task()), worker)
    inputs, targets, plan = shard_of(Steps(), 0, worker)
    sync.step_starts(plan)
    sync.module((inputs, targets))[0].mul(sync.factor(plan)).backward()
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
