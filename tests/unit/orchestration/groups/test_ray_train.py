"""Which backend the workers of a group get, which of the visible GPUs is a worker's own, who shares its node."""

from __future__ import annotations

import os

import pytest

from scalestudy.orchestration.groups.ray_train import Life, ProcessGroupConfig, Seat, backend_for, cuda_index, join


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


def test_neighbours_are_those_of_the_same_node() -> None:
    life = life_on("a", "b", "a")
    assert [life.neighbours(rank) for rank in range(3)] == [2, 1, 2]


def test_a_worker_s_loaders_learn_its_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    """One after a group of four, in a process that stays."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    join(0, life_on("a"), ProcessGroupConfig())
    assert os.environ["LOCAL_WORLD_SIZE"] == "1"


def life_on(*nodes: str) -> Life:
    """A worker on each of these nodes."""
    return Life(incarnation="", address="127.0.0.1", port=1, seats=tuple(Seat(node=node) for node in nodes))
