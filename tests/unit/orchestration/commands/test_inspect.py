"""`scalestudy inspect`: every model that a study trains, its parameters and their memory."""

import io
import json

import pytest
from rich.console import Console

from scalestudy.orchestration.base.errors import RequestError
from scalestudy.orchestration.commands import show
from scalestudy.orchestration.commands.inspect import inspect_study
from tests.support.in_process import scalestudy
from tests.support.studies import left_behind, write_spec

FAULTS = "tests.unit.training.test_fault"
TIED = {"model": "mlp", "data": "digits", "model_args": {"hidden": [8], "shared": 2, "batch_norm": True}}


def printed(variants):
    console = Console(file=io.StringIO(), width=60)
    show.variants(console, variants)
    return console.file.getvalue().splitlines()


def test_the_table_of_a_model(tmp_path):
    lines = printed(inspect_study(write_spec(tmp_path, workload=TIED, train={"optimizer": {"momentum": 0.9}})))
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
    variants = inspect_study(write_spec(tmp_path, sweep=sweep))
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


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        (
            {"model": "torchvision:resnet19"},
            "workload.model: 'torchvision:resnet19': .* no classifier .*; did you mean",
        ),
        ({"model": "lenet", "model_args": {"init": "zero"}}, "model_args.init: 'zero' is not known; choose one of"),
        ({"model": "lenet", "model_args": {"layers": 3}}, "unexpected keyword argument 'layers'; it takes num_classes"),
        (
            {"model": "tests.support.user_models:fails_when_built"},
            r"^workload.model: .*: LookupError: no weights for this model \(user_models.py:\d+, in fails_when_",
        ),
        (
            {"data": f"{FAULTS}:raises_when_loaded"},
            r"^workload.data: .*: LookupError: .*, in raises_when_loaded\)",
        ),
        (
            {"data": f"{FAULTS}:raises_when_read"},
            r"^workload.data: .*: KeyError: 48 \(test_fault.py:\d+, in __g",
        ),
        ({"model": "tests.support.user_models:nothing"}, "no callable 'nothing'; correct the name"),
    ],
)
def test_a_model_that_can_not_be_built_is_a_request_error(tmp_path, workload, message):
    with pytest.raises(RequestError, match=message) as caught:
        inspect_study(write_spec(tmp_path, workload={"model": "lenet", "data": "digits", **workload}))
    assert "\n" not in str(caught.value)


def test_the_model_of_an_iterable_data_set_is_shown_and_its_training_needs_steps(tmp_path):
    named = {"model": "docs.examples.waves:build", "data": "docs.examples.waves:load"}
    waves = {**named, "loss": "mse", "metric": "mse", "metric_mode": "min"}
    lines = printed(inspect_study(write_spec(tmp_path, workload=waves, train={"steps": 9})))
    assert "577 numbers to train" in lines[-2], "16 · 32 + 32 and 32 + 1"
    with pytest.raises(RequestError, match=r"epochs: .* iterable data set, .*; give train\.steps in its place"):
        inspect_study(write_spec(tmp_path, workload=waves, train={"epochs": 2}))


def test_the_command_prints_plain_data_and_writes_nothing(tmp_path):
    done = scalestudy("inspect", "digits-quick", "--set", "workload.model=resnet18", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (variant,) = json.loads(done.stdout)
    first = variant["inspection"]["parameters"][0]
    assert (first["name"], first["shape"], variant["seed"]) == ("0.0.weight", [64, 1, 3, 3], 0)
    assert left_behind(tmp_path) == []


def test_data_that_are_not_there_are_told_as_run_tells_them(tmp_path):
    spec = write_spec(tmp_path, workload={"model": "lenet", "data": "mnist"})
    done = scalestudy("inspect", spec, cwd=tmp_path, SCALESTUDY_DATA=str(tmp_path / "none"))
    assert done.returncode == 2
    assert "scalestudy data fetch mnist" in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1
