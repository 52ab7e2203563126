"""`scalestudy bench max-batch`: what it prints, and its run in MLflow; tests/long finds a largest batch."""

import io
import json
import re
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from mlflow import MlflowClient
from rich.console import Console

from scalestudy.experiments.spec.sections import sweepable_keys
from scalestudy.experiments.spec.sweep_section import ITEMS
from scalestudy.orchestration.base.errors import RequestError, UnreachableError
from scalestudy.orchestration.commands import bench, show
from scalestudy.orchestration.commands.bench import GIB, bench_max_batch
from scalestudy.orchestration.commands.bench_result import LargestBatches, Run, Table
from scalestudy.training.loop import memory_fit
from scalestudy.training.loop.memory_fit import LARGEST, MaxBatch, Try
from tests.support.approved import approved
from tests.support.studies import left_behind

FOUND = MaxBatch(batch=64, at_least=True, limit_bytes=GIB, tries=(Try(64, fits=True, peak_memory_bytes=1),))
SHOWN = LargestBatches(
    "What is the largest batch?",
    (
        Table("Numbers", ("batch", "GiB"), ((64, 0.5), (128, 0.00012345), (2048, 12.3456))),
        Table("Wide", ("one", "two"), (("a word " * 20, "x" * 90),)),
    ),
    ("It holds.",),
    {"max_batch_1_count": 64.0},
    {"device": "CPU", "devices": "1", "cores": "2", "threads": "2", "torch": "2.13.0"},
    quick=True,
)


@pytest.fixture
def searches(monkeypatch):
    """Where each search was to end: its limit in bytes, and its most examples. None is made."""
    called = []

    def find(config, worker, *, limit_bytes, most):
        called.append((limit_bytes, most))
        return FOUND

    monkeypatch.setattr(memory_fit, "find_max_batch", find)
    return called


def test_it_is_a_run_of_the_store_that_studies_use(monkeypatch, tmp_path, searches, empty_database):
    shutil.copy(empty_database, tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    said = bench_max_batch("digits-quick", (), 1, device="cpu", quick=True).to_dict()
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    assert said["mlflow"]["tracking_uri"] == uri
    client = MlflowClient(tracking_uri=uri)
    (run,) = client.search_runs([client.get_experiment_by_name("scalestudy-bench").experiment_id])
    assert run.info.run_id == said["mlflow"]["run_id"]
    assert (run.info.run_name, run.info.status) == ("max-batch", "FINISHED")
    assert searches == [(GIB, 64)]
    assert said["machine"]["device"] == "CPU"
    assert run.data.params == {"bench": "max-batch", "quick": "True", **said["machine"]}
    assert run.data.metrics == said["metrics"] == {"max_batch_1_count": 64.0}
    assert said["notes"][0] in run.data.tags["mlflow.note.content"]
    kept = Path(client.download_artifacts(run.info.run_id, "max-batch.json", str(tmp_path)))
    assert json.loads(kept.read_text("utf-8")) == json.loads(json.dumps(said | {"mlflow": asdict(Run())}))
    assert said["name"] == "max-batch"
    assert (tmp_path / "mlartifacts").is_dir()


def test_without_mlflow_nothing_is_written(monkeypatch, tmp_path, searches):
    monkeypatch.chdir(tmp_path)
    done = bench_max_batch("digits-quick", (), 1, device="cpu", tracked=False)
    assert (done.mlflow, done.untracked) == (Run(), None)
    assert left_behind(tmp_path) == []


def test_a_store_out_of_reach_is_found_before_anything_is_measured(monkeypatch, tmp_path, searches):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnreachableError, match="nobody listens there"):
        bench_max_batch("digits-quick", (), 1, device="cpu")
    assert searches == []


def test_a_store_lost_meanwhile_does_not_cost_the_result(monkeypatch, tmp_path, empty_database):
    """The database is replaced by something else while the bench runs."""
    shutil.copy(empty_database, tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)

    def lose_the_store(config, worker, **limits):
        (tmp_path / "mlflow.db").write_text("no database" * 100)
        return FOUND

    monkeypatch.setattr(memory_fit, "find_max_batch", lose_the_store)
    done = bench_max_batch("digits-quick", (), 1, device="cpu")
    assert (done.tables[0].rows, done.mlflow) == ((("the study's", 64, "yes", 1.0),), Run())
    assert re.search(r"the run could not be recorded \(\w+\); the results above are complete", str(done.untracked))


def test_what_is_printed():
    console = Console(file=io.StringIO(), width=60)
    show.bench(console, replace(SHOWN, mlflow=Run("sqlite:///x.db", "1")))
    approved(console.file.getvalue(), Path(__file__).parent / "bench.txt")


def test_an_unknown_device_is_refused_before_anything_is_measured(searches):
    with pytest.raises(RequestError, match="device: 'tpu' is not known; choose auto, cpu or cuda"):
        bench_max_batch("digits-quick", (), 1, device="tpu")
    assert searches == []


def test_the_keys_that_the_largest_batch_does_not_depend_on_are_there():
    assert {*ITEMS, *sweepable_keys()} >= bench.IRRELEVANT


def test_a_limit_of_memory_may_be_less_than_one_gib(searches):
    bench_max_batch("digits-quick", (), 0.5, device="cpu", tracked=False)
    assert searches == [(2**29, LARGEST)]
