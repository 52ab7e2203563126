"""Studies whose trials a search chooses, or a scheduler stops, on real Ray with real training and real MLflow."""

import pytest
from mlflow import MlflowClient

from scalestudy import run_study
from scalestudy.experiments.plan.plan import make_plan
from scalestudy.experiments.spec.study_spec import StudySpec
from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.experiments.study.journal import Journal
from scalestudy.orchestration.base.errors import ExitCode
from scalestudy.orchestration.commands.study_commands import status_of
from scalestudy.orchestration.groups.events import Ended
from scalestudy.orchestration.sweep.methods import search_for
from tests.support.studies import write_spec

SWEEP = {"num_gpus": [1], "batch_size": [64, 128], "learning_rate": {"log_uniform": [0.02, 0.5]}, "seed": [0]}


@pytest.fixture
def study(cluster, place):
    """Runs a study in a folder of its own; returns how it ended, and its trials."""

    def run(**changes):
        done = run_study(write_spec(place, **changes))
        return done, StudyFolder(done.folder).read_trials()

    return run


def spec_in(folder):
    import yaml

    return StudySpec.model_validate(yaml.safe_load(folder.spec_file.read_text()))


def runs_of(done):
    client = MlflowClient(tracking_uri=done.tracking_uri)
    experiment = client.get_experiment_by_name("small")
    runs = client.search_runs([experiment.experiment_id], "tags.`scalestudy.role` != 'study'")
    return client, {run.data.tags["scalestudy.trial_id"]: run for run in runs}


@pytest.mark.slow
def test_a_tpe_study_is_the_search_over_its_own_results(study):
    """What was run is what the search suggests when it is told what came of it: the journal says enough."""
    done, trials = study(sweep=SWEEP, train={"epochs": 1}, search={"method": "tpe", "samples": 3, "seed": 1})
    folder = StudyFolder(done.folder)
    assert done.exit_code == ExitCode.DONE
    assert len(trials) == 3
    assert {trial["status"] for trial in trials} == {"finished"}
    assert {trial["params"]["batch_size"] for trial in trials} == {64, 128}
    spec = spec_in(folder)
    search = search_for(spec, make_plan(spec))
    for trial in trials:
        assert search.next().trial.trial_id == trial["trial_id"]
        search.take(trial["trial_id"], Ended.from_facts(trial))
    assert search.next() is None
    assert len(done.summary["cells"]) == done.summary["trials"]["planned"] == 3
    _, runs = runs_of(done)
    assert runs.keys() == {trial["trial_id"] for trial in trials}
    assert [trial.trial_id for trial in folder.read_plan().trials] == [trial["trial_id"] for trial in trials]


def test_an_asha_study_stops_two_workers_at_a_rung_or_at_the_target_and_saves_the_best_model(study):
    """The second of two evaluations in a row that meet 0.7 is the last one; a rate far too small to learn is stopped
    after its first epoch."""
    done, trials = study(
        sweep={"num_gpus": [2], "batch_size": [64], "learning_rate": [0.2, 1e-05], "seed": [0]},
        workload={"model": "mlp", "data": "digits"},
        train={"epochs": 6},
        targets={"accuracy": [0.7], "stop": True},
        search={"scheduler": "asha", "reduction": 2, "grace_epochs": 1},
    )
    assert done.exit_code == ExitCode.DONE
    best, bad = sorted(trials, key=lambda trial: -trial["params"]["learning_rate"])
    assert (best["status"], bad["status"]) == ("at_target", "stopped")
    met = [epoch["test_accuracy"] >= 0.7 for epoch in best["epochs"]]
    assert (met[-2:], len(met)) == ([True, True], met.index(True) + 2)
    assert [epoch["epoch"] for epoch in bad["epochs"]] in ([1], [1, 2])
    assert best["error"] is bad["error"] is None
    assert status_of(done.folder).trials == {"at_target": 1, "stopped": 1, "planned": 2}
    client, runs = runs_of(done)
    for trial in trials:
        stored = client.get_metric_history(runs[trial["trial_id"]].info.run_id, "train_loss")
        assert [point.step for point in stored] == [epoch["epoch"] for epoch in trial["epochs"]], (
            "nothing after the rung"
        )
    with_model = [trial_id for trial_id, run in runs.items() if run.outputs and run.outputs.model_outputs]
    assert with_model == [best["trial_id"]]
    folder = StudyFolder(done.folder)
    (kept,) = (entry.event["best"] for entry in Journal(folder.journal_folder).entries() if "best" in entry.event)
    assert folder.model_file(kept).exists()
    assert done.cold_starts.keys() == {"group-1-of-2"}, "no group was lost by a stop"
