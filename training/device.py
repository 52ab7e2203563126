"""What a training needs to know of its device: which one, in which precision, with how much memory."""

from __future__ import annotations

import gc
import os
import resource
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch

from scalestudy.training.backend import Gpu
from scalestudy.training.exceptions import InputError, is_out_of_memory


def choose_device(kind: str, devices: Sequence[str] | None) -> torch.device:
    """Return this worker's device.

    `kind` (auto, cpu, cuda) holds for all workers. A GPU is the one of LOCAL_RANK where several are visible; a launcher
    may also show each worker its own alone, which is then number 0. `devices` names one for each worker, by rank.
    Raises InputError.
    """
    if devices is None:
        if kind not in ("auto", "cpu", "cuda"):
            raise InputError(f"device: {kind!r} is not known", "choose auto, cpu or cuda")
        if kind == "cpu" or (kind == "auto" and not torch.cuda.is_available()):
            return torch.device("cpu")
        return cuda_device(int(os.environ.get("LOCAL_RANK", "0")) if torch.cuda.device_count() > 1 else 0)

    listed = ",".join(devices)
    if kind != "auto":
        raise InputError(f"device: {kind} and devices {listed} are both given", "give one of the two")
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if len(devices) != world_size:
        what = f"devices: {listed} names {len(devices)}, but there are {world_size} workers"
        raise InputError(what, "name one for each worker")
    chosen = []
    for name in devices:
        try:
            device = torch.device(name)
        except RuntimeError:
            device = None
        if device is None or device.type not in ("cpu", "cuda"):
            raise InputError(f"devices: {name!r} is not a device", "write cpu, cuda or cuda:1")
        chosen.append(torch.device("cpu") if device.type == "cpu" else torch.device("cuda", device.index or 0))
    mine = chosen[rank]
    return cuda_device(mine.index or 0) if mine.type == "cuda" else mine


def cuda_device(index: int) -> torch.device:
    """Return the visible CUDA device of that number; from then on it is PyTorch's current one in this thread.

    Raises InputError, with PyTorch's reason, where CUDA does not work, and if there are not so many devices.
    """
    try:
        torch.cuda.init()
        count = torch.cuda.device_count()
        if index < count:
            torch.cuda.set_device(index)
    except (AssertionError, RuntimeError) as error:  # the former: this PyTorch was built without CUDA
        if is_out_of_memory(error):
            raise
        reason = " ".join(str(error).split()).partition(". ")[0].rstrip(".")
        remedy = "mend the NVIDIA driver, install a PyTorch that fits it, or choose cpu"
        raise InputError(f"device: CUDA does not work: {reason}", remedy) from error
    if index >= count:
        raise InputError(f"device: no CUDA device {index} among {count}", "start fewer workers, or choose cpu")
    return torch.device("cuda", index)


def gpu_of(device: torch.device) -> Gpu:
    """Return the GPU behind a CUDA device."""
    facts: Any = torch.cuda.get_device_properties(device)  # PyTorch's stub lacks the address
    pci = f"{facts.pci_domain_id:08x}:{facts.pci_bus_id:02x}:{facts.pci_device_id:02x}.0"
    return Gpu(uuid=str(facts.uuid), pci=pci)


TF32_SINCE = (8, 0)  # compute capability

Precision = Callable[[], AbstractContextManager[object]]
"""Makes the context that a forward pass runs in."""


def make_precision(name: str, device: torch.device) -> Precision:
    """Make the context of `fp32`, `tf32` or `bf16` on the device. Raises InputError if the device does not have it.

    fp32 is strict, also in convolutions, for which PyTorch by default takes TensorFloat-32 on a GPU. tf32 allows that
    format, with 10 bits of mantissa, in convolutions and matrix products. bf16 is PyTorch's autocast: both in bfloat16,
    other operations where it is safe. What fp32 and tf32 say holds for the whole process: see `allow_tf32`.
    """
    if not has_precision(name, device):
        raise InputError(f"precision: {name} is not available on this device ({device})", "choose fp32")
    allow_tf32(name == "tf32")
    if name != "bf16":
        return nullcontext
    return lambda: torch.autocast(device.type, dtype=torch.bfloat16)


def allow_tf32(allowed: bool) -> None:
    """Allow TensorFloat-32 for float32 on GPUs, or make float32 strict there; on a CPU it is strict in any case.

    It holds for the whole process until someone changes it, whatever was set before under PyTorch's older or newer
    names. The older ones do not reach every newer one, and reading them raises RuntimeError where the two disagree.
    Therefore all are set: the older first, since they clear some newer ones.
    """
    backends: Any = torch.backends  # whose stubs do not know the newer names
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    backends.cudnn.allow_tf32 = allowed
    for of_gpus in (backends, backends.cudnn, backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn):
        of_gpus.fp32_precision = "tf32" if allowed else "ieee"
    for of_cpus in (backends.mkldnn.matmul, backends.mkldnn.conv, backends.mkldnn.rnn):
        of_cpus.fp32_precision = "ieee"


def has_precision(name: str, device: torch.device) -> bool:
    """Return whether the device computes in this precision.

    bf16 on a CPU: with AVX-512 or AMX, else oneDNN has no kernels for it. tf32: on GPUs from NVIDIA's Ampere on.
    """
    if name == "fp32":
        return True
    if name == "tf32":
        return device.type == "cuda" and torch.cuda.get_device_capability(device) >= TF32_SINCE
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


class DeviceFault(NamedTuple):
    """What is wrong with a device, with the remedy; or the precision that it lacks."""

    what: str = ""
    remedy: str = ""
    lacks: str = ""


def device_fault(kind: str, precisions: Sequence[str]) -> DeviceFault | None:
    """Return why no device of a kind, `cpu` or `cuda`, of this machine can train in these precisions; None if one can.

    The fault is the first device's. One that can is enough: a cluster may leave out a GPU that is old or broken.
    """
    first = _fault_of(kind, 0, precisions)
    if first is None or kind != "cuda":
        return first
    others = (_fault_of(kind, index, precisions) for index in range(1, torch.cuda.device_count()))
    return None if any(fault is None for fault in others) else first


def _fault_of(kind: str, index: int, precisions: Sequence[str]) -> DeviceFault | None:
    """Return the fault of one device. A GPU that another process uses exclusively for the moment has none."""
    try:
        device = cuda_device(index) if kind == "cuda" else torch.device(kind)
        lacking = [name for name in precisions if not has_precision(name, device)]
    except InputError as error:
        return None if "busy" in error.what else DeviceFault(what=error.what, remedy=error.remedy)
    return DeviceFault(lacks=lacking[0]) if lacking else None


def usable_cores() -> int:
    """Return the number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def start_memory_count(device: torch.device) -> None:
    """Give the trial a clean allocator: free cached blocks and reset the peak (CUDA only).

    Compiled models and DistributedDataParallel are full of reference cycles. Those of the trial before would count.
    """
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory_bytes(device: torch.device) -> int:
    """Return the most bytes allocated since start_memory_count; on a CPU, the process's largest resident set, ever."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, Linux KiB
