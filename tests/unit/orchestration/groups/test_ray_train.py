"""Which backend the workers of a group get, and which of the visible GPUs is a worker's own."""

from __future__ import annotations

import pytest

from scalestudy.orchestration.groups.ray_train import Seat, backend_for, cuda_index


@pytest.mark.parametrize(
    ("wanted", "seats", "backend"),
    [
        ("nccl", [("a", "0"), ("a", "1")], "nccl"),
        ("nccl", [("a", "0"), ("b", "0")], "nccl"),  # GPUs of two nodes have the same names
        ("nccl", [("a", "0"), ("a", "0")], "gloo"),  # gpus_per_worker: 0.5
        ("nccl", [("a", "0"), ("a", "1"), ("b", "0"), ("b", "0")], "gloo"),
        ("nccl", [("a", "0", "1"), ("a", "2", "3")], "nccl"),
        ("gloo", [("a",), ("a",)], "gloo"),
    ],
)
def test_workers_that_share_a_gpu_get_gloo(wanted: str, seats: list[tuple[str, ...]], backend: str) -> None:
    assert backend_for(wanted, [Seat(node=node, gpus=tuple(gpus)) for node, *gpus in seats]) == backend


@pytest.mark.parametrize(
    ("gpus", "visible", "index"),
    [
        (["3"], "3", 0),  # as Ray sets it
        (["3"], None, 3),  # RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES
        (["3"], "", 3),
        (["3"], "1,3,5", 1),
        (["2", "3"], "2,3", 0),
        ([], None, 0),
    ],
)
def test_a_worker_takes_its_own_of_the_visible_gpus(gpus: list[str], visible: str | None, index: int) -> None:
    assert cuda_index(gpus, visible) == index
