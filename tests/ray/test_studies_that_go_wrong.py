"""A study with a failing and a diverged trial; and studies that are refused."""

import html
import json
from dataclasses import replace
from pathlib import Path

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
from scalestudy.training.config import TrainConfig
from scalestudy.training.distributed import Worker
from scalestudy.training.loop.train import train
from tests.ray.conftest import run_by_command
from tests.support import keeping
from tests.support.in_process import scalestudy
from tests.support.studies import left_behind, write_spec

POINTS = [
    {"num_gpus": 1, "learning_rate": 0.1},
    {"num_gpus": 1, "learning_rate": 1.0e38},
    {"num_gpus": 2, "learning_rate": 0.1},
]
RAISED = "ValueError: raised: *** at postgresql://bob:***@db/mlflow"


@pytest.fixture(scope="module")
def done(cluster, module_place):
    """Of two workers the model raises; a rate of 1e38 diverges."""
    spec = write_spec(
        module_place,
        workload={"model": "tests.support.telling_models:Telling", "data": "digits"},
        train={"epochs": 1},
        sweep={"points": [{**point, "batch_size": 256} for point in POINTS], "seed": [0]},
    )
    result, printed = run_by_command("run", spec, "--address", "local", cwd=module_place)
    assert printed.returncode == result.exit_code
    return result


@pytest.fixture(scope="module")
def trials(done):
    """By workers and rate."""
    found = StudyFolder(done.folder).read_trials()
    return {(trial["params"]["num_gpus"], trial["params"]["learning_rate"]): trial for trial in found}


def test_a_failing_model_fails_its_trials_and_the_study_goes_on(done, trials):
    assert done.exit_code == ExitCode.SOME_FAILED
    failed = trials[2, 0.1]
    assert (failed["status"], failed["error"]["rank"]) == ("failed", 1)
    assert failed["error"]["message"].startswith(RAISED)
    assert RAISED in html.unescape((done.folder / "report.html").read_text("utf-8"))
    client = MlflowClient(tracking_uri=done.tracking_uri)
    (run,) = client.search_runs(
        [client.get_experiment_by_name("small").experiment_id], f"tags.`scalestudy.trial_id` = '{failed['trial_id']}'"
    )
    assert run.info.status == "FAILED"
    assert RAISED in run.data.tags["scalestudy.error"]
    traceback = Path(client.download_artifacts(run.info.run_id, "traceback.txt")).read_text("utf-8")
    assert traceback.startswith("Traceback (most recent call last)")
    assert RAISED in traceback


def test_a_diverged_trial_is_a_result(done, trials):
    assert {trials[1, 0.1]["status"], trials[1, 1.0e38]["status"]} == {"finished", "diverged"}
    counts = done.summary["trials"]
    assert (counts["finished"], counts["diverged"], counts["failed"]) == (1, 1, 1)


def test_what_has_failed_can_be_run_again(done, module_place):
    """It fails again, as a new attempt; what has ended otherwise stays as it is; an edit in between is told."""
    folder = StudyFolder(done.folder)
    before = {trial["trial_id"]: trial for trial in folder.read_trials()}
    nothing = scalestudy("resume", folder.path, "--retry-failed", "--only", "no_room", cwd=module_place)
    assert nothing.returncode == 2, nothing.stdout
    assert "--only: no_room" in nothing.stderr
    with lock_of(folder):
        busy = scalestudy("resume", folder.path, "--retry-failed", cwd=module_place)
    assert (busy.returncode, busy.stdout) == (2, "")
    assert "is being run by process" in busy.stderr
    assert {trial["trial_id"]: trial for trial in folder.read_trials()} == before

    began = json.loads((first := folder.journal_folder / "00000001.json").read_text("utf-8"))
    files = began["event"]["fingerprint"]["code"]["tests.support.telling_models"]
    files["tests/support/telling_models.py"] = "of before an edit"
    first.write_text(json.dumps(began), "utf-8")
    again = scalestudy("resume", folder.path, "--retry-failed", "--address", "local", cwd=module_place)
    assert again.returncode == ExitCode.SOME_FAILED, again.stderr
    told, training = (
        again.stdout.index(word) for word in ("changed since: tests/support/telling_models.py\n", ": training")
    )
    assert told < training
    after = {trial["trial_id"]: trial for trial in folder.read_trials()}
    (failed,) = [trial_id for trial_id, trial in before.items() if trial["status"] == "failed"]
    assert {trial_id for trial_id in after if after[trial_id] != before[trial_id]} == {failed}
    assert (after[failed]["status"], after[failed]["attempts"]) == ("failed", 2)
    assert len(folder.trials_file.read_text("utf-8").splitlines()) == len(before)


