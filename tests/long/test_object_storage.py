"""Real studies that are kept in a bucket: the same as on a disk, to the bit, also when the driver's machine is lost."""

import json
import shutil
import signal
from pathlib import Path

import pytest
import torch

from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.experiments.study.journal import Journal
from scalestudy.orchestration.base.errors import UnreachableError
from scalestudy.orchestration.cluster import connection as clusters
from scalestudy.orchestration.storage import mirror
from tests.long.gate import Gate
from tests.long.programs import told_by
from tests.support.chaos_outcome import outcome_of
from tests.support.drivers import SLOW, Driver, assert_recorded_once, outcome
from tests.support.in_process import scalestudy as in_process
from tests.support.object_store import KEYS, ObjectStore
from tests.support.studies import scalestudy, write_spec

SWEEP = {"num_gpus": [1], "batch_size": [256], "learning_rate": [0.1, 0.2]}
TRIALS, EPOCHS = 2, 3
SECONDS = 280.0  # a study takes some twenty of them on a machine of its own
NOT_KEPT = ("logs", "driver.log", "lock")
"""What of a study's folder is no record."""


@pytest.fixture(scope="module")
def bucket(tmp_path_factory, ray_session):
    """Its keys are in the environment of the commands; the Ray of this folder has started without them."""
    store = ObjectStore(tmp_path_factory.mktemp("store"))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in KEYS.items():
            patch.setenv(name, value)
        yield store
    store.stop()


@pytest.fixture(scope="module")
def place(tmp_path_factory, bucket):
    place = tmp_path_factory.mktemp("studies")
    write_spec(place, workload=SLOW, sweep=SWEEP, train={"epochs": EPOCHS}, storage=bucket.uri("runs"))
    return place


@pytest.fixture(scope="module")
def local(place):
    """The study on a disk, on the Ray of this folder."""
    done = in_process("run", "study.yaml", "--address", "local", "--out", "local", "--set", "storage=runs", cwd=place)
    assert done.returncode == 0, done.stdout + done.stderr
    return StudyFolder(place / "local")


