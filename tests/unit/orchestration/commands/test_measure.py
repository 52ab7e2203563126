"""`plan --measure`: which cell is timed, and what it says of the study's cost."""

import json
import time

import pytest

from scalestudy.experiments.plan.plan import make_plan
from scalestudy.orchestration.base.errors import RequestError
from scalestudy.orchestration.commands import planning
from scalestudy.orchestration.commands.measure import cell_to_time, measure_cells, time_training
from tests.support.in_process import scalestudy
from tests.support.studies import write_spec
from tests.support.synthetic_studies import spec_of
from tests.support.training.helpers import ALONE
from tests.support.training.streams import counted_config
from tests.support.training.tasks import task_config

GRID = """
name: x
workload: {model: lenet, data: digits, model_args: {init: xavier}}
train: {epochs: 3, warmup_epochs: 2, schedule: cosine}
sweep: {num_gpus: [1, 2], batch_size: [32, 64, 128], learning_rate: [0.1, 0.2]}
"""


@pytest.mark.parametrize(("sizes", "batch"), [("[1, 2]", 64), ("[4, 8]", 16)])
def test_one_worker_trains_its_share_of_the_middle_batch_of_the_fewest_workers(sizes, batch):
    cell = cell_to_time(make_plan(spec_of(GRID.replace("[1, 2]", sizes))).trials)
    assert (cell.kind, cell.num_gpus, cell.batch_size) == ("timing", 1, batch)


def test_a_data_set_without_a_length_is_refused_in_one_line():
    with pytest.raises(
        ValueError, match=r"^data: '.*' is an iterable data set, and the length of its epochs is not known$"
    ):
        time_training(counted_config(), ALONE, 1.0)


def test_an_epoch_of_a_dict_of_tensors_is_counted_by_its_rows():
    figures = time_training(task_config("two_inputs", epochs=1000), ALONE, 0.0)
    assert figures["epoch_examples"] == 100, "houses"
    assert 0 < figures["evaluation_seconds"] < 100 * figures["example_seconds"]


@pytest.mark.slow
def test_a_cheap_cell_is_trained_and_the_plan_says_how_long(tmp_path, monkeypatch):
    """Without any earlier study: the whole way, in a folder of a user."""
    monkeypatch.setenv("SCALESTUDY_HOME", str(tmp_path / "home"))
    (tmp_path / "study.yaml").write_text(GRID)
    began = time.monotonic()
    done = scalestudy("plan", "study.yaml", "--measure", "--json", cwd=tmp_path)
    assert time.monotonic() - began < 60
    assert done.returncode == 0, done.stderr
    cost = json.loads(done.stdout)["estimate"]
    assert 0 < cost["seconds"]["low"] < cost["seconds"]["middle"] < cost["seconds"]["high"]
    assert cost["timed"] == 2, "two rates of the cell that was timed"
    assert cost["rests_on"] == ["workers=1 batch=64 trained here now"]


@pytest.mark.slow
def test_a_model_that_fails_is_told_with_what_it_said(tmp_path):
    model = {"model": "tests.support.user_models:fails_when_built", "data": "digits"}
    done = scalestudy("plan", write_spec(tmp_path, workload=model), "--measure", cwd=tmp_path)
    assert done.returncode == 2
    assert "--measure: workers=1 batch=64" in done.stderr
    assert "no weights for this model" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_training_that_takes_too_long_is_ended(tmp_path):
    trials = make_plan(spec_of(GRID)).trials
    began = time.monotonic()
    with pytest.raises(RequestError, match="took more than 0 s; plan on the machine"):
        measure_cells(trials, tmp_path, device="cpu", threads=1, limit_seconds=0.2)
    assert time.monotonic() - began < 10


def test_another_device_than_this_machine_has_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(planning, "gpus_here", lambda: 0)
    spec = write_spec(tmp_path, resources={"device": "cuda"})
    done = scalestudy("plan", spec, "--measure", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("--measure: the plan is for workers with a GPU, and this machine has none; ")
