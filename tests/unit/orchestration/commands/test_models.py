"""The models that `plan --rehearse` shows: each that a study trains, its parameters and their memory."""

import io

import pytest
from rich.console import Console

from scalestudy.experiments.plan.plan import make_plan
from scalestudy.orchestration.commands import show
from scalestudy.orchestration.commands.models import inspect_models
from scalestudy.orchestration.study.folders import read_spec
from scalestudy.orchestration.study.ready import check_data, known_trials
from tests.support.studies import write_spec

TIED = {"model": "mlp", "data": "digits", "model_args": {"hidden": [8], "shared": 2, "batch_norm": True}}


def inspected(path):
    spec = read_spec(path)
    return inspect_models(known_trials(spec, make_plan(spec)), check_data(spec))


def printed(variants):
    console = Console(file=io.StringIO(), width=60)
    show.variants(console, variants)
    return console.file.getvalue().splitlines()


def test_the_table_of_a_model(tmp_path):
    lines = printed(inspected(write_spec(tmp_path, workload=TIED, train={"optimizer": {"momentum": 0.9}})))
    assert lines[0].split() == ["name", "shape", "count", "mean", "std", "shared", "with"]
    rows = {line.split()[0]: line for line in lines[1:-2]}
    assert rows["1.weight"].split()[1:5] == ["8", "×", "784", "6,272"]
    assert rows["4.weight"].endswith("7.weight")
    assert "7.weight" not in rows
    # 784 · 8 + 8 weights and biases, 8 · 8 + 8 shared ones, three times 2 · 8 of batch normalisation, 8 · 10 + 10
    assert "mlp for digits, drawn with seed 0: 6,490 numbers to train" in lines[-2]
    assert "51 in buffers" in lines[-2]
    assert "optimizer (sgd) 26.0 kB" in lines[-1]


def test_each_model_of_a_sweep_is_shown_once(tmp_path):
    sweep = {
        "num_gpus": [1, 2],
        "batch_size": [64],
        "learning_rate": [0.1, 0.2],
        "seed": [3, 4],
        "train.optimizer.name": ["sgd", "adam"],
    }
    variants = inspected(write_spec(tmp_path, sweep=sweep))
    assert [variant.params for variant in variants] == [
        {"train.optimizer.name": "sgd"},
        {"train.optimizer.name": "adam"},
    ]
    assert {variant.seed for variant in variants} == {3}
    sgd, adam = (variant.inspection.memory for variant in variants)
    assert (sgd.optimizer, adam.optimizer) == (0, 2 * adam.parameters + 8 * 4)
    assert [line for line in printed(variants) if line.startswith("name=")] == ["name=sgd", "name=adam"]


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1_500, "1.50 kB"),
        (26_000, "26.0 kB"),
        (498_392, "498 kB"),
        (44_700_000, "44.7 MB"),
        (2_000_000_000, "2.00 GB"),
    ],
)
def test_sizes_have_three_digits(size, text):
    assert show.bytes_text(size) == text


def test_the_model_of_an_iterable_data_set_is_shown(tmp_path):
    named = {"model": "docs.examples.waves:build", "data": "docs.examples.waves:load"}
    waves = {**named, "loss": "mse", "metric": "mse", "metric_mode": "min"}
    lines = printed(inspected(write_spec(tmp_path, workload=waves, train={"steps": 9})))
    assert "577 numbers to train" in lines[-2], "16 · 32 + 32 and 32 + 1"