@pytest.fixture(scope="module")
def kept(place):
    """The same study in the bucket; its address, and what the command printed."""
    done = scalestudy("run", "study.yaml", "--address", "local", "--json", cwd=place, seconds=SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def records_in(folder):
    """The names of a study's files that are records."""
    files = [path.relative_to(folder.path) for path in folder.path.rglob("*") if path.is_file()]
    return {file.as_posix() for file in files if file.parts[0] not in NOT_KEPT}


def objects_of(bucket, address):
    prefix = address.partition("?")[0].removeprefix("s3://studies/") + "/"
    names = [name.removeprefix(prefix) for name in bucket.names(prefix)]
    return {name: bucket.read(prefix + name) for name in names if name.split("/")[0] not in NOT_KEPT}


def test_the_same_study_on_a_disk_and_in_a_bucket(bucket, local, kept, tmp_path):
    assert kept["address"].startswith("s3://studies/runs/small-")
    objects = objects_of(bucket, kept["address"])
    assert set(objects) == records_in(local)
    for name, data in objects.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    found = StudyFolder(tmp_path)
    assert outcome(found) == outcome(local)
    assert outcome_of(found) == outcome_of(local)
    assert found.read_plan() == local.read_plan()
    assert spec_lines(found) - spec_lines(local) == {f"storage: {bucket.uri('runs')}"}
    told = [
        [(entry.type, entry.trial_id) for entry in Journal(folder.journal_folder).entries()]
        for folder in (found, local)
    ]
    assert told[0] == told[1]
    (model,) = [name for name in objects if name.endswith("model.pt")]
    states = [torch.load(folder.path / model, weights_only=True) for folder in (found, local)]
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


def spec_lines(folder):
    return set(folder.spec_file.read_text().splitlines())


def test_mlflow_has_it_with_the_model_from_the_bucket(place, local, kept):
    from mlflow import MlflowClient

    assert_recorded_once(StudyFolder(Path(kept["folder"])), place / "mlflow.db", EPOCHS)
    client = MlflowClient(tracking_uri=f"sqlite:///{place / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("small").experiment_id
    models = client.search_logged_models([experiment])
    assert [model.status for model in models] == ["READY"] * 2  # of the one on the disk, too


def test_commands_take_the_address(bucket, place, kept):
    address = kept["address"]
    seen = json.loads(in_process("status", address, "--json", cwd=place).stdout)
    assert (seen["state"], seen["trials"], seen["unsent"]) == ("finished", {"planned": 2, "finished": 2}, 0)
    advised = in_process("recommend", address, cwd=place)
    assert advised.returncode == 0, advised.stderr
    sent = in_process("ui", address, "--sync", cwd=place)
    assert sent.stdout.startswith("0 events sent"), sent.stderr


@pytest.mark.chaos
def test_a_bucket_that_goes_away_and_a_driver_that_is_killed_with_its_machine(bucket, place, local, tmp_path):
    with Gate(bucket.port) as gate:
        address = bucket.uri("killed", port=gate.port)
        driver = Driver(place, address)
        driver.wait_for("epoch", 1)
        gate.shut()
        status, printed = driver.end()
        assert status == 3, printed
        assert f"scalestudy resume '{address}'" in printed
        gate.open()
        driver = Driver(place, address, resume=True)
        driver.wait_for("epoch", EPOCHS + 1)  # in the middle of the second trial
        driver.send(signal.SIGKILL)
        assert outcome(driver.folder).items() < outcome(local).items()
        shutil.rmtree(driver.folder.path)
        _resumed_elsewhere(bucket, place, local, address, tmp_path / "elsewhere")
    assert not driver.folder.path.exists()


def _resumed_elsewhere(bucket, place, local, address, elsewhere):
    seen = scalestudy("status", address, cwd=place)
    assert "interrupted" in seen.stdout, seen.stderr
    assert f"to go on: scalestudy resume '{address}'" in seen.stdout
    done = scalestudy(
        "resume", address, "--address", "local", cwd=place, seconds=SECONDS, SCALESTUDY_HOME=str(elsewhere)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (copy,) = (elsewhere / "work").iterdir()
    folder = StudyFolder(copy)
    assert outcome(folder) == outcome(local)
    first, second = sorted(folder.read_trials(), key=lambda trial: trial["params"]["learning_rate"])
    assert (first["attempts"], second["attempts"]) == (2, 2)  # cut by the bucket, and by the signal
    assert "resumed" in second["flags"]  # from a checkpoint
    assert_recorded_once(folder, place / "mlflow.db", EPOCHS)
    objects = objects_of(bucket, address)
    assert {name for name in objects if not name.startswith("checkpoints/")} == records_in(folder)
    assert objects["trials.jsonl"] == folder.trials_file.read_bytes()
    assert [name for name in objects if name.startswith("checkpoints/") and not name.endswith("/model.pt")] == []


@pytest.mark.chaos
def test_a_trial_spans_nodes_that_share_only_the_bucket(bucket, tmp_path):
    found = told_by("two_raylets_and_a_bucket", tmp_path, bucket.uri("spanned"), seconds=SECONDS)
    assert (found["exit_code"], found["broken"]) == (0, None)
    (trial,) = found["trials"]
    assert (trial["status"], trial["world"]["nodes"], len(trial["epochs"])) == ("finished", 2, 3)
    assert f"checkpoints/{trial['trial_id']}/model.pt" in objects_of(bucket, found["address"])
    assert not [name for name in bucket.names() if "probe-" in name]  # what every node was asked with


def test_a_node_without_the_credentials_is_named(bucket):
    cluster, before = clusters.connect(None), bucket.names()
    host = cluster.nodes[0].host
    with pytest.raises(UnreachableError, match=rf"can't be reached on {host} \(.+\); give every node"):
        mirror.check_nodes(bucket.uri("probed"), cluster)
    assert bucket.names() == before
    assert mirror._reaches(bucket.uri("probed"), "probe-0") == "it is not the same there"
