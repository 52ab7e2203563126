"""A random search over ways to sum, on workers that split batches by their speed; its metric is an error.

Its trainings are counted in steps.
"""

import pytest
from mlflow import MlflowClient

from scalestudy import run_study
from scalestudy.experiments.plan.plan import make_plan
from scalestudy.experiments.spec.study_spec import StudySpec
from scalestudy.experiments.spec.yaml_lines import read_yaml
from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.orchestration.base.errors import ExitCode
from tests.support.studies import write_spec

STRATEGIES = ["flat", "powersgd", "local_sgd"]


@pytest.fixture(scope="module")
def done(cluster, module_place):
    spec = write_spec(
        module_place,
        name="variants.yaml",
        workload={
            "model": "linear_regression",
            "data": "synthetic_linear",
            "loss": "mse",
            "metric": "mse",
            "metric_mode": "min",
        },
        train={
            "steps": 30,
            "eval_every": {"steps": 15},
            "shards": "speed",
            "channels_last": "auto",
            "optimizer": {"name": "sgd", "momentum": 0.5},
            "schedule": "cosine",
            "local_steps": 4,
            "powersgd_rank": 1,
        },
        sweep={
            "num_gpus": [2],
            "batch_size": [64],
            "learning_rate": [0.001],
            "seed": [0],
            "train.gradient_sync": STRATEGIES,
        },
        search={"method": "random", "samples": 3, "seed": 2},
        targets={"accuracy": [0.1]},
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(module_place)
        return run_study(spec, rehearsal=False)


@pytest.fixture(scope="module")
def trials(done):
    return StudyFolder(done.folder).read_trials()


def test_every_strategy_finishes_and_lowers_the_error(done, trials):
    assert done.exit_code == ExitCode.DONE
    assert sorted(trial["params"]["train.gradient_sync"] for trial in trials) == sorted(STRATEGIES)
    for trial in trials:
        first, last = trial["epochs"]
        assert (first["epoch"], first["steps"], last["epoch"], last["steps"]) == (1, 15, 2, 15)
        assert first["test_mse"] > last["test_mse"] > 0
        assert "test_accuracy" not in last
        assert first["learning_rate"] > last["learning_rate"]
        assert last["replica_max_diff"] == 0.0
        assert last["sync_bytes"] > 0


def test_a_random_study_runs_the_points_that_its_plan_shows(done, trials):
    spec = StudySpec.model_validate(read_yaml(StudyFolder(done.folder).spec_file.read_text("utf-8")).data)
    assert [trial["trial_id"] for trial in trials] == [trial.trial_id for trial in make_plan(spec).trials]
    assert done.summary["trials"]["planned"] == 3


def test_what_training_picked_is_told(trials):
    for trial in trials:
        assert sum(trial["details"]["shards"]) == pytest.approx(1.0, abs=2e-3)
        assert trial["details"]["channels_last"] in (False, True)
    counts = {trial["params"]["train.gradient_sync"]: trial["details"] for trial in trials}
    assert counts["powersgd"]["powersgd_compressed_steps"] > 0
    assert counts["local_sgd"]["local_sgd_averages"] > 0


def test_the_smallest_error_is_recommended_and_its_model_kept(done, trials):
    best = min(trials, key=lambda trial: trial["epochs"][-1]["test_mse"])
    client = MlflowClient(tracking_uri=done.tracking_uri)
    runs = client.search_runs([client.get_experiment_by_name("small").experiment_id])
    by_trial = {run.data.tags.get("scalestudy.trial_id"): run for run in runs}
    assert by_trial[best["trial_id"]].data.metrics["best_test_mse"] == pytest.approx(best["epochs"][-1]["test_mse"])
    assert "scalestudy.shards" in by_trial[best["trial_id"]].data.tags
    assert "in 2 evaluations" in by_trial[best["trial_id"]].data.tags["mlflow.note.content"]
    assert done.summary["study"]["every"] == ["steps", 15]
    models = client.search_logged_models([client.get_experiment_by_name("small").experiment_id])
    assert [model.source_run_id for model in models] == [by_trial[best["trial_id"]].info.run_id]
    kept = {path.name for path in (done.folder / "checkpoints").iterdir()}
    assert kept <= {best["trial_id"]}, "ended trials leave no checkpoints"
    assert not list((done.folder / "checkpoints").glob("*/*/manifest.json"))
