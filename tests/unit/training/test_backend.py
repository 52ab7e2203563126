"""A GPU that two workers share means gloo."""

from __future__ import annotations

import pytest

from scalestudy.training.backend import backend_of


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
