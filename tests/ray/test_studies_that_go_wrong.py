"""A study in which everything fails that can; and studies that are refused."""

import html
import json
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from mlflow import MlflowClient

from scalestudy import run_study
from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.orchestration.base.errors import ExitCode, RequestError, UnreachableError
from scalestudy.orchestration.cluster import node_checks as clusters
from scalestudy.orchestration.cluster import nodes
from scalestudy.orchestration.storage.lock import lock_of
from scalestudy.orchestration.study.opening import open_resumed
from scalestudy.orchestration.study.study import StudyResult
from scalestudy.training.config import TrainConfig
from scalestudy.training.distributed import Worker
from scalestudy.training.loop.train import train
from tests.ray.conftest import run_by_command
from tests.support import telling_models
from tests.support.in_process import scalestudy
from tests.support.studies import left_behind, write_spec

POINTS = [
    {"num_gpus": 1, "batch_size": 256, "learning_rate": 1.0e38},
    {"num_gpus": 1, "batch_size": 256, "learning_rate": 0.1},
    {"num_gpus": 2, "batch_size": 256, "learning_rate": 0.1},
]
MODEL = "tests.support.telling_models:Mistaken"
RAISED = "ValueError: raised: *** at postgresql://bob:***@db/mlflow"


@dataclass(frozen=True)
class Mended:
    """A study that stopped for a mistake in the model, and went on without it."""

    stopped: StudyResult
    trials: list[dict[str, Any]]  # when it had stopped
    printed: list[subprocess.CompletedProcess[str]]  # of the run and of the resume
    folder: StudyFolder


@pytest.fixture(scope="module")
def study(cluster, module_place):
    """With the mistake every trial fails; without it 1e38 diverges, and of two workers the model still raises."""
    mistake = module_place / "mistake"
    mistake.touch()
    spec = write_spec(
        module_place,
        workload={"model": MODEL, "model_args": {"mistake": str(mistake)}, "data": "digits"},
        train={"epochs": 1},
        sweep={"points": POINTS, "seed": [0]},
    )
    stopped, first = run_by_command("run", spec, "--address", "local", "--no-rehearsal", cwd=module_place)
    folder = StudyFolder(stopped.folder)
    trials = folder.read_trials()

    began = json.loads((entry := folder.journal_folder / "00000001.json").read_text("utf-8"))
    files = began["event"]["fingerprint"]["code"]["tests.support.telling_models"]
    files["tests/support/telling_models.py"] = "of before an edit"
    entry.write_text(json.dumps(began), "utf-8")
    mistake.unlink()
    arguments = ("--retry-failed", "--address", "local", "--no-rehearsal")
    again = scalestudy("resume", folder.path, *arguments, cwd=module_place)
    return Mended(stopped, trials, [first, again], folder)


@pytest.fixture(scope="module")
def trials(study):
    """By workers and rate."""
    found = study.folder.read_trials()
    return {(trial["params"]["num_gpus"], trial["params"]["learning_rate"]): trial for trial in found}


def test_a_study_whose_first_trials_fail_alike_stops(study):
    printed = study.printed[0]
    assert study.stopped.exit_code == printed.returncode == ExitCode.SOME_FAILED
    assert "failed with the same error, and none has a result: KeyError: 'a mistake'" in printed.stdout
    assert f"mend the code, then: scalestudy resume {study.stopped.address} --retry-failed" in printed.stdout
    assert [(trial["status"], trial["params"]["learning_rate"]) for trial in study.trials] == [
        ("failed", 1.0e38),
        ("failed", 0.1),
    ]


def test_what_has_failed_can_be_run_again_once_the_code_is_mended(study, trials):
    """As a new attempt; an edit in between is told."""
    printed = study.printed[1]
    told, training = (
        printed.stdout.index(word) for word in ("changed since: tests/support/telling_models.py\n", ": training")
    )
    assert told < training
    ends = {place: (trial["status"], trial["attempts"]) for place, trial in trials.items()}
    assert ends == {(1, 1.0e38): ("diverged", 2), (1, 0.1): ("finished", 3), (2, 0.1): ("failed", 1)}
    assert len(study.folder.trials_file.read_text("utf-8").splitlines()) == len(trials)


def test_a_failing_trial_fails_and_the_study_goes_on(study, trials):
    assert study.printed[1].returncode == ExitCode.SOME_FAILED
    counts = json.loads(study.folder.summary_file.read_text("utf-8"))["trials"]
    assert (counts["finished"], counts["diverged"], counts["failed"]) == (1, 1, 1)
    failed = trials[2, 0.1]
    assert failed["error"]["rank"] == 1
    assert failed["error"]["message"].startswith(RAISED)
    assert RAISED in html.unescape(study.folder.report_file.read_text("utf-8"))
    client = MlflowClient(tracking_uri=study.stopped.tracking_uri)
    (run,) = client.search_runs(
        [client.get_experiment_by_name("small").experiment_id], f"tags.`scalestudy.trial_id` = '{failed['trial_id']}'"
    )
    assert run.info.status == "FAILED"
    assert RAISED in run.data.tags["scalestudy.error"]
    traceback = Path(client.download_artifacts(run.info.run_id, "traceback.txt")).read_text("utf-8")
    assert traceback.startswith("Traceback (most recent call last)")
    assert RAISED in traceback


