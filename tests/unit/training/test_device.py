"""Precisions: bfloat16 and TensorFloat-32 where the device has them, strict float32 elsewhere; GPUs that don't work."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from scalestudy.training.config import OptimizerConfig, TrainConfig
from scalestudy.training.device import (
    DeviceFault,
    choose_device,
    cuda_device,
    device_fault,
    has_precision,
    make_precision,
)
from scalestudy.training.loop.train import train
from tests.support.training.helpers import ALONE, EachStep, largest_difference, make_config, run_training

HERE = "tests.unit.training.test_device"
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


def precisions() -> dict[str, Any]:
    """What PyTorch says of float32, under all names. Reading an older one raises where it and a newer one disagree."""
    backends = torch.backends
    gpu = (backends.cuda.matmul, backends.cudnn, backends.cudnn.conv, backends.cudnn.rnn)
    cpu = (backends.mkldnn.matmul, backends.mkldnn.conv, backends.mkldnn.rnn)
    return {
        "older": {backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32},
        "products": torch.get_float32_matmul_precision(),
        "gpu": {each.fp32_precision for each in gpu},
        "cpu": {each.fp32_precision for each in cpu},
    }


STRICT = {"older": {False}, "products": "highest", "gpu": {"ieee"}, "cpu": {"ieee"}}
TF32 = {"older": {True}, "products": "high", "gpu": {"tf32"}, "cpu": {"ieee"}}


def of(backend: Any, name: str, value: Any) -> Callable[[], None]:
    return lambda: setattr(backend, name, value)


WAYS: dict[str, Callable[[], None]] = {
    "backends.fp32_precision": of(torch.backends, "fp32_precision", "tf32"),
    "backends.fp32_precision: ieee": of(torch.backends, "fp32_precision", "ieee"),
    "cudnn.fp32_precision": of(torch.backends.cudnn, "fp32_precision", "tf32"),
    "cuda.matmul.fp32_precision": of(torch.backends.cuda.matmul, "fp32_precision", "tf32"),
    "cuda.matmul.fp32_precision: ieee": of(torch.backends.cuda.matmul, "fp32_precision", "ieee"),
    "cudnn.conv.fp32_precision": of(torch.backends.cudnn.conv, "fp32_precision", "tf32"),
    "cudnn.conv.fp32_precision: ieee": of(torch.backends.cudnn.conv, "fp32_precision", "ieee"),
    "cudnn.rnn.fp32_precision": of(torch.backends.cudnn.rnn, "fp32_precision", "tf32"),
    "mkldnn.matmul.fp32_precision": of(torch.backends.mkldnn.matmul, "fp32_precision", "bf16"),
    "set_float32_matmul_precision: high": lambda: torch.set_float32_matmul_precision("high"),
    "set_float32_matmul_precision: medium": lambda: torch.set_float32_matmul_precision("medium"),
    "set_float32_matmul_precision: highest": lambda: torch.set_float32_matmul_precision("highest"),
    "cuda.matmul.allow_tf32": of(torch.backends.cuda.matmul, "allow_tf32", True),
    "cuda.matmul.allow_tf32: False": of(torch.backends.cuda.matmul, "allow_tf32", False),
    "cudnn.allow_tf32": of(torch.backends.cudnn, "allow_tf32", True),
    "cudnn.allow_tf32: False": of(torch.backends.cudnn, "allow_tf32", False),
}


@pytest.fixture
def ampere(monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.device]:
    """What a GPU of that kind says of itself."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    yield torch.device("cuda")
    make_precision("fp32", ALONE.device)


@pytest.mark.parametrize("way", WAYS)
def test_fp32_is_strict_and_tf32_is_not_whatever_was_set_before(way: str, ampere: torch.device) -> None:
    for name, expected in (("fp32", STRICT), ("tf32", TF32), ("bf16", STRICT), ("tf32", TF32), ("fp32", STRICT)):
        WAYS[way]()
        make_precision(name, ampere)
        assert precisions() == expected


