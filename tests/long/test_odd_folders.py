"""A study in a folder whose name means something in addresses and shells: Ctrl-C stops it, and it goes on elsewhere."""

import json
import shlex
import signal
import sys
import time

from mlflow import MlflowClient

from scalestudy.experiments.spec.addresses import uri_of
from scalestudy.experiments.study.folder import StudyFolder
from tests.support.drivers import Driver, assert_recorded_once
from tests.support.in_process import scalestudy as in_process
from tests.support.studies import ran, scalestudy, write_spec

NAME = "50% done? #2 [v1] müll & co; $HOME 'x'"
MODEL = """
import time
from torch import nn

class Slow(nn.Sequential):
    def forward(self, x):
        time.sleep(0.02)
        return super().forward(x)

def build(num_classes, in_channels):
    return Slow(nn.Flatten(), nn.Linear(in_channels * 784, num_classes))
"""
SWEEP = {"num_gpus": [1], "batch_size": [64], "learning_rate": [0.1, 0.2], "seed": [0]}
EPOCHS = 4
REGISTERS = """
import mlflow
experiment = mlflow.get_experiment_by_name("small")
[model] = mlflow.search_logged_models([experiment.experiment_id], max_results=1, output_format="list")
mlflow.register_model(model.model_uri, "odd")
mlflow.pytorch.load_model("models:/odd/1")
"""


def test_a_study_that_ctrl_c_stops_goes_on_in_the_folder_that_it_was_moved_to(tmp_path):
    before, after = tmp_path / NAME, tmp_path / f"then {NAME}"
    before.mkdir()
    (before / "mine.py").write_text(MODEL)
    write_spec(before, workload={"model": "mine:build", "data": "digits"}, sweep=SWEEP, train={"epochs": EPOCHS})
    driver = Driver(before, "runs/odd")
    driver.wait_for("ended", 1)
    sent = time.monotonic()
    status, printed = driver.send(signal.SIGINT)
    assert status == 130, printed
    assert time.monotonic() - sent < 30
    assert "Traceback" not in printed
    assert "stopped" in printed
    assert f"to go on: scalestudy resume {shlex.quote(str(driver.folder.path))}" in printed
    assert driver.folder.report_file.exists()
    assert len(driver.folder.read_trials()) == 1
    before.rename(after)
    assert json.loads(in_process("status", "latest", "--json", cwd=after).stdout)["state"] == "stopped"

    for run, *words in (
        (scalestudy, "resume", "latest", "--address", "local"),
        (in_process, "recommend", "latest"),
        (in_process, "ui", "latest", "--sync"),
    ):
        done = run(*words, cwd=after)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        assert "Traceback" not in done.stdout + done.stderr
    folder = StudyFolder(after / "runs" / "odd")
    levels = [json.loads(line)["level"] for line in (folder.path / "log.jsonl").read_text("utf-8").splitlines()]
    assert not {"WARNING", "ERROR"} & set(levels)
    assert [each.name for each in tmp_path.iterdir()] == [after.name], "nothing is made beside the folder"

    assert [len(trial["epochs"]) for trial in folder.read_trials()] == [EPOCHS] * 2
    store = uri_of(after / "mlflow.db", "sqlite")
    assert_recorded_once(folder, store, EPOCHS)
    client = MlflowClient(store)
    runs = client.search_runs([client.get_experiment_by_name("small").experiment_id])
    assert [run.info.status for run in runs] == ["FINISHED"] * 3
    (study,) = [run for run in runs if run.data.tags["scalestudy.role"] == "study"]
    assert client.download_artifacts(study.info.run_id, "report.html", tmp_path)

    done = ran([sys.executable, "-c", REGISTERS], cwd=after)
    assert done.returncode == 0, done.stderr
