"""What an exception means, read from its type, name or text. The driver asks too, so this file loads no torch."""

from __future__ import annotations

import re
import sys

_NO_MEMORY = (
    "DefaultCPUAllocator: can't allocate memory",
    "std::bad_alloc",
    "CUDA out of memory",
    "CUDA error: out of memory",
    "CUDA driver error: out of memory",
    "Triton Error [CUDA]: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "Cuda failure 2 'out of memory'",  # NCCL's
    "Cuda failure 'out of memory'",  # NCCL's before 2.19
)
_NO_ALLOCATION = (  # cuDNN's since 9, for want of memory or of a context that works
    "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    "CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED",
)
_NO_ENGINE = "unable to find an engine"  # cuDNN's, for want of memory or of a kernel
_SHORT = 0.05  # share of a device's memory; less than this left is short
_NO_PRIMITIVE = "could not create a primitive"  # oneDNN's whole text if it has no memory for a kernel's code
_FROM_CUDA = ("CUDA error: ", "CUDA driver error: ", "Cuda failure ")  # of PyTorch, twice, and of NCCL
_DEVICE_LOST = (  # in the words of cudaGetErrorString: each leaves a context in which nothing runs any more
    "unspecified launch failure",
    "unknown error",
    "the launch timed out and was terminated",
    "an illegal memory access was encountered",
    "an illegal instruction was encountered",
    "misaligned address",
    "hardware stack error",
    "invalid program counter",
    "uncorrectable ECC error encountered",
    "uncorrectable NVLink error",
    "a hardware error",
    "no CUDA-capable device is detected",
)
_MAY_BE_LOST = (  # what the libraries say first in such a context, and for other reasons too
    "CUBLAS_STATUS_EXECUTION_FAILED",
    "CUBLAS_STATUS_INTERNAL_ERROR",
    "CUBLAS_STATUS_NOT_INITIALIZED",
    "CUDNN_STATUS_EXECUTION_FAILED",
    "CUDNN_STATUS_INTERNAL_ERROR",
    "CUDNN_STATUS_NOT_INITIALIZED",
    _NO_ENGINE,
)
_GPU_IS_LOST = "GPU is lost"  # NVML's
_NO_GPU = ("CUDA", "NVIDIA")
_NO_KERNEL = re.compile(r"Could not run '[^']*' with arguments from the '(\w+)' backend")
_FRAME = re.compile(r'\s+File ".+", line \d+')  # of a traceback
_KERNELS = re.compile(r"only available for these backends: \[([^\]]*)\]")
_LOST_PEER = ("gloo", "NCCL", "Connection closed by peer", "Connection reset by peer", "Broken pipe")
_LOST_PEER_TYPES = frozenset({"DistBackendError", "DistNetworkError", "DistStoreError"})


class InputError(ValueError):
    """A user's mistake. what: field, value and what is wrong with it. remedy: what to do; "": the caller adds it."""

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(what, remedy)
        self.what = what
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.what}; {self.remedy}" if self.remedy else self.what


class StoreError(InputError):
    """A store that fails: not the training's own mistake, and another attempt may find it well."""


def readable(error: BaseException) -> BaseException:
    """Return the exception, or one of its name and traceback where its class can't make its text."""
    try:
        str(error)
    except Exception:
        unreadable = type(type(error).__name__, (Exception,), {})
        return unreadable("its text can't be made").with_traceback(error.__traceback__)
    return error


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that an allocation failed. Some come from C++ as a plain RuntimeError."""
    if isinstance(error, MemoryError) or "OutOfMemoryError" in _names(error):
        return True
    text = str(error)
    without_engine = _NO_ENGINE in text and _is_short_of_memory()
    without_allocation = any(part in text for part in _NO_ALLOCATION) and not _error_of_context()
    named = text == _NO_PRIMITIVE or any(part in text for part in _NO_MEMORY)
    return named or without_engine or without_allocation


def _is_short_of_memory() -> bool:
    """Whether this process trains on a GPU that has little memory left for it, the allocator's spare blocks included.

    Its allocator may be held to a share of the GPU.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return False
    try:
        free, total = torch.cuda.mem_get_info()
    except RuntimeError:  # the GPU is lost
        return False
    reserved = torch.cuda.memory_reserved()
    to_come = min(free, torch.cuda.get_per_process_memory_fraction() * total - reserved)
    return bool(to_come + reserved - torch.cuda.memory_allocated() < _SHORT * total)


def is_device_lost(error: BaseException) -> bool:
    """Whether an exception says that this process can't use its GPU any more, and another process may.

    The GPU has failed, which the kernel's log reports as an Xid, or has ended the process's work on it. A device-side
    assert ends that too, but it is a check in the code, such as of a label: it would fail again.
    """
    if not isinstance(error, RuntimeError):
        return False
    text = str(error)
    may_be = any(part in text for part in _MAY_BE_LOST)
    return _GPU_IS_LOST in text or _names_loss(text) or (may_be and _names_loss(_error_of_context()))


def _names_loss(text: str) -> bool:
    return any(source in text for source in _FROM_CUDA) and any(part in text for part in _DEVICE_LOST)


def _error_of_context() -> str:
    """Return what CUDA says when this process waits for its GPU; "": no error. Once a GPU is lost, every call fails."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return ""
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        return str(error)
    return ""


def wants_gpu(error: BaseException) -> bool:
    """Whether an exception, met on a CPU, may say no more than that the code needs a GPU.

    An operator may lack a kernel for another reason, such as sparse or quantised tensors: PyTorch then lists all the
    kernels that it has, and CUDA is what is missing only where the list has it for plain tensors, and not the CPU.
    """
    is_kind = isinstance(error, RuntimeError | AssertionError)  # NotImplementedError is one
    if not is_kind or isinstance(error, InputError):
        return False
    text = str(error)
    if wanted := _NO_KERNEL.search(text):
        listed = _KERNELS.search(text)
        kernels = {name.strip() for name in listed[1].split(",")} if listed else set()
        return wanted[1] == "CPU" and "CUDA" in kernels and "CPU" not in kernels
    return any(word in what_happened(text) for word in _NO_GPU)


def what_happened(text: str) -> str:
    """Return the line of a message that says what happened.

    It is the first one, joined by the next if it ends with a colon; of a traceback, the first one behind the frames.
    """
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    frames = [index for index, line in enumerate(lines) if _FRAME.match(line)]
    behind = [line for line in lines[frames[-1] :] if not line[0].isspace()] if frames else lines
    said = [line.strip() for line in behind or lines[-1:]]
    return " ".join(said[:2] if said and said[0].endswith(":") else said[:1])


def is_lost_peer(error: BaseException) -> bool:
    """Whether the exception of a collective says that another worker of the group is gone."""
    is_text = isinstance(error, RuntimeError) and any(text in str(error) for text in _LOST_PEER)
    return is_text or bool(_names(error) & _LOST_PEER_TYPES)


def _names(error: BaseException) -> set[str]:
    return {cls.__name__ for cls in type(error).__mro__}
