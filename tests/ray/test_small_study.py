"""One small study on real Ray and real MLflow, looked at from every side."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest
from mlflow import MlflowClient

from scalestudy.experiments.analysis.text.answer import study_took
from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.orchestration.base.errors import ExitCode
from scalestudy.orchestration.groups.events import Ended
from scalestudy.training.records import EpochRecord, epoch_metrics
from tests.support.groups import wait_until
from tests.support.in_process import scalestudy
from tests.support.processes import named
from tests.support.studies import SMALL
from tests.support.studies import scalestudy as process


@pytest.fixture(scope="module")
def place(small_study):
    return small_study.place


@pytest.fixture(scope="module")
def done(small_study):
    return small_study.result


@pytest.fixture(scope="module")
def trials(done):
    return StudyFolder(done.folder).read_trials()


@pytest.fixture(scope="module")
def client(done):
    return MlflowClient(tracking_uri=done.tracking_uri)


@pytest.fixture(scope="module")
def runs(client):
    experiment = client.get_experiment_by_name("small")
    return client.search_runs([experiment.experiment_id])


def test_every_trial_of_the_plan_finishes_once(done, trials):
    assert done.exit_code == ExitCode.DONE
    planned = [trial.trial_id for trial in StudyFolder(done.folder).read_plan().trials]
    assert [trial["trial_id"] for trial in trials] == planned
    assert {trial["status"] for trial in trials} == {"finished"}
    assert len(planned) == 4


def test_its_pool_ends_though_ray_goes_on(done):
    """Ray keeps an actor for as long as the process that made it runs: a notebook would collect them."""
    wait_until(lambda: not named(os.getpid(), "ray::GroupPoolActor"), 10)


def test_trials_jsonl_is_written_as_designed(done, trials):
    """Its keys are those of the typed records, whose own tests name them."""
    for trial in trials:
        assert Ended.from_facts(trial).to_facts() == {
            key: value for key, value in trial.items() if key not in ("trial_id", "kind", "params")
        }
        assert set(trial["params"]) == {"num_gpus", "batch_size", "learning_rate", "seed"}
        assert [epoch["epoch"] for epoch in trial["epochs"]] == [1, 2, 3]
        assert all(EpochRecord.from_dict(epoch).to_dict() == epoch for epoch in trial["epochs"])
        assert [worker["rank"] for worker in trial["world"]["workers"]] == list(range(trial["params"]["num_gpus"]))
        assert trial["world"].get("backend") == (None if trial["params"]["num_gpus"] == 1 else "gloo")
        assert trial["epochs"][0]["samples"] == 1437
    lines = (done.folder / "trials.jsonl").read_text().splitlines()
    assert [json.loads(line)["trial_id"] for line in lines] == [trial["trial_id"] for trial in trials]


def test_the_folder_holds_what_the_design_names_and_nothing_lies_elsewhere(done, place):
    names = {path.name for path in done.folder.iterdir()}
    assert names >= {"spec.yaml", "plan.json", "trials.jsonl", "summary.json", "report.html", "driver.log"}
    assert int((done.folder / "spool" / "written").read_text()) == len(list((done.folder / "journal").iterdir()))
    assert not (done.folder / "lock").exists()
    assert {path.name for path in place.iterdir()} == {"study.yaml", "runs", "mlflow.db", "mlartifacts"}
    assert not (Path.home() / "ray_results").exists()


def test_mlflow_has_the_study_its_trials_and_its_answer(client, runs, done, trials):
    """What each of these is in detail is in tests/unit/orchestration/tracking."""
    (parent,) = [run for run in runs if run.data.tags["scalestudy.role"] == "study"]
    children = {run.data.tags["scalestudy.trial_id"]: run for run in runs if run is not parent}
    assert children.keys() == {trial["trial_id"] for trial in trials}
    assert {run.data.tags["mlflow.parentRunId"] for run in children.values()} == {parent.info.run_id}
    assert {run.info.status for run in runs} == {"FINISHED"}
    assert {run.data.tags["mlflow.source.name"] for run in runs} == {"study.yaml"}
    artifacts = {artifact.path for artifact in client.list_artifacts(parent.info.run_id)}
    assert artifacts >= {"report.html", "summary.json", "spec.yaml", "trials.jsonl"}
    assert SMALL["description"] in parent.data.tags["mlflow.note.content"]
    chosen = done.summary["recommendation"]["recommended"]
    assert parent.data.metrics["recommended_seconds"] == chosen["seconds"]
    assert parent.data.params["recommended.learning_rate"] == str(chosen["learning_rate"])


def test_mlflow_metrics_equal_the_records_exactly(client, runs, trials):
    by_trial = {run.data.tags.get("scalestudy.trial_id"): run for run in runs}
    for trial in trials:
        run = by_trial[trial["trial_id"]]
        expected = {}
        for epoch in trial["epochs"]:
            for name, value in epoch_metrics(EpochRecord.from_dict(epoch)).items():
                expected.setdefault(name, []).append((epoch["epoch"], value))
        assert len(expected) > 8
        for name, points in expected.items():
            stored = client.get_metric_history(run.info.run_id, name)
            assert [(point.step, point.value) for point in stored] == points, name


def test_what_the_workers_took_of_their_machines_is_in_mlflow(runs, trials):
    """In the tab of system metrics, which shows the names that begin with system/."""
    by_trial = {run.data.tags.get("scalestudy.trial_id"): run.data.metrics for run in runs}
    for trial in trials:
        metrics, last = by_trial[trial["trial_id"]], trial["epochs"][-1]
        assert metrics["system/cpu_cores"] == last["cpu_cores"] > 0
        assert metrics["system/resident_bytes"] == last["resident_bytes"] > 1e8 * trial["params"]["num_gpus"]


def test_the_log_has_each_trials_start_and_end_with_its_id(done, trials):
    lines = [json.loads(line) for line in (done.folder / "log.jsonl").read_text("utf-8").splitlines()]
    assert {line["study_id"] for line in lines} == {done.folder.name}
    told = [(line["trial_id"], line["event"]) for line in lines if "trial_id" in line]
    assert sorted(told) == sorted((trial["trial_id"], event) for trial in trials for event in ("running", "ended"))


def test_the_best_trial_s_model_is_logged_once_and_gives_its_accuracy(client, runs, trials):
    import mlflow
    import torch

    from scalestudy.training.data.builtin import load_digits

    with_model = [run for run in runs if (outputs := client.get_run(run.info.run_id).outputs) and outputs.model_outputs]
    assert len(with_model) == 1
    final = {trial["trial_id"]: trial["epochs"][-1]["test_accuracy"] for trial in trials}
    chosen = with_model[0].data.tags["scalestudy.trial_id"]
    assert final[chosen] == max(final.values())
    outputs = client.get_run(with_model[0].info.run_id).outputs.model_outputs
    assert len(outputs) == 1
    mlflow.set_tracking_uri(client.tracking_uri)
    model = mlflow.pytorch.load_model(f"models:/{outputs[0].model_id}")
    data = load_digits(None)
    with torch.no_grad():
        hits = (model(data.test_inputs).argmax(dim=1) == data.test_targets).sum().item()
    assert hits / len(data.test_targets) == pytest.approx(final[chosen], abs=1e-9)


def test_a_study_leaves_no_default_store_to_the_next_one_of_its_process(done):
    assert "MLFLOW_TRACKING_URI" not in os.environ


def test_each_size_had_one_cold_start(done):
    assert set(done.cold_starts) == {"group-1-of-1", "group-2-of-2"}
    assert all(0 < seconds < 60 for seconds in done.cold_starts.values())


def test_run_prints_the_table_the_answer_and_the_places(small_study, done, place):
    printed = small_study.printed
    waits = printed.stderr.splitlines()
    assert printed.returncode == 0
    assert waits[0] == "waiting for the checks of study.yaml"
    assert any(line.startswith("waiting for Ray to start") for line in waits)
    assert all(line.startswith("waiting for ") for line in waits)
    assert "waiting for 1 worker to start" in printed.stdout
    assert re.search(r"^This command took [\d.]+ s from its start to its end\.$", printed.stdout, re.MULTILINE)
    assert "workers (CPU)  batch   lr  epoch s  samples/s  test acc  speed-up  efficiency" in printed.stdout
    assert "Recommended" in printed.stdout
    took = study_took(done.summary["cost"])
    assert took in printed.stdout.splitlines()
    assert took in done.report.read_text("utf-8")
    status = scalestudy("status", done.folder, cwd=place).stdout
    assert took.partition(",")[0].removeprefix("The study took ") in status
    assert f"report: {done.report}" in printed.stdout
    assert f"MLflow: sqlite:///{place / 'mlflow.db'}" in printed.stdout
    assert printed.stdout.count("finished after") == 4


def test_the_report_is_rebuilt_from_the_folder_alone(done, tmp_path):
    before = done.report.read_text("utf-8")
    copy = StudyFolder(shutil.copytree(done.folder, tmp_path / "out"))
    copy.report_file.unlink()
    copy.summary_file.unlink()
    again = process("report", "out", cwd=tmp_path, PATH="")
    assert again.returncode == 0, again.stderr
    assert copy.report_file.exists()
    assert len(before) == pytest.approx(len(copy.report_file.read_text("utf-8")), rel=0.05)
