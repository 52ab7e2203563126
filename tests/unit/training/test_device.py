"""Precisions: bfloat16 and TensorFloat-32 where the device has them, strict float32 elsewhere; GPUs that don't work."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from scalestudy.training.config import TrainConfig
from scalestudy.training.device import choose_device, cuda_device, has_precision, make_precision
from scalestudy.training.loop.train import train
from tests.support.training.helpers import ALONE, largest_difference, make_config, run_training

BFLOAT16_EPSILON = 2**-8  # of its 8 significant bits


def lenet(**changes: Any) -> TrainConfig:
    """Eight steps of LeNet."""
    return make_config(model="lenet", model_args={}, learning_rate=0.1, **changes)


@pytest.mark.skipif(not has_precision("bf16", torch.device("cpu")), reason="this CPU has no bfloat16")
def test_bf16_computes_in_bfloat16_and_updates_in_float32() -> None:
    """One step's gradients are those of float32 to some of bfloat16's epsilons, and are not equal to them."""
    exact, rounded = (run_training(ALONE, lenet(batch_size=256, precision=name)) for name in ("fp32", "bf16"))
    moved = largest_difference(exact["first_state"], exact["state"])
    apart = largest_difference(exact["state"], rounded["state"])
    assert 0 < apart < 16 * BFLOAT16_EPSILON * moved
    assert {array.dtype.name for array in rounded["state"].values()} == {"float32"}


def test_bf16_is_refused_where_the_device_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer of an old CPU, which is all that can't be had here."""
    monkeypatch.setattr("scalestudy.training.device.has_precision", lambda name, device: name == "fp32")
    with pytest.raises(ValueError, match=r"precision: bf16 is not available on this device \(cpu\); choose fp32"):
        train(lenet(precision="bf16"), ALONE)
    with make_precision("fp32", ALONE.device)():
        assert not torch.is_autocast_enabled("cpu")


def test_tf32_is_a_gpus() -> None:
    with pytest.raises(ValueError, match=r"precision: tf32 is not available on this device \(cpu\); choose fp32"):
        train(lenet(precision="tf32"), ALONE)


@pytest.mark.parametrize(("capability", "has"), [((7, 5), False), ((8, 0), True), ((9, 0), True), ((12, 0), True)])
def test_tf32_needs_an_ampere(capability: tuple[int, int], has: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert has_precision("tf32", torch.device("cuda")) is has


def test_only_tf32_takes_it_and_the_next_trial_is_strict_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch by itself takes it in convolutions."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    for name in ("fp32", "tf32", "bf16", "tf32", "fp32"):
        make_precision(name, torch.device("cuda"))
        backends = torch.backends
        assert backends.cuda.matmul.allow_tf32 is backends.cudnn.allow_tf32 is (name == "tf32")
        newer = (backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn)
        assert {each.fp32_precision == "tf32" for each in newer} == {name == "tf32"}


# --- GPUs that don't work ---------------------------------------------------------------------------------------------

OLD_DRIVER = RuntimeError(
    "The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver by downloading "
    "and installing a new version from the URL: http://www.nvidia.com/Download/index.aspx"
)  # torch/csrc/cuda/Module.cpp and c10/cuda/CUDAFunctions.cpp


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        (OLD_DRIVER, "The NVIDIA driver on your system is too old (found version 11040)"),
        (RuntimeError("No CUDA GPUs are available"), "No CUDA GPUs are available"),
        (AssertionError("Torch not compiled with CUDA enabled"), "Torch not compiled with CUDA enabled"),
        (
            RuntimeError("CUDA driver initialization failed, you might not\nhave a CUDA gpu."),
            "CUDA driver initialization failed, you might not have a CUDA gpu",
        ),
    ],
)
def test_where_cuda_does_not_work_one_line_says_why(
    reason: Exception, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def init() -> None:
        raise reason

    monkeypatch.setattr(torch.cuda, "init", init)
    with pytest.raises(ValueError) as caught:
        choose_device("cuda", None)
    remedy = "mend the NVIDIA driver, install a PyTorch that fits it, or choose cpu"
    assert str(caught.value) == f"device: CUDA does not work: {told}; {remedy}"


def test_a_device_without_memory_for_a_context_is_out_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def init() -> None:
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(torch.cuda, "init", init)
    with pytest.raises(RuntimeError, match=r"^CUDA error: out of memory$"):
        cuda_device(0)


def test_more_workers_than_devices_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ValueError, match=r"device: no CUDA device 2 among 2; start fewer workers, or choose cpu"):
        cuda_device(2)


def test_devices_that_two_ranks_share_get_gloo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scalestudy.training.device.cuda_device", lambda index: torch.device("cuda", index))
    monkeypatch.setenv("WORLD_SIZE", "2")
    for devices, backend in [("cuda:0", "cuda:1"), "nccl"], [("cuda", "cuda:0"), "gloo"], [("cuda:1", "cpu"), "gloo"]:
        assert choose_device("auto", devices) == (torch.device(devices[0] if ":" in devices[0] else "cuda:0"), backend)
