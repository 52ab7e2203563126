"""Times, memory, threads and ranks of the execution experiments; what an experiment's result may hold."""

from __future__ import annotations

import gc
import json
import logging
import math

import pytest
import torch

from scalestudy.training.chapter.measuring import (
    Alive,
    Experiment,
    Table,
    find_device,
    first_line,
    intra_op_threads,
    median_seconds,
    peak_bytes,
    quiet_compiler,
)
from scalestudy.training.distributed import Worker, on_ranks

CPU = torch.device("cpu")


def test_functions_run_in_turn_after_a_warm_up_round() -> None:
    calls: list[str] = []
    seconds = median_seconds({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, CPU, repeats=3)
    assert calls == ["a", "b"] * 4
    assert all(value >= 0 for value in seconds.values())


def two_live_at_once() -> torch.Tensor:
    one = torch.ones(1000)  # 4,000 bytes
    two = one + 1  # 8,000 with it
    del one
    return two + 1  # again two of them


def test_peak_is_the_most_that_is_held_at_once() -> None:
    assert 8000 <= peak_bytes(two_live_at_once, CPU) < 9000  # PyTorch makes tensors of the numbers, some bytes each


def test_tensors_count_until_nobody_holds_them() -> None:
    alive = Alive()
    held = [alive.watch(torch.zeros(10, dtype=torch.float64)) for _ in range(3)]
    held.clear()
    gc.collect()
    alive.watch(torch.zeros(4))
    assert alive.peak == 240


def use_and_fail(threads: int) -> None:
    with intra_op_threads(threads), quiet_compiler():
        assert torch.get_num_threads() == threads
        assert not logging.getLogger().isEnabledFor(logging.ERROR)
        raise KeyError


def test_threads_and_logging_are_put_back() -> None:
    before = torch.get_num_threads()
    with pytest.raises(KeyError):
        use_and_fail(before + 1)
    assert torch.get_num_threads() == before
    assert logging.getLogger().isEnabledFor(logging.ERROR)


def test_errors_become_one_line() -> None:
    assert first_line(ValueError("\n  first\nsecond")) == "ValueError: first"
    assert first_line(KeyError()) == "KeyError"


def test_a_device_that_is_not_there_is_refused() -> None:
    assert find_device("cpu") == CPU
    with pytest.raises(ValueError, match="device: 'tpu' is not known; choose"):
        find_device("tpu")
    if not torch.cuda.is_available():
        assert find_device("auto") == CPU
        with pytest.raises(ValueError, match="no CUDA device here; choose --device cpu"):
            find_device("cuda")


def rank_or_fail(worker: Worker, failing: int) -> tuple[int, int, int]:
    if worker.rank == failing:
        raise LookupError(f"rank {worker.rank} has had enough")
    return worker.rank, worker.world_size, torch.get_num_threads()


@pytest.mark.slow
def test_a_function_runs_on_every_rank() -> None:
    assert on_ranks(2, rank_or_fail, -1) == [(0, 2, 1), (1, 2, 1)]
    with pytest.raises(LookupError, match="rank 0 has had enough"):
        on_ranks(1, rank_or_fail, 0)


# --- what an experiment may result in ---------------------------------------------------------------------------------


def test_a_result_is_plain_data() -> None:
    table = Table("t", ("a", "b"), ((1, None), ("x", math.inf)))
    made = Experiment("n", "q", (table,), ("note",), {"a_seconds": 0.5, "b_ratio": math.nan})
    plain = json.loads(json.dumps(made.to_dict(), allow_nan=False))
    assert plain["tables"] == [{"title": "t", "header": ["a", "b"], "rows": [[1, None], ["x", None]]}]
    assert plain["metrics"] == {"a_seconds": 0.5, "b_ratio": None}
    assert table.column("b") == [None, math.inf]


def test_a_crooked_table_and_a_metric_without_unit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"rows: of \[1\] cells under 2 headings"):
        Table("t", ("a", "b"), ((1,),))
    with pytest.raises(ValueError, match="metrics: speed without a unit"):
        Experiment("n", "q", (), (), {"speed": 1.0})
