"""The experiments' names."""

from __future__ import annotations

import subprocess
import sys

import pytest

from scalestudy.training.chapter import EXPERIMENTS, find_experiment


def test_every_name_leads_to_a_run() -> None:
    assert list(EXPERIMENTS) == ["async", "compile", "export", "parallel", "overlap", "allreduce"]
    assert all(callable(find_experiment(name)) for name in EXPERIMENTS)


def test_an_unknown_name_is_refused_with_the_choices() -> None:
    with pytest.raises(ValueError, match="bench: 'fast' is not known; choose one of async, compile"):
        find_experiment("fast")


def test_names_are_listed_without_torch() -> None:
    code = "import sys, scalestudy.training.chapter; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
