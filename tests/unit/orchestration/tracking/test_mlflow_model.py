"""The best model in MLflow."""

import logging
import shutil

import pytest
import torch
from torch import nn

from scalestudy.orchestration.study.folders import spec_of
from scalestudy.orchestration.study.trials import train_config
from scalestudy.orchestration.tracking.mlflow_model import find_model, log_best_model, trained_model
from scalestudy.orchestration.tracking.mlflow_store import MlflowStore, TrackedStudy, open_experiment
from scalestudy.orchestration.tracking.server import resolve_address
from scalestudy.training.models import build_model
from scalestudy.training.state import save_state
from tests.support.in_process import scalestudy
from tests.support.pages import blocks, page_text, shell_commands
from tests.support.recordings import entries_of, whole
from tests.support.synthetic_studies import TINY, folder_of, study_of

SPEC = """
name: tiny
workload: {{model: "{model}", data: synthetic, data_args: {{train_samples: 8, test_samples: 8}}}}
train: {{epochs: 1}}
sweep: {{num_gpus: [1], batch_size: [4], learning_rate: [0.1]}}
"""


class Branching(nn.Module):
    """Looks at its values to choose its way: torch.export refuses it."""

    def __init__(self, num_classes, in_channels):
        super().__init__()
        self.layer = nn.Linear(in_channels * 28 * 28, num_classes)

    def forward(self, inputs):
        outputs = self.layer(inputs.flatten(1))
        return outputs if outputs.sum() > 0 else -outputs


@pytest.fixture(scope="module")
def store(database):
    """A client, and an experiment of its store."""
    return open_experiment(resolve_address(f"sqlite:///{database}"), "models")


def run_and_model(store, tmp_path, model):
    """A trial's run, its configuration, and where its model lies, drawn at random."""
    _, plan, _ = study_of(SPEC.format(model=model))
    client, experiment = store
    torch.manual_seed(3)
    tmp_path.mkdir(exist_ok=True)
    path = tmp_path / "model.pt"
    save_state(build_model(model, (10, 1), {}), path)
    run = client.create_run(experiment).info.run_id
    return run, train_config(plan.trials[0], tmp_path), str(path)


def test_the_model_comes_back_for_any_batch_size_and_is_logged_once(store, tmp_path):
    import mlflow

    client, experiment = store
    run_id, config, path = run_and_model(store, tmp_path, "lenet")
    before = mlflow.get_tracking_uri()
    for _ in range(2):
        log_best_model(client, run_id, config, path)
    assert mlflow.get_tracking_uri() == before
    (output,) = client.get_run(run_id).outputs.model_outputs
    logged = client.get_logged_model(output.model_id)
    assert logged.source_run_id == run_id
    assert logged.experiment_id == experiment
    assert logged.status == "READY"
    mlflow.set_tracking_uri(client.tracking_uri)
    try:
        loaded = mlflow.pytorch.load_model(f"models:/{output.model_id}")
        info = mlflow.models.get_model_info(f"models:/{output.model_id}")
    finally:
        mlflow.set_tracking_uri(before)
    model, example = trained_model(config, path)
    assert example.shape[0] == 2
    assert not model.training
    for size in (1, 2, 7):
        rows = torch.rand(size, 1, 28, 28, generator=torch.Generator().manual_seed(size))
        with torch.no_grad():
            assert torch.equal(loaded(rows), model(rows)), f"batch {size}"
    files = {file.path for file in client.list_logged_model_artifacts(output.model_id, "data")}
    assert "data/model.pt2" in files, files
    assert info.signature.inputs.inputs[0].shape == (-1, 1, 28, 28)
    assert info.signature.outputs.inputs[0].shape == (-1, 10)


