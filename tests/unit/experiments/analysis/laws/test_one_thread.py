"""The laws use one thread of BLAS, and leave the others as they were."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from scalestudy.experiments.analysis.laws import steps_to_target as steps
from scalestudy.experiments.analysis.laws.one_thread import on_one_thread
from scalestudy.experiments.analysis.laws.steps_to_target import steps_to_target
from tests.support.arrivals import arrived


def threads() -> set[int]:
    """Of each library of BLAS that is loaded."""
    return {each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"}


def test_one_thread_while_it_runs_and_as_many_as_before_after() -> None:
    with threadpool_limits(2, user_api="blas"):
        assert threads() == {2}
        assert on_one_thread(threads)() == {1}
        assert threads() == {2}


def test_an_error_gives_the_threads_back() -> None:
    @on_one_thread
    def failing() -> None:
        raise ValueError("no law")

    with threadpool_limits(2, user_api="blas"):
        with pytest.raises(ValueError, match="no law"):
            failing()
        assert threads() == {2}


def test_the_steps_to_a_target_are_drawn_on_one(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, drawn = [], steps._drawn

    def looked(*arguments: Any) -> Any:
        seen.append(threads())
        return drawn(*arguments)

    monkeypatch.setattr(steps, "_drawn", looked)
    places = np.array([(size, 0.1, 1.0) for size in (32.0, 64.0, 128.0)])
    with threadpool_limits(2, user_api="blas"):
        steps_to_target(places, arrived(np.log([400.0, 250.0, 180.0]), np.arange(3)), np.random.default_rng(0))
    assert seen == [{1}]


def test_the_environment_of_the_program_stays_as_it_was() -> None:
    program = """
import os
os.environ.pop("KMP_DUPLICATE_LIB_OK", None)
before = dict(os.environ)
from scalestudy.experiments.analysis.laws.one_thread import on_one_thread
assert on_one_thread(int)() == 0
assert dict(os.environ) == before
"""
    subprocess.run([sys.executable, "-c", program], check=True)
