"""The recommended model in MLflow's registry; MLflow is a real store on sqlite."""

import json
import shlex
import shutil

import pytest
import torch

from scalestudy.orchestration.base.errors import ExitCode, RequestError, UnreachableError
from scalestudy.orchestration.commands.register import register_recommended
from scalestudy.orchestration.commands.study_commands import advise
from scalestudy.orchestration.study.folders import spec_of
from scalestudy.orchestration.study.trials import train_config
from scalestudy.orchestration.tracking.mlflow_model import MODEL, log_best_model
from scalestudy.orchestration.tracking.mlflow_store import MlflowStore, TrackedStudy, open_experiment
from scalestudy.orchestration.tracking.server import resolve_address
from scalestudy.training.models import build_model
from scalestudy.training.state import save_state
from tests.support.in_process import scalestudy
from tests.support.recordings import entries_of, whole
from tests.support.synthetic_studies import TINY, folder_of

SPEC = TINY.replace("model: lenet", "model: mlp")


class Study:
    """A study of four synthetic trials, tracked; the recommended cell is that of `trial`."""

    def __init__(self, place, spec=SPEC, *, only=False):
        self.folder = folder_of(place / "tiny-1", spec)
        self.spec, self.plan = spec_of(self.folder), self.folder.read_plan()
        if only:
            [self.trial] = self.plan.trials
            return
        chosen = advise(self.folder.path).data["recommended"]["params"]
        self.trial = next(trial for trial in self.plan.trials if trial.cell == chosen)
        self.other = next(trial for trial in self.plan.trials if trial.cell != chosen)

    def track(self):
        study = TrackedStudy(
            spec=self.spec,
            folder=self.folder,
            trials=self.plan.by_id(),
            config_of=lambda trial: train_config(trial, "data"),
        )
        self.store = MlflowStore(resolve_address(None), study)
        self.store.write(entries_of([whole(trial) for trial in self.folder.read_trials()]))

    def keep(self, trial):
        """Keeps weights of a trial, as its workers do."""
        torch.manual_seed(3)
        file = self.folder.model_file(trial.trial_id)
        file.parent.mkdir(parents=True)
        save_state(build_model("mlp", (10, 1), {}), file)
        return str(file)


@pytest.fixture(scope="module")
def empty_store(tmp_path_factory):
    """MLflow's database with its tables and nothing in them: it takes seconds to make."""
    file = tmp_path_factory.mktemp("store") / "mlflow.db"
    open_experiment(resolve_address(f"sqlite:///{file}"), "none")
    return file


@pytest.fixture(scope="module")
def kept(tmp_path_factory, empty_store):
    """A study whose recommended trial's model MLflow has. Nobody changes it."""
    place = tmp_path_factory.mktemp("kept")
    shutil.copy(empty_store, place)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        study = Study(place)
        study.track()
        run, path = study.store.runs[study.trial.trial_id], study.keep(study.trial)
        log_best_model(study.store.client, run, train_config(study.trial, "data"), path)
        yield study


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_recommended_model_is_registered_with_its_signature(kept):
    import mlflow

    place = kept.folder.path.parent
    done = scalestudy("register", "tiny-1", "--name", "digits", cwd=place)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        f"digits version 1: the model of {kept.trial.name}; to load it: mlflow.pytorch.load_model('models:/digits/1')\n"
    )
    again = scalestudy("register", "tiny-1", "--name", "digits", "--json", cwd=place)
    assert json.loads(again.stdout)["version"] == 1, "it is there already"
    client = kept.store.client
    (version,) = client.search_model_versions("name = 'digits'")
    assert version.run_id == kept.store.runs[kept.trial.trial_id]
    mlflow.set_tracking_uri(client.tracking_uri)
    try:
        info = mlflow.models.get_model_info("models:/digits/1")
    finally:
        mlflow.set_tracking_uri(None)
    assert info.signature.inputs.inputs[0].name is None
    assert info.signature.outputs.inputs[0].shape == (-1, 10)


def test_of_weights_that_were_not_kept_the_command_is_printed(place, empty_store):
    shutil.copy(empty_store, place)
    study = Study(place)
    study.track()
    study.keep(study.other)
    done = scalestudy("register", "tiny-1", "--name", "digits", cwd=place)
    assert done.returncode == ExitCode.SOME_FAILED
    spec, run, register = done.stdout.splitlines()
    assert shlex.split(run) == ["scalestudy", "run", "tiny-best.yaml"]
    assert shlex.split(register) == ["scalestudy", "register", "latest", "--name", "digits"]
    assert len(done.stderr.splitlines()) == 1
    done = scalestudy(*shlex.split(spec)[1:], cwd=place)
    assert (done.returncode, (place / "tiny-best.yaml").exists()) == (0, True)
    done = scalestudy("register", "tiny-1", "--name", "digits", cwd=place)
    assert "a study keeps its best trial's weights alone" in done.stderr
    as_json = json.loads(scalestudy("register", "tiny-1", "--name", "digits", "--json", cwd=place).stdout)
    assert (as_json["version"], as_json["commands"]) == (None, done.stdout.splitlines())


def test_the_only_cell_of_a_study_is_registered(place, empty_store):
    shutil.copy(empty_store, place)
    study = Study(place, SPEC.replace("num_gpus: [1, 2]", "num_gpus: [1]").replace("[0.1, 0.2]", "[0.2]"), only=True)
    study.track()
    path, run = study.keep(study.trial), study.store.runs[study.trial.trial_id]
    log_best_model(study.store.client, run, train_config(study.trial, "data"), path, changed=["mine"])
    registered = register_recommended(study.folder.path, "digits")
    assert registered.trial == study.trial.name
    assert f"{study.trial.name} (its code is not what it was trained with: mine); to load" in registered.words


def test_a_model_that_mlflow_has_not_got_is_named_with_the_remedy(place, empty_store):
    study = Study(place)
    with pytest.raises(RequestError, match=r"has no run of tiny-1; scalestudy ui .*tiny-1 --sync sends it"):
        register_recommended(study.folder.path, "digits")
    assert not (place / "mlflow.db").exists()
    shutil.copy(empty_store, place)
    study.track()
    study.keep(study.trial)
    with pytest.raises(RequestError, match=r"does not have the model of .*; scalestudy ui .* --sync"):
        register_recommended(study.folder.path, "digits")
    run = study.store.runs[study.trial.trial_id]
    study.store.client.set_tag(run, MODEL, "state_dict only; torch.export refused: it")
    with pytest.raises(RequestError, match=r"state_dict only; torch.export refused: it; load model/model.pt"):
        register_recommended(study.folder.path, "digits")


def test_mlflow_out_of_reach_is_told_in_a_line(place):
    study = Study(place, SPEC + "tracking: {uri: 'http://127.0.0.1:9'}\n")
    with pytest.raises(UnreachableError, match=r"http://127\.0\.0\.1:9: nobody listens there"):
        register_recommended(study.folder.path, "digits")