def test_the_lines_that_register_the_recommended_model_are_those_of_the_page(store, tmp_path, monkeypatch):
    """Its training is a synthetic one, of weights drawn at random; the records in MLflow are real."""
    import mlflow

    shell, python = blocks(page_text("docs/mlflow.md").partition("## Register ")[2].partition("\n## ")[0])
    advise, run = shell_commands(shell.text)
    folder_of(tmp_path / "runs" / "my-study-1", TINY.replace("name: tiny", "name: my-study"))
    done = scalestudy(*advise[1:], cwd=tmp_path)
    assert (done.returncode, run[:2]) == (0, ["scalestudy", "run"]), done.stderr
    best = folder_of(tmp_path / "runs" / "best-1", (tmp_path / run[2]).read_text("utf-8"))
    monkeypatch.chdir(tmp_path)
    client, _ = store
    shutil.copy(client.tracking_uri.removeprefix("sqlite:///"), tmp_path / "mlflow.db")
    trials = best.read_plan().by_id()
    study = TrackedStudy(spec=spec_of(best), folder=best, trials=trials, config_of=lambda each: train_config(each, "."))
    tracked = MlflowStore(resolve_address(None), study)
    tracked.write(entries_of([whole(line) for line in best.read_trials()]))
    [trial] = trials.values()
    path = tmp_path / "model.pt"
    save_state(build_model("lenet", (10, 1), {}), path)
    log_best_model(tracked.client, tracked.runs[trial.trial_id], train_config(trial, "."), str(path))
    exec(python.text)
    (version,) = tracked.client.search_model_versions("name = 'my-model'")
    assert (int(version.version), version.run_id) == (1, tracked.runs[trial.trial_id])
    info = mlflow.models.get_model_info("models:/my-model/1")
    assert info.signature.inputs.inputs[0].shape == (-1, 1, 28, 28)
    assert info.signature.outputs.inputs[0].shape == (-1, 10)


def test_a_model_that_can_not_be_exported_is_logged_as_its_parameters(store, tmp_path, caplog):
    client, _ = store
    run_id, config, path = run_and_model(store, tmp_path, f"{__name__}:Branching")
    with caplog.at_level(logging.WARNING):
        log_best_model(client, run_id, config, path)
    run = client.get_run(run_id)
    assert run.data.tags["scalestudy.model"].startswith("state_dict only; torch.export refused")
    assert [file.path for file in client.list_artifacts(run.info.run_id, "model")] == ["model/model.pt"]
    assert "parameters alone" in caplog.text


def test_a_model_of_changed_code_says_so_and_is_the_kept_parameters_in_the_code_of_now(store, tmp_path):
    client, _ = store
    run_id, config, path = run_and_model(store, tmp_path, "lenet")
    said = log_best_model(client, run_id, config, path, changed=["mine", "rates"])
    assert said == "its code is not what it was trained with: mine, rates"
    logged = client.get_logged_model(find_model(client, run_id))
    assert client.get_run(run_id).data.tags["scalestudy.model"] == logged.tags["scalestudy.model"] == said


@pytest.mark.parametrize(
    ("changed", "cause"),
    [
        (["mine"], "its code is not what it was trained with: mine; it can't be built here: RuntimeError: "),
        ([], "it can't be built here: RuntimeError: "),
    ],
)
def test_a_kept_state_that_the_code_of_now_does_not_take_is_one_clear_line(store, tmp_path, caplog, changed, cause):
    client, _ = store
    run_id, config, path = run_and_model(store, tmp_path, f"{__name__}:Branching")
    with caplog.at_level(logging.WARNING):
        said = log_best_model(client, run_id, config.replace(model="lenet"), path, changed=changed)
    assert said == client.get_run(run_id).data.tags["scalestudy.model"]
    assert said.startswith(f"state_dict only; {cause}Error(s) in loading state_dict for LeNet")
    assert len(said.splitlines()) == 1
    assert caplog.messages == [f"the model is logged as its parameters alone: {said.partition('; ')[2]}"]


def test_a_model_that_exits_as_it_is_built_is_logged_as_its_parameters(store, tmp_path):
    """Where it was trained it did not: it would end the thread that writes to MLflow."""
    run, config, path = run_and_model(store, tmp_path, f"{__name__}:Branching")
    log_best_model(store[0], run, config.replace(model="tests.support.quitting:model_built"), path)
    told = store[0].get_run(run).data.tags["scalestudy.model"]
    assert told == "state_dict only; it can't be built here: SystemExit: the licence server is away"


def test_the_model_of_a_task_is_logged_as_its_parameters(store, tmp_path):
    """Only the task knows how it is called."""
    client, _ = store
    run_id, config, path = run_and_model(store, tmp_path, "lenet")
    log_best_model(client, run_id, config.replace(task="my_task:Task", metric="f1"), path)
    tag = client.get_run(run_id).data.tags["scalestudy.model"]
    assert tag == "state_dict only; only its task, my_task:Task, knows how it is called"
    assert [file.path for file in client.list_artifacts(run_id, "model")] == ["model/model.pt"]
