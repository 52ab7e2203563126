"""Linear algebra on one thread.

The matrices of the laws are small: more threads of BLAS gain little on a quiet machine, and on a busy one they wait for
each other. On one thread the number of cores also changes no digit.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

OPENMP = "KMP_DUPLICATE_LIB_OK"
P = ParamSpec("P")
R = TypeVar("R")


@functools.cache
def _controller() -> ThreadpoolController:
    """Look once for the libraries that are loaded. The import sets a variable, which is the user's program's to set."""
    found = os.environ.get(OPENMP)
    from threadpoolctl import ThreadpoolController

    if found is None:
        os.environ.pop(OPENMP, None)
    return ThreadpoolController()


def on_one_thread(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function use one thread of BLAS while it runs."""

    @functools.wraps(function)
    def limited(*args: P.args, **kwargs: P.kwargs) -> R:
        with _controller().limit(limits=1, user_api="blas"):
            return function(*args, **kwargs)

    return limited
