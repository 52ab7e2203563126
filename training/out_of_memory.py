"""Stage 5, training loop: telling that memory ran out from every other error. No torch here: the driver asks too."""

from __future__ import annotations

_TEXTS = ("DefaultCPUAllocator: can't allocate memory", "CUDA out of memory", "std::bad_alloc")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that an allocation failed.

    By name and text, not by class: some come out of C++ as a plain RuntimeError, and torch need not be imported.
    """
    names = {cls.__name__ for cls in type(error).__mro__}
    return "OutOfMemoryError" in names or isinstance(error, MemoryError) or any(text in str(error) for text in _TEXTS)
