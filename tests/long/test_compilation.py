"""Trainings with `compile: true`; `bench compile`, whole, with a fresh cache and without a compiler."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import torch

from scalestudy.training.chapter.compilation import run
from scalestudy.training.loop.train import train
from tests.support.gloo import GlooPool
from tests.support.training.helpers import ALONE, largest_difference, make_config, run_training, same_bits


def test_compiled_trains_the_same_but_for_rounding() -> None:
    """The names of its parameters too."""
    plain, compiled = (run_training(ALONE, make_config(compile=choice)) for choice in (False, True))
    assert plain["state"].keys() == compiled["state"].keys()
    assert largest_difference(plain["state"], compiled["state"]) < 1e-5


def test_every_trial_of_a_warm_process_is_compiled() -> None:
    """PyTorch compiles a function at most eight times, and runs it as it is from then on, with one warning."""
    from torch._dynamo.utils import counters

    for width in range(3, 9):
        counters.clear()
        train(make_config(compile=True, model_args={"hidden": [width]}), ALONE)
        assert counters["stats"]["unique_graphs"] >= 1, width


def test_compiled_by_ddp_with_a_smaller_last_batch(ranks: GlooPool) -> None:
    config = make_config(compile=True, data_args={"train_samples": 100, "test_samples": 16})
    first, second = ranks.run(2, run_training, config)
    (alone,) = ranks.run(1, run_training, make_config(data_args={"train_samples": 100, "test_samples": 16}))
    assert same_bits(first["state"], second["state"])
    assert largest_difference(first["state"], alone["state"]) < 1e-5


WITHOUT_COMPILER = """
import json, torch
from scalestudy.training.chapter.compilation import run
print(json.dumps(run(torch.device("cpu"), quick=True).to_dict()))
"""


def test_without_a_compiler_the_rest_is_shown() -> None:
    """In a process of its own: PyTorch remembers the compiler that it looked for."""
    environment = {**os.environ, "CXX": "no-such-compiler"}
    command = [sys.executable, "-c", WITHOUT_COMPILER]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert [table["title"].split()[0] for table in found["tables"]] == ["A", "What"]  # the text and the traces
    assert found["metrics"]["breaks_print_count"] == 1
    (note,) = (note for note in found["notes"] if "not compiled" in note)
    assert "No working C++ compiler found" in note
    assert note.endswith("install a C++ compiler.")


def test_models_are_compiled_and_give_the_same() -> None:
    found = run(torch.device("cpu"), quick=True)
    models = found.tables[1]
    assert models.column("model") == ["lenet"]
    assert all(difference < 1e-5 for difference in models.column("max difference"))
    assert all(seconds > 0.05 for seconds in models.column("compiling (s)"))  # anew: nothing came from a cache
    assert (
        found.metrics["lenet_eager_peak_bytes"] >= 2 * 8 * 20 * 26 * 26 * 4
    )  # the first layer's output, and its ReLU's
    assert found.metrics["breaks_item_count"] == 1
