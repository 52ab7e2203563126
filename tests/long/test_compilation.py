"""Trainings with `compile: true`; `docs/chapter/compile.py`, whole, with a fresh cache and without a compiler."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from scalestudy.training.loop.train import train
from tests.support.gloo import GlooPool
from tests.support.studies import REPOSITORY
from tests.support.training.helpers import ALONE, largest_difference, make_config, run_training, same_bits


def test_compiled_trains_the_same_but_for_rounding() -> None:
    """The names of its parameters too."""
    plain, compiled = (run_training(ALONE, make_config(compile=choice)) for choice in (False, True))
    assert plain["state"].keys() == compiled["state"].keys()
    assert largest_difference(plain["state"], compiled["state"]) < 1e-5


@pytest.mark.chaos
def test_every_trial_of_a_warm_process_is_compiled() -> None:
    """PyTorch compiles a function at most eight times, and runs it as it is from then on, with one warning."""
    from torch._dynamo.utils import counters

    for width in range(3, 9):
        counters.clear()
        train(make_config(compile=True, model_args={"hidden": [width]}), ALONE)
        assert counters["stats"]["unique_graphs"] >= 1, width


@pytest.mark.chaos
def test_compiled_by_ddp_with_a_smaller_last_batch(ranks: GlooPool) -> None:
    config = make_config(compile=True, data_args={"train_samples": 100, "test_samples": 16})
    first, second = ranks.run(2, run_training, config)
    (alone,) = ranks.run(1, run_training, make_config(data_args={"train_samples": 100, "test_samples": 16}))
    assert same_bits(first["state"], second["state"])
    assert largest_difference(first["state"], alone["state"]) < 1e-5


def chapter(**variables: str) -> str:
    """What the chapter's script prints on a CPU, with variables added to its environment."""
    command = [sys.executable, REPOSITORY / "docs" / "chapter" / "compile.py", "--device", "cpu"]
    environment = {**os.environ, **variables}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def test_without_a_compiler_the_rest_is_shown() -> None:
    shown = chapter(CXX="no-such-compiler")
    assert "constants folded" in shown
    assert re.search(
        r"nothing can be compiled here \(.*No working C\+\+ compiler found.*\); install a C\+\+ compiler", shown
    )


@pytest.mark.chaos
def test_models_are_compiled_and_give_the_same() -> None:
    lines = chapter().splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("model  "))
    rows = [re.split(r" {2,}", line) for line in lines[start + 1 : start + 4]]
    assert [row[0] for row in rows] == ["mlp", "lenet", "resnet18"]
    for _, _, _, _, _, compiling, _, difference in rows:
        assert float(compiling) > 0.05  # s; anew: nothing came from a cache
        assert float(difference) < 1e-4
