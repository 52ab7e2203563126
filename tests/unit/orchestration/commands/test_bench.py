"""`scalestudy bench`: its two benches on the command line, and their MLflow runs."""

import dataclasses
import io
import json
import re
from pathlib import Path

import pytest
from mlflow import MlflowClient
from rich.console import Console

from scalestudy.experiments.spec.sections import sweepable_keys
from scalestudy.experiments.spec.sweep_section import ITEMS
from scalestudy.orchestration.base.errors import RequestError, UnreachableError
from scalestudy.orchestration.commands import bench, show
from scalestudy.orchestration.commands.bench import MaxBatchBench, run_bench
from scalestudy.orchestration.commands.bench_result import Experiment, Run, Table
from tests.support.approved import approved
from tests.support.in_process import scalestudy
from tests.support.studies import REPOSITORY, left_behind
from tests.support.studies import scalestudy as process

NUMBERS = (7, 0.0, 0.00012345, 12.3456, 1234.56, 1e-7, -2500.0)
FOUND = Experiment(
    "allreduce",
    "What is gained?",
    (
        Table("Numbers", ("what", "figure"), (("none", None), *((repr(number), number) for number in NUMBERS))),
        Table("Wide", ("one", "two"), (("a word " * 20, "x" * 90),)),
    ),
    ("It holds.",),
    {"a_seconds": 1.25},
    {"device": "CPU", "devices": "1", "cores": "2", "threads": "2", "torch": "2.13.0"},
    quick=True,
)


@pytest.fixture(scope="module")
def benched(tmp_path_factory):
    """One experiment by the command line, with a store of its own."""
    place = tmp_path_factory.mktemp("bench")
    return place, process("bench", "allreduce", "--quick", "--device", "cpu", "--json", cwd=place)


@pytest.mark.slow
def test_the_output_is_json(benched):
    _, done = benched
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert found["name"] == "allreduce"
    assert found["quick"] is True
    assert found["machine"]["device"] == "CPU"
    (table,) = found["tables"]
    assert [row[:3] for row in table["rows"]] == [["gloo", 2, 1.0], ["gloo", 2, 64.0]]  # ranks, KiB
    for *_, size, milliseconds, algorithm, bus in table["rows"]:
        assert algorithm == pytest.approx(size * 1024 / (milliseconds / 1e3) / 1e6)  # MB/s
        assert bus == algorithm  # 2(k - 1)/k = 1 of two ranks
    assert found["metrics"]["gloo_2_bus_bytes_per_second"] == pytest.approx(1e6 * table["rows"][-1][-1])


def test_it_is_a_run_of_the_store_that_studies_use(benched):
    place, done = benched
    said = json.loads(done.stdout)
    uri = f"sqlite:///{place / 'mlflow.db'}"
    assert said["mlflow"]["tracking_uri"] == uri
    client = MlflowClient(tracking_uri=uri)
    (run,) = client.search_runs([client.get_experiment_by_name("scalestudy-bench").experiment_id])
    assert run.info.run_id == said["mlflow"]["run_id"]
    assert (run.info.run_name, run.info.status) == ("allreduce", "FINISHED")
    assert run.data.params == {"bench": "allreduce", "quick": "True", **said["machine"]}
    assert run.data.metrics == pytest.approx(said["metrics"])
    assert said["notes"][0] in run.data.tags["mlflow.note.content"]
    kept = Path(client.download_artifacts(run.info.run_id, "allreduce.json", str(place)))
    assert json.loads(kept.read_text("utf-8"))["tables"] == said["tables"]
    assert (place / "mlartifacts").is_dir()


def test_without_mlflow_nothing_is_written(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    done = run_bench(lambda device, quick: FOUND, device="cpu", tracked=False)
    assert (done.mlflow, done.untracked) == (Run(), None)
    assert left_behind(tmp_path) == []


def test_a_store_out_of_reach_is_found_before_anything_is_measured(monkeypatch, tmp_path):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnreachableError, match="nobody listens there"):
        run_bench(None, device="cpu")  # would fail if it were called


def test_a_store_lost_meanwhile_does_not_cost_the_result(monkeypatch, tmp_path):
    """The database is replaced by something else while the experiment runs."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)

    def lose_the_store(device, quick):
        (tmp_path / "mlflow.db").write_text("no database" * 100)
        return FOUND

    done = run_bench(lose_the_store, device="cpu")
    assert (done.tables, done.mlflow) == (FOUND.tables, Run())
    assert re.search(r"the run could not be recorded \(\w+\); the results above are complete", str(done.untracked))


def test_what_is_printed():
    console = Console(file=io.StringIO(), width=60)
    show.bench(console, dataclasses.replace(FOUND, mlflow=Run("sqlite:///x.db", "1")))
    approved(console.file.getvalue(), Path(__file__).parent / "bench.txt")


def test_an_unknown_device_is_refused_before_anything_is_measured():
    with pytest.raises(RequestError, match="device: 'tpu' is not known; choose auto, cpu or cuda"):
        run_bench(None, device="tpu")  # would fail if it were called


@pytest.mark.parametrize("name", ["async", "compile", "export", "parallel", "overlap"])
def test_a_bench_that_is_a_script_now_names_it(tmp_path, name):
    done = scalestudy("bench", name, "--quick", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"bench {name}: is a script now; in a clone of the repository run python docs/")
    scripts = re.findall(r"docs/chapter/\w+\.py", done.stderr)
    assert scripts
    assert all((REPOSITORY / script).is_file() for script in scripts)


def test_the_keys_that_the_largest_batch_does_not_depend_on_are_there():
    assert {*ITEMS, *sweepable_keys()} >= bench.IRRELEVANT


def test_a_limit_of_memory_may_be_less_than_one_gib():
    MaxBatchBench("digits-quick", (), 0.5)