def test_a_study_whose_first_trials_fail_alike_stops_and_goes_on_when_the_code_is_mended(cluster, place, monkeypatch):
    mistake = place / "mistake"
    mistake.touch()
    spec = write_spec(
        place,
        workload={
            "model": "tests.support.faulty_models:WrongWhile",
            "model_args": {"file": str(mistake)},
            "data": "digits",
        },
        train={"epochs": 1},
        sweep={"num_gpus": [1], "batch_size": [256], "learning_rate": [0.1, 0.2, 0.3], "seed": [0, 1]},
    )
    arguments = ("--address", "local", "--no-rehearsal")
    stopped, printed = run_by_command("run", spec, *arguments, cwd=place)
    assert stopped.exit_code == printed.returncode == ExitCode.SOME_FAILED
    assert "failed with the same error, and none has a result: KeyError: 'a mistake'" in printed.stdout
    assert f"mend the code, then: scalestudy resume {stopped.address} --retry-failed" in printed.stdout
    folder = StudyFolder(stopped.folder)
    failed = [trial["params"]["learning_rate"] for trial in folder.read_trials()]
    assert failed == [0.1, 0.1, 0.2], "two seeds are one cell"

    mistake.unlink()
    mended = scalestudy("resume", folder.path, "--retry-failed", "--address", "local", cwd=place)
    assert mended.returncode == ExitCode.DONE, mended.stdout + mended.stderr
    trials = folder.read_trials()
    assert [trial["status"] for trial in trials] == ["finished"] * 6
    assert sorted(trial["attempts"] for trial in trials) == [1, 1, 1, 2, 2, 2]


def test_a_trial_that_would_begin_with_another_s_weights_is_trained_by_fresh_workers(cluster, place):
    """The model keeps its backbone. Each rate then trains as it would alone; a later run knows."""
    spec = write_spec(
        place,
        workload={"model": "tests.support.keeping:cached", "data": "digits"},
        train={"epochs": 1},
        sweep={"num_gpus": [1], "batch_size": [256], "learning_rate": [0.1, 0.05], "seed": [0]},
    )
    result, printed = run_by_command("run", spec, "--address", "local", "--no-rehearsal", cwd=place)
    assert result.exit_code == ExitCode.DONE, printed.stderr
    why = "the model's 0.1.weight was trained by an earlier trial"
    assert f"every trial gets fresh workers: {why}" in printed.stdout
    assert f"Every trial got fresh workers: {why}." in html.unescape((result.folder / "report.html").read_text("utf-8"))
    assert open_resumed(result.folder).history.fresh_workers == why
    trials = StudyFolder(result.folder).read_trials()
    assert [trial["status"] for trial in trials] == ["finished"] * 2
    assert [failure["kind"] for failure in trials[1]["failures"]] == ["used_workers"]
    alone = TrainConfig.from_dict(
        {
            "model": "tests.support.keeping:cached",
            "data": "digits",
            "batch_size": 256,
            "learning_rate": 0.05,
            "epochs": 1,
        }
    )
    keeping._backbone.cache_clear()  # this process has loaded the best model for MLflow
    here = Worker(rank=0, world_size=1, device=torch.device("cpu"), threads=1)
    (epoch,) = train(alone, here).records
    assert trials[1]["epochs"][0]["train_loss"] == epoch.train_loss
    # the last bits of the test set's float32 sums depend on the process; what another trial left changes the first ones
    assert trials[1]["epochs"][0]["test_loss"] == pytest.approx(epoch.test_loss, rel=1e-6)
    assert abs(trials[0]["epochs"][0]["test_loss"] / epoch.test_loss - 1) > 1e-3


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
