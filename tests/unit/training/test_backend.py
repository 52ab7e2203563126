"""A GPU that two workers share means gloo; machines are told apart by their kernels' boot ids."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from scalestudy.training import backend as module
from scalestudy.training.backend import Gpu, backend_of, machine, shared_gpu


@pytest.mark.parametrize(
    ("gpus", "backend"),
    [
        ([{"0"}, {"1"}], "nccl"),
        ([{"0"}], "nccl"),
        ([{"0"}, {"1"}, {"0"}], "gloo"),
        ([{"uuid", "slot"}, {"other", "slot"}], "gloo"),  # one name in common is enough
        ([{"0"}, set()], "gloo"),  # a GPU and a CPU
        ([set(), set()], "gloo"),
    ],
)
def test_every_worker_needs_a_gpu_of_its_own_for_nccl(gpus: list[set[str]], backend: str) -> None:
    assert backend_of(gpus) == backend


def test_the_first_two_workers_on_one_gpu_are_named() -> None:
    assert shared_gpu([{"a", "slot 1"}, {"b"}, set(), {"c", "slot 1"}, {"b"}]) == (0, 3)
    assert shared_gpu([set(), {"a"}, set()]) is None, "those on CPUs share none"


def test_a_machine_is_its_kernel_s_boot_and_not_its_host_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BOOT_ID", tmp_path / "boot_id")
    assert machine() == socket.gethostname(), "nothing better is known"
    names = []
    for host, boot in (("localhost", "one"), ("localhost", "two"), ("container", "one")):
        (tmp_path / "boot_id").write_text(f"{boot}\n")
        monkeypatch.setattr(socket, "gethostname", lambda host=host: host)
        names.append(machine())
    assert names == ["one", "two", "one"]


def test_a_gpu_is_the_same_by_its_uuid_or_by_its_address_in_one_machine() -> None:
    here, gpu = "one", Gpu(uuid="A", pci="1b")
    others = [("one", Gpu(uuid="B", pci="1b")), ("two", Gpu(uuid="A", pci="1b")), ("two", Gpu(uuid="B", pci="1b"))]
    same = [bool(gpu.names(here) & other.names(there)) for there, other in others]
    assert same == [True, True, False]
