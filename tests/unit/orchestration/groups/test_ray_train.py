"""Which backend the workers of a group get, which of the visible GPUs is a worker's own, who shares its node."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
import torch

from scalestudy.orchestration.groups import ray_train
from scalestudy.orchestration.groups.ray_train import (
    Life,
    ProcessGroupConfig,
    Seat,
    backend_for,
    cuda_index,
    join,
    own_seat,
)
from scalestudy.training.backend import Gpu
from scalestudy.training.exceptions import InputError

FIRST, SECOND = ("GPU-1", "0000:1b:00.0"), ("GPU-2", "0000:1c:00.0")
SLICES = ("MIG-1", "0000:1b:00.0"), ("MIG-2", "0000:1b:00.0")


@pytest.mark.parametrize(
    ("wanted", "seats", "backend"),
    [
        ("nccl", [("a", FIRST), ("a", SECOND)], "nccl"),
        ("nccl", [("a", FIRST), ("b", ("GPU-3", FIRST[1]))], "nccl"),  # two machines with the same slots
        ("nccl", [("a", FIRST), ("a", FIRST)], "gloo"),  # gpus_per_worker: 0.5, or two raylets on one machine
        ("nccl", [("a", FIRST), ("b", FIRST)], "gloo"),  # one UUID, though the machines' names differ
        ("nccl", [("a", SLICES[0]), ("a", SLICES[1])], "gloo"),
        ("nccl", [("a", SLICES[0]), ("b", SLICES[1])], "nccl"),
        ("gloo", [("a", None), ("a", None)], "gloo"),
    ],
)
def test_workers_that_share_a_gpu_get_gloo(
    wanted: str, seats: list[tuple[str, tuple[str, str] | None]], backend: str
) -> None:
    found = [Seat(machine=machine, gpu=Gpu(uuid=gpu[0], pci=gpu[1]) if gpu else None) for machine, gpu in seats]
    assert backend_for(wanted, found) == backend


@pytest.mark.parametrize(
    ("gpus", "visible", "index"),
    [
        (["3"], "3", 0),  # as Ray sets it
        (["3"], None, 3),  # RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES
        (["3"], "", 3),
        (["3"], "1,3,5", 1),
        (["2", "3"], "2,3", 0),
        ([], None, 0),
        (["MIG-b"], "MIG-b", 0),
        (["MIG-GPU-a/1/0"], "MIG-GPU-b/1/0, MIG-GPU-a/1/0", 1),
        (["GPU-a"], "GPU-b,GPU-a", 1),
    ],
)
def test_a_worker_takes_its_own_of_the_visible_gpus(gpus: list[str], visible: str | None, index: int) -> None:
    assert cuda_index(gpus, visible) == index


@pytest.mark.parametrize(("gpu", "visible"), [("3", "0,1"), ("MIG-b", "MIG-a"), ("MIG-b", None), ("GPU-a", "")])
def test_a_gpu_that_is_hidden_is_named(gpu: str, visible: str | None) -> None:
    with pytest.raises(InputError, match=f"CUDA_VISIBLE_DEVICES: .* does not name the GPU {gpu} that Ray has given"):
        cuda_index([gpu], visible)


def test_a_worker_s_seat_has_the_gpu_that_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = SimpleNamespace(uuid="GPU-1", pci_domain_id=0, pci_bus_id=27, pci_device_id=0)
    monkeypatch.setattr(ray_train, "own_device", lambda kind: {"cuda": "cuda:1"}[kind])
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: {"cuda:1": facts}[device])
    monkeypatch.setattr(ray_train, "machine", lambda: "boot")
    assert own_seat(on_gpu=True) == Seat(machine="boot", gpu=Gpu(uuid="GPU-1", pci="00000000:1b:00.0"))
    assert own_seat(on_gpu=False) == Seat(machine="boot")


def test_neighbours_are_those_of_the_same_machine() -> None:
    life = life_on("a", "b", "a")
    assert [life.neighbours(rank) for rank in range(3)] == [2, 1, 2]


def test_a_worker_s_loaders_learn_its_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    """One after a group of four, in a process that stays."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    join(0, life_on("a"), ProcessGroupConfig())
    assert os.environ["LOCAL_WORLD_SIZE"] == "1"


def life_on(*machines: str) -> Life:
    """A worker on each of these machines."""
    return Life(incarnation="", address="127.0.0.1", port=1, seats=tuple(Seat(machine=machine) for machine in machines))
