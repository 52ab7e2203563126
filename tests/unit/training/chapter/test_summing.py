"""`bench allreduce`: the book's list version, its bug and its cure, and real ranks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scalestudy.training.chapter.measuring import Experiment
from scalestudy.training.chapter.summing import (
    Bandwidth,
    allreduce,
    bandwidth_metrics,
    beside_each_other,
    get_params,
    one_step,
    rebinding_allreduce,
    run,
    split_batch,
    time_sums,
)
from tests.support.gloo import GlooPool

CPU = torch.device("cpu")


@given(st.lists(st.integers(-50, 50), min_size=1, max_size=6))
def test_allreduce_writes_the_sum_into_every_tensor(values: list[int]) -> None:
    data = [torch.full((2, 3), float(value)) for value in values]
    held = list(data)
    allreduce(data)
    for tensor, before in zip(data, held, strict=True):
        assert tensor is before
        assert torch.equal(tensor, torch.full((2, 3), float(sum(values))))


@pytest.mark.parametrize("replicas", [2, 4])
def test_the_rebinding_bug_leaves_replicas_apart_and_the_cure_does_not(replicas: int) -> None:
    total = replicas * (replicas + 1) / 2
    entries, gradients, difference = one_step(rebinding_allreduce, [CPU] * replicas)
    assert entries.tolist() == [total] * replicas  # the list looks right
    assert gradients.tolist() == [total, *(number + 1.0 for number in range(1, replicas))]  # what replicas hold is not
    assert difference == pytest.approx(0.1 * (total - 2))  # replica 1 stepped with its own gradient, 2
    entries, gradients, difference = one_step(allreduce, [CPU] * replicas)
    assert entries.tolist() == gradients.tolist() == [total] * replicas
    assert difference == 0.0


def test_the_table_tells_them_apart() -> None:
    table, metrics = beside_each_other([[CPU] * 2, [CPU] * 3])
    assert table.column("replicas equal?") == ["no", "yes", "no", "yes"]
    assert metrics["in_place_3_replicas_difference"] == 0.0 < metrics["rebinding_3_replicas_difference"]


def test_parameters_are_copies_with_gradients_of_their_own() -> None:
    original = torch.ones(3, requires_grad=True)
    (copy,) = get_params([original], CPU)
    copy.sum().backward()
    assert copy.is_leaf
    assert copy.data_ptr() != original.data_ptr()
    assert original.grad is None
    assert copy.grad is not None


@given(st.integers(0, 9), st.integers(1, 5))
def test_a_split_batch_is_the_batch(examples: int, count: int) -> None:
    images, labels = torch.arange(examples * 2).reshape(examples, 2), torch.arange(examples)
    parts, part_labels = split_batch(images, labels, [CPU] * count)
    assert torch.equal(torch.cat(parts), images)
    assert torch.equal(torch.cat(part_labels), labels)
    lengths = [len(part) for part in parts]
    assert lengths == [len(part) for part in part_labels]
    assert max(lengths) - min(lengths) <= 1


def test_images_without_labels_are_refused() -> None:
    with pytest.raises(ValueError, match="labels: 3 for 4 images; give as many"):
        split_batch(torch.zeros(4, 2), torch.zeros(3), [CPU])


def test_bandwidths_are_those_of_nccl_tests() -> None:
    two, four = (Bandwidth("gloo", world_size, 8_000_000, 0.004) for world_size in (2, 4))
    assert two.algorithm == four.algorithm == 2e9  # 8 MB in 4 ms
    assert two.bus == 2e9  # 2 · (2 - 1) ÷ 2 = 1
    assert four.bus == 3e9  # 2 · (4 - 1) ÷ 4 = 1.5
    assert bandwidth_metrics([two, four])["gloo_4_bus_bytes_per_second"] == 3e9


@pytest.mark.parametrize("world_size", [2, 4])
def test_real_ranks_sum(ranks: GlooPool, world_size: int) -> None:
    """They raise if a sum is wrong."""
    for seconds in ranks.run(world_size, time_sums, (1024, 4096), 2):
        assert len(seconds) == 2
        assert min(seconds) > 0


@pytest.fixture(scope="module")
def found() -> Experiment:
    return run(CPU, quick=True)


def test_the_books_tables_are_printed(found: Experiment) -> None:
    params, sums, split, _, bandwidths = found.tables
    assert params.column("b1.grad") == ["None", "None"]
    assert set(params.column("the original's memory?")) == {"own copy"}
    assert sums.column("before") == ["[[1.0, 1.0]]", "[[2.0, 2.0]]"]
    assert sums.column("after") == ["[[3.0, 3.0]]"] * 2
    assert split.column("labels after") == ["[0, 1]", "[2, 3]", "[0, 1, 2]", "[3, 4]"]
    assert bandwidths.column("ranks") == [2, 2]
    assert any("nn.DataParallel" in note for note in found.notes)
