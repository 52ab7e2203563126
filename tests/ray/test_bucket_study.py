"""A study that is kept in a bucket: its records are there, and the commands take its address."""

import json
from pathlib import Path

from scalestudy.experiments.study.folder import StudyFolder
from tests.support.drivers import assert_recorded_once
from tests.support.in_process import scalestudy
from tests.support.studies import write_spec


def test_a_study_in_a_bucket(cluster, bucket, place):
    sweep = {"num_gpus": [1], "batch_size": [256], "learning_rate": [0.1]}
    write_spec(
        place,
        workload={"model": "tests.support.user_models:linear", "data": "digits"},
        sweep=sweep,
        storage=bucket.uri("runs"),
    )
    done = scalestudy("run", "study.yaml", "--address", "local", "--json", cwd=place)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    address = found["address"]
    assert address.startswith("s3://studies/runs/small-")
    names = bucket.names(address.partition("?")[0].removeprefix("s3://studies/") + "/")
    ends = {name.rpartition("/")[2] for name in names}
    assert {
        "spec.yaml",
        "plan.json",
        "trials.jsonl",
        "summary.json",
        "report.html",
        "model.pt",
        "00000001.json",
    } <= ends
    assert "lock" not in ends
    assert_recorded_once(StudyFolder(Path(found["folder"])), place / "mlflow.db", epochs=2)
    seen = json.loads(scalestudy("status", address, "--json", cwd=place).stdout)
    assert (seen["state"], seen["trials"], seen["unsent"]) == ("finished", {"planned": 1, "finished": 1}, 0)
    sent = scalestudy("sync", address, cwd=place)
    assert sent.stdout.startswith("0 events sent"), sent.stderr
