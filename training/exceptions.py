"""What an exception means, told by its type, name or text. The driver asks too, so this file loads no torch."""

from __future__ import annotations

_NO_MEMORY = ("DefaultCPUAllocator: can't allocate memory", "CUDA out of memory", "std::bad_alloc")
_NO_PRIMITIVE = "could not create a primitive"  # oneDNN's whole text if it has no memory for a kernel's code
_NO_GPU = ("CUDA", "NVIDIA", "'CPU' backend")
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


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that an allocation failed. Some come from C++ as a plain RuntimeError."""
    if isinstance(error, MemoryError) or "OutOfMemoryError" in _names(error):
        return True
    text = str(error)
    return text == _NO_PRIMITIVE or any(part in text for part in _NO_MEMORY)


def wants_gpu(error: BaseException) -> bool:
    """Whether an exception, met on a CPU, may say no more than that the code needs a GPU."""
    is_kind = isinstance(error, RuntimeError | AssertionError)  # NotImplementedError is one
    return is_kind and not isinstance(error, InputError) and any(text in str(error) for text in _NO_GPU)


def is_lost_peer(error: BaseException) -> bool:
    """Whether the exception of a collective says that another worker of the group is gone."""
    is_text = isinstance(error, RuntimeError) and any(text in str(error) for text in _LOST_PEER)
    return is_text or bool(_names(error) & _LOST_PEER_TYPES)


def _names(error: BaseException) -> set[str]:
    return {cls.__name__ for cls in type(error).__mro__}