def test_ways_that_disagree_are_all_overruled(ampere: torch.device) -> None:
    for one, other in itertools.permutations(WAYS.values(), 2):
        one()
        other()
        make_precision("fp32", ampere)
        assert precisions() == STRICT


def careless(num_classes: int, in_channels: int) -> nn.Module:
    """A user's model, whose module asks for speed when it is imported."""
    torch.set_float32_matmul_precision("high")
    torch.backends.fp32_precision = "tf32"
    return nn.Sequential(nn.Flatten(), nn.Linear(784 * in_channels, num_classes))


def careless_optimizer(model: nn.Module, learning_rate: float) -> torch.optim.Optimizer:
    """The same of an optimizer."""
    torch.backends.cudnn.conv.fp32_precision = "tf32"
    return torch.optim.SGD(model.parameters(), learning_rate)


def test_a_trial_is_strict_though_the_users_modules_were_not() -> None:
    seen = EachStep(lambda trial: precisions())
    optimizer = OptimizerConfig(name=f"{HERE}:careless_optimizer")
    train(make_config(model=f"{HERE}:careless", model_args={}, optimizer=optimizer), ALONE, hooks=[seen])
    assert seen.seen == [STRICT] * 8


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


@pytest.mark.parametrize(("visible", "index"), [(1, 0), (2, 1), (8, 1)])
def test_the_local_rank_is_taken_where_several_devices_are_visible(
    visible: int, index: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launcher that shows each worker its own alone still counts them."""
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert choose_device("cuda", None) == torch.device("cuda", index)


def test_a_device_that_is_named_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scalestudy.training.device.cuda_device", lambda index: torch.device("cuda", index))
    monkeypatch.setenv("WORLD_SIZE", "3")
    for rank, device in enumerate(("cuda:0", "cuda:1", "cpu")):
        monkeypatch.setenv("RANK", str(rank))
        assert choose_device("auto", ("cuda", "cuda:1", "cpu")) == torch.device(device)


@pytest.mark.parametrize("reason", ["Torch not compiled with CUDA enabled", "CUDA error: all devices are busy"])
def test_what_is_wrong_with_a_machines_gpus_is_told(reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """That another process has one to itself is not."""

    def init() -> None:
        raise RuntimeError(reason)

    monkeypatch.setattr(torch.cuda, "init", init)
    fault = device_fault("cuda", ["bf16"])
    if "busy" in reason:
        assert fault is None
    else:
        assert fault is not None
        assert fault.what == f"device: CUDA does not work: {reason}"
        assert "driver" in fault.remedy
        assert not fault.lacks


@pytest.mark.parametrize(("capabilities", "lacks"), [([7, 8], None), ([8, 7], None), ([7, 7], "tf32"), ([7], "tf32")])
def test_a_machine_can_train_if_one_of_its_gpus_can(
    capabilities: list[int], lacks: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(capabilities))
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (capabilities[device.index], 0))
    assert device_fault("cuda", ["tf32"]) == (None if lacks is None else DeviceFault(lacks=lacks))


def test_a_broken_gpu_beside_a_good_one_is_no_fault_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = {0}

    def set_device(index: int) -> None:
        if index in broken:
            raise RuntimeError("CUDA error: uncorrectable ECC error encountered")

    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", set_device)
    assert device_fault("cuda", []) is None
    broken.add(1)
    fault = device_fault("cuda", [])
    assert fault is not None
    assert fault.what == "device: CUDA does not work: CUDA error: uncorrectable ECC error encountered"


def test_what_a_machines_cpu_lacks_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scalestudy.training.device.has_precision", lambda name, device: name != "bf16")
    assert device_fault("cpu", ["fp32", "bf16"]) == DeviceFault(lacks="bf16")
    assert device_fault("cpu", ["fp32"]) is None
