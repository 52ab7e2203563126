"""The speed of the sum over real ranks, by the size of the message."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from scalestudy.training.distributed import Worker, on_ranks
from scalestudy.training.gradient_sync.bandwidth import Bandwidth, time_sums
from tests.support.gloo import GlooPool


def test_bandwidths_are_those_of_nccl_tests() -> None:
    two, four = (Bandwidth("gloo", world_size, 8_000_000, 0.004) for world_size in (2, 4))
    assert two.algorithm == four.algorithm == 2e9  # 8 MB in 4 ms
    assert two.bus == 2e9  # 2 · (2 - 1) ÷ 2 = 1
    assert four.bus == 3e9  # 2 · (4 - 1) ÷ 4 = 1.5


@pytest.mark.parametrize("world_size", [2, 4])
def test_every_rank_times_every_size(ranks: GlooPool, world_size: int) -> None:
    for seconds in ranks.run(world_size, time_sums, (1024, 4096), 2):
        assert len(seconds) == 2
        assert min(seconds) > 0


def test_a_wrong_sum_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "barrier", lambda: None)
    monkeypatch.setattr(dist, "all_reduce", lambda tensor: None)
    with pytest.raises(RuntimeError, match=r"all_reduce of 1 … 2 gave \[1\.0\], not 3"):
        time_sums(Worker(0, 2, torch.device("cpu")), (1024,), 1)


def rank_or_fail(worker: Worker, failing: int) -> tuple[int, int, int]:
    if worker.rank == failing:
        raise LookupError(f"rank {worker.rank} has had enough")
    return worker.rank, worker.world_size, torch.get_num_threads()


@pytest.mark.slow
def test_a_function_runs_on_every_rank() -> None:
    assert on_ranks(2, rank_or_fail, -1) == [(0, 2, 1), (1, 2, 1)]
    with pytest.raises(LookupError, match="rank 0 has had enough"):
        on_ranks(1, rank_or_fail, 0)