def test_a_retry_that_is_refused_changes_nothing(study, module_place):
    before = study.folder.trials_file.read_bytes()
    nothing = scalestudy("resume", study.folder.path, "--retry-failed", "--only", "no_room", cwd=module_place)
    assert nothing.returncode == 2, nothing.stdout
    assert "--only: no_room" in nothing.stderr
    with lock_of(study.folder):
        busy = scalestudy("resume", study.folder.path, "--retry-failed", cwd=module_place)
    assert (busy.returncode, busy.stdout) == (2, "")
    assert "is being run by process" in busy.stderr
    assert study.folder.trials_file.read_bytes() == before


def test_a_trial_that_would_begin_with_another_s_weights_is_trained_by_fresh_workers(study, trials):
    """The model keeps its layer, whose weights the trial before has made NaN. A later run knows."""
    why = "the model's layer.weight was trained by an earlier trial"
    assert f"every trial gets fresh workers: {why}" in study.printed[1].stdout
    assert f"Every trial got fresh workers: {why}." in html.unescape(study.folder.report_file.read_text("utf-8"))
    assert open_resumed(study.folder.path).history.fresh_workers == why
    assert [failure["kind"] for failure in trials[1, 0.1]["failures"]] == ["used_workers"]
    own = {"model": MODEL, "model_args": {"mistake": ""}, "data": "digits", "epochs": 1}
    alone = TrainConfig.from_dict({**own, "batch_size": 256, "learning_rate": 0.1})
    telling_models.kept_layer.cache_clear()  # this process has loaded the best model for MLflow
    here = Worker(rank=0, world_size=1, device=torch.device("cpu"), threads=1)
    (epoch,) = train(alone, here).records
    (told,) = trials[1, 0.1]["epochs"]
    assert told["train_loss"] == epoch.train_loss
    # the last bits of the test set's float32 sums depend on the process
    assert told["test_loss"] == pytest.approx(epoch.test_loss, rel=1e-6)


def test_more_workers_than_the_cluster_can_have(cluster, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    spec = write_spec(tmp_path, sweep={"num_gpus": [64], "batch_size": [256], "learning_rate": [0.1]})
    with pytest.raises(RequestError, match=r"sweep.num_gpus: 64: the cluster has room for 4 CPU workers"):
        run_study(spec)
    refused = scalestudy("run", spec, "--address", "local", cwd=tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "sweep.num_gpus: 64" in refused.stderr
    assert "resources.oversubscribe" in refused.stderr
    assert left_behind(tmp_path) == ["study.yaml"]


def test_what_the_device_does_not_have(cluster, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    spec = write_spec(tmp_path, train={"epochs": 1, "precision": "tf32"})
    with pytest.raises(RequestError, match=r"train\.precision: tf32: not available on the cpu of "):
        run_study(spec)
    assert left_behind(tmp_path) == ["study.yaml"]


@pytest.fixture
def refuse(cluster, place, monkeypatch):
    """Runs a study whose storage a node can't read; meanwhile: what happens at that moment."""

    def run(meanwhile=lambda folder: None):
        def refused(folder, nodes):
            meanwhile(folder)
            raise UnreachableError(f"storage: {folder}: can't be read on host-2", "name a shared folder")

        monkeypatch.setattr(clusters, "check_shared_storage", refused)
        with pytest.raises(UnreachableError, match="host-2"):
            run_study(write_spec(place))
        return place

    return run


def test_a_storage_that_a_node_cannot_read_leaves_no_folder(refuse):
    assert left_behind(refuse()) == ["mlflow.db", "study.yaml"]


def test_a_refused_study_leaves_one_alone_that_began_beside_it(refuse):
    place = refuse(lambda folder: (folder.parent / "other").mkdir())
    assert [path.name for path in (place / "runs").iterdir()] == ["other"]


@pytest.mark.chaos
def test_a_study_whose_only_size_can_t_be_had_ends_with_its_line_and_is_resumed(cluster, place, monkeypatch):
    """The cluster seems to shrink to one CPU as soon as the study has begun."""
    sweep = {"num_gpus": [2], "batch_size": [64], "learning_rate": [0.1], "seed": [0]}
    write_spec(place, sweep=sweep, limits={"stalled_seconds": 3})
    whole = nodes.alive_nodes
    with monkeypatch.context() as shrunken:
        shrunken.setattr(nodes, "alive_nodes", lambda: [replace(node, cpus=1.0) for node in whole()])
        result, printed = run_by_command("run", "study.yaml", "--address", "local", "--out", "out", cwd=place)
    assert (printed.returncode, result.exit_code) == (3, 3), printed.stdout + printed.stderr
    assert result.broken == (
        "each of 1 trial left was put off 3 times, and none ended in between; the last time: no_room: nodes were lost "
        "or are draining: the cluster has room for 1 workers, and the trial needs 2; add nodes, or remove this num_gpus"
    )
    assert StudyFolder(result.folder).read_trials() == []
    resumed = scalestudy("resume", "out", "--address", "local", cwd=place)
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    (trial,) = StudyFolder(result.folder).read_trials()
    assert (trial["status"], {failure["kind"] for failure in trial["failures"]}) == ("finished", {"no_room"})
