"""The few collectives, with and without a process group."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist

from scalestudy.training import distributed
from scalestudy.training.distributed import (
    Worker,
    broadcast_from_first,
    check_process_group,
    gather_by_store,
    gather_rows,
    gather_texts,
    largest_difference_from_first,
    on_ranks,
    stop_process_group,
)
from tests.support.gloo import GlooPool

ALONE = Worker(0, 1, torch.device("cpu"))  # not the helpers' own: a spawned rank imports this file, and with it theirs


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


def broadcast_many(worker: Worker) -> tuple[bool, float, int]:
    """Whether tensors of several dtypes and memory orders are rank 0's; their difference before; collectives made."""
    generator = torch.Generator().manual_seed(worker.rank)
    tensors = [
        torch.rand(3, 2, 4, 4, generator=generator).to(memory_format=torch.channels_last),
        torch.tensor(worker.rank),
        torch.rand(5, generator=generator) < 0.5,
        torch.zeros(0),
        torch.rand(7, generator=generator, dtype=torch.float64)[::2],
        torch.rand(3, generator=generator).bfloat16(),
    ]
    calls, broadcast = [], dist.broadcast
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "broadcast", lambda *args, **named: (calls.append(args), broadcast(*args, **named)))
        before = largest_difference_from_first([tensor for tensor in tensors if tensor.dtype != torch.bool], worker)
        broadcast_from_first(tensors, worker)
    strides = tensors[0].is_contiguous(memory_format=torch.channels_last)
    mine = torch.cat([tensor.double().flatten() for tensor in tensors])
    return strides and gather_rows(mine, worker)[0] == mine.tolist(), before, len(calls)


def test_tensors_of_any_dtype_travel_in_one_broadcast(ranks: GlooPool) -> None:
    first, second = ranks.run(2, broadcast_many)
    assert first == (True, 0.0, 2)
    assert second[0] is True
    assert second[1] == 1.0, "the counts differ by 1"
    assert second[2] == 2


def broadcast_in_parts(worker: Worker) -> tuple[list[list[float]], list[int]]:
    """The values, and the bytes of each broadcast."""
    tensors = [torch.full((size,), float(worker.rank + size)) for size in (1, 5, 2, 2, 9, 1)]
    sent, broadcast = [], dist.broadcast
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distributed, "PACKED_BYTES", 16)
        patch.setattr(dist, "broadcast", lambda packed, src: (sent.append(len(packed)), broadcast(packed, src)))
        broadcast_from_first(tensors, worker)
    return [tensor.tolist() for tensor in tensors], sent


def test_what_is_too_much_for_one_broadcast_travels_in_several(ranks: GlooPool) -> None:
    wanted = [[float(size)] * size for size in (1, 5, 2, 2, 9, 1)]
    parts = [4, 20, 16, 36, 4]  # at most 16 bytes, or one tensor
    assert ranks.run(2, broadcast_in_parts) == [(wanted, parts), (wanted, parts)]


def gather_all(worker: Worker, texts: list[str]) -> list[str]:
    return gather_texts(texts[worker.rank], worker)


@pytest.mark.parametrize("texts", [["alone"], ["", "eins …"], ["", "", "", ""], ["a", "", "ü" * 3000, "{}"]])
def test_texts_of_any_length_are_gathered(ranks: GlooPool, texts: list[str]) -> None:
    assert ranks.run(len(texts), gather_all, texts) == [texts] * len(texts)


def test_texts_are_gathered_before_there_is_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that torchrun has started again do not read what the ones before them told."""
    store = dist.HashStore()
    for attempt, texts in ("0", ["", "eins …"]), ("1", ["a", "b"]):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", attempt)
        with ThreadPoolExecutor(2) as pool:
            told = [pool.submit(gather_by_store, text, store, rank, 2) for rank, text in enumerate(texts)]
        assert [each.result() for each in told] == [texts, texts]


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


def rank_or_fail(worker: Worker, failing: int) -> tuple[int, int, int]:
    if worker.rank == failing:
        raise LookupError(f"rank {worker.rank} has had enough")
    return worker.rank, worker.world_size, torch.get_num_threads()


@pytest.mark.slow
def test_a_function_runs_on_every_rank() -> None:
    assert on_ranks(2, rank_or_fail, -1) == [(0, 2, 1), (1, 2, 1)]
    with pytest.raises(LookupError, match="rank 0 has had enough"):
        on_ranks(1, rank_or_fail, 0)
