"""Whole studies by the command line on a cluster of CPU workers that Ray takes for two A100 on one node and a T4 on
another."""

import pytest
from mlflow import MlflowClient

from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.orchestration.base.errors import ExitCode
from scalestudy.orchestration.groups.gpus_on_cpu import VARIABLE
from tests.support.preloaded import preloaded_workers
from tests.support.ray_heads import head, join
from tests.support.studies import scalestudy, write_spec

pytestmark = pytest.mark.chaos
PORT = 26579
ADDRESS = f"127.0.0.1:{PORT}"


def gpus(count, kind):
    """What `ray start` is told of a node's GPUs."""
    return f"--num-gpus={count}", f"--labels=ray.io/accelerator-type={kind}"


def taken_by(trial):
    """The GPUs of a trial's workers, as their node numbers them."""
    return sorted(gpu for worker in trial["world"]["workers"] for gpu in worker["gpus"])


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Runs a study of these sizes on the cluster, by the command line."""
    folder = tmp_path_factory.mktemp("gpus")
    with preloaded_workers() as python, head(4, PORT, *gpus(2, "A100"), python=python) as joined:
        join(ADDRESS, 4, *gpus(1, "T4"), python=python, **joined)

        def run(out, sizes, share, placement):
            write_spec(
                folder,
                workload={"model": "mlp", "data": "digits"},
                train={"epochs": 1},
                resources={"gpus_per_worker": share, "placement": placement, "exclusive": False},
                sweep={"num_gpus": sizes, "batch_size": [256], "learning_rate": [0.1], "seed": [0]},
            )
            arguments = ("run", "study.yaml", "--address", ADDRESS, "--out", out)
            return scalestudy(*arguments, cwd=folder, **joined, **{VARIABLE: "1"}), StudyFolder(folder / out)

        yield run


@pytest.fixture(scope="module")
def halves(study):
    """The folder of a study whose workers have half a GPU each."""
    done, folder = study("halves", [2, 4], 0.5, "pack")
    assert done.returncode == ExitCode.DONE, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def trials(halves):
    """Its lines of trials.jsonl, by num_gpus."""
    return {trial["params"]["num_gpus"]: trial for trial in halves.read_trials()}


def test_trials_are_packed_by_gpu(trials):
    """Two workers of half a GPU share one. Both trials are on the type with the most room, though the T4 is free."""
    assert {size: (trial["status"], taken_by(trial)) for size, trial in trials.items()} == {
        2: ("finished", ["0", "0"]),
        4: ("finished", ["0", "0", "1", "1"]),
    }


def test_a_trial_s_record_and_its_run_say_the_type_of_its_gpus(halves, trials):
    worlds = {trial["trial_id"]: trial["world"] for trial in trials.values()}
    assert [trials[size]["world"]["accelerator"] for size in (2, 4)] == ["A100", "A100"]
    assert {(world["nodes"], world["device"], world["backend"]) for world in worlds.values()} == {(1, "cpu", "gloo")}
    client = MlflowClient(tracking_uri=f"sqlite:///{halves.path.parent}/mlflow.db")
    experiment = client.get_experiment_by_name("small")
    tags = [run.data.tags for run in client.search_runs([experiment.experiment_id])]
    told = {each["scalestudy.trial_id"]: each for each in tags if each["scalestudy.role"] == "trial"}
    assert {trial_id: each["scalestudy.accelerator"] for trial_id, each in told.items()} == {
        trial_id: world["accelerator"] for trial_id, world in worlds.items()
    }
    assert {each["scalestudy.backend"] for each in told.values()} == {"gloo"}


def test_the_report_says_the_type(halves):
    assert "GPUs: A100." in halves.report_file.read_text("utf-8")


def test_a_trial_has_as_many_shares_as_fit_on_each_gpu_of_one_type(study):
    """floor(2 GPUs) · floor(1 ÷ 0.4) = 4; 2 ÷ 0.4 would be 5, and with the T4 there are 6."""
    done, folder = study("large", [5], 0.4, "pack")
    assert done.returncode == ExitCode.BAD_REQUEST
    told = "num_gpus: 5: the cluster has room for 4 GPU workers on GPUs of one type (A100 4, T4 2)"
    assert told in " ".join(done.stderr.split())
    assert not folder.path.exists()


def test_workers_that_are_spread_are_still_on_one_type(study):
    done, folder = study("spread", [4], 0.4, "spread")
    assert done.returncode == ExitCode.DONE, done.stdout + done.stderr
    (trial,) = folder.read_trials()
    assert (trial["world"]["nodes"], trial["world"]["accelerator"]) == (1, "A100")
    assert taken_by(trial) == ["0", "0", "1", "1"]
