"""The few collectives, with and without a process group."""

from __future__ import annotations

import math

import pytest
import torch

from scalestudy.training.distributed import (
    Worker,
    broadcast_from_first,
    check_process_group,
    gather_rows,
    gather_texts,
    largest_difference_from_first,
    stop_process_group,
)
from tests.support.gloo import GlooPool
from tests.support.training.helpers import ALONE


def use_all(worker: Worker, spoil: float) -> tuple[list[list[float]], list[float], float, float]:
    """(gathered rows, broadcast values, difference of equal tensors, difference when the last rank's is spoilt)."""
    rows = gather_rows((worker.rank, 2.0**53 - 1), worker)
    tensor = torch.full((3,), float(worker.rank))
    broadcast_from_first([tensor], worker)
    equal = largest_difference_from_first([tensor], worker)
    if worker.rank == worker.world_size - 1:
        tensor[1] += spoil
    return rows, tensor.tolist(), equal, largest_difference_from_first([torch.zeros(2), tensor], worker)


@pytest.mark.parametrize("world_size", [2, 4])
def test_collectives(ranks: GlooPool, world_size: int) -> None:
    results = ranks.run(world_size, use_all, 2.0**-20)
    for rank, (rows, values, equal, spoilt) in enumerate(results):
        assert rows == [[float(other), 2.0**53 - 1] for other in range(world_size)]
        assert equal == 0.0
        assert spoilt == (2.0**-20 if rank == world_size - 1 else 0.0)
        assert values[0] == 0.0


def gather_all(worker: Worker, texts: list[str]) -> list[str]:
    return gather_texts(texts[worker.rank], worker)


@pytest.mark.parametrize("texts", [["alone"], ["", "eins …"], ["", "", "", ""], ["a", "", "ü" * 3000, "{}"]])
def test_texts_of_any_length_are_gathered(ranks: GlooPool, texts: list[str]) -> None:
    assert ranks.run(len(texts), gather_all, texts) == [texts] * len(texts)


def test_a_nan_is_a_difference(ranks: GlooPool) -> None:
    assert math.isnan(ranks.run(2, use_all, math.nan)[1][3])


def test_one_worker_needs_no_process_group() -> None:
    stop_process_group()
    check_process_group(ALONE)
    assert use_all(ALONE, 1.0) == ([[0.0, 2.0**53 - 1]], [0.0, 1.0, 0.0], 0.0, 0.0)


def claim_to_be_first(worker: Worker) -> str:
    """The complaint when every process says that it is rank 0."""
    try:
        check_process_group(Worker(0, worker.world_size, worker.device))
    except ValueError as error:
        return str(error)
    return ""


def test_a_worker_that_is_not_the_process_groups_is_refused(ranks: GlooPool) -> None:
    first, second = ranks.run(2, claim_to_be_first)
    assert first == ""
    assert "is not the process group's" in second


@pytest.mark.parametrize(("rank", "world_size", "threads"), [(1, 1, 1), (-1, 2, 1), (0, 0, 1), (0, 1, 0)])
def test_impossible_workers_are_refused(rank: int, world_size: int, threads: int) -> None:
    with pytest.raises(ValueError, match=r"rank|threads"):
        Worker(rank, world_size, torch.device("cpu"), threads)
