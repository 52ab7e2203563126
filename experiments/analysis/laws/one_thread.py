"""Linear algebra on one thread.

The matrices of the laws are small: more threads of BLAS gain little on a quiet machine, and on a busy one they wait for
each other. On one thread the number of cores also changes no digit.
"""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from threadpoolctl import ThreadpoolController

P = ParamSpec("P")
R = TypeVar("R")


@functools.cache
def _controller() -> ThreadpoolController:
    """Look once for the libraries that are loaded."""
    return ThreadpoolController()


def on_one_thread(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function use one thread of BLAS while it runs."""

    @functools.wraps(function)
    def limited(*args: P.args, **kwargs: P.kwargs) -> R:
        with _controller().limit(limits=1, user_api="blas"):
            return function(*args, **kwargs)

    return limited
