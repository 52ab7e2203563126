"""Stage 7: what the recorder writes down of a study's events."""

import json

import pytest

from scalestudy.experiments.analysis.measures.metric import ACCURACY
from scalestudy.orchestration.groups.trial_record import Outcome, error_of
from scalestudy.orchestration.tracking.mlflow_store import final_metrics, flat_params, note, trial_tags
from scalestudy.orchestration.tracking.recorder import lost_event, trial_record
from scalestudy.training.records import find_metric
from tests.support.recordings import SPEC, begin, events_of, play, recorded
from tests.support.synthetic_studies import study_of, summary_of


@pytest.fixture
def study(tmp_path):
    return recorded(tmp_path, SPEC)


def test_a_study_from_its_start_to_its_report(study):
    recorder, folder, tracker, trials = study
    begin(recorder, folder)
    for trial in trials:
        play(recorder, trial)
    summary = recorder.finish()
    recorder.close(interrupted=False)
    assert folder.read_trials() == trials
    assert [name for name, _ in tracker.told] == [
        "study_started",
        *(["trial_started", "epochs", "epochs", "trial_ended"] * 2),
        "study_ended",
        "model",
    ]
    assert summary == json.loads(folder.summary_file.read_text())
    assert folder.report_file.exists()
    (ended,) = tracker.of("study_ended")
    assert ended["status"] == "finished"
    assert 0 < ended["point"]["metrics"]["wall_seconds"] < 60
    assert ended["note"] == note(recorder._operations.spec, summary)
    assert str(folder.report_file) in ended["files"]
    assert str(folder.trials_file) in ended["files"]
    best = max(trials, key=lambda trial: trial["epochs"][-1]["test_accuracy"])
    (model,) = tracker.of("model")
    assert model["trial_id"] == best["trial_id"]
    assert model["config"]["learning_rate"] == best["params"]["learning_rate"]
    left = [path.name for path in (folder.path / "checkpoints").iterdir()]
    assert left == [best["trial_id"]]


def test_mlflow_is_told_what_the_records_say(study):
    recorder, _, tracker, trials = study
    trial = trials[0]
    play(recorder, trial)
    (started,) = tracker.of("trial_started")
    assert started["name"] == "gpus=1 batch=32 lr=0.1 seed=0"
    assert started["params"]["num_gpus"] == 1
    assert started["params"]["train.optimizer.name"] == "sgd"
    told = [point for facts in tracker.of("epochs") for point in facts["points"]]
    for point, epoch in zip(told, trial["epochs"], strict=True):
        assert (point["step"], point["at"]) == (epoch["epoch"], epoch["at"])
        assert point["metrics"]["test_accuracy"] == epoch["test_accuracy"]
        assert point["metrics"]["phase_data_seconds"] == epoch["phases"]["data"]
        assert "grad_sq_norm" not in point["metrics"]
    (ended,) = tracker.of("trial_ended")
    assert ended["point"]["step"] == 2
    names = {name for point in (*told, ended["point"]) for name in point["metrics"]}
    assert [find_metric(name).name for name in names]


def test_a_trial_ends_once(study):
    recorder, folder, tracker, trials = study
    play(recorder, trials[0])
    for event in events_of(trials[0]):
        assert recorder.take(trials[0]["trial_id"], event) == []
    assert recorder.take(trials[0]["trial_id"], {"type": "lost", "error": error_of("tune_trial", "gone")}) == []
    assert len(folder.read_trials()) == 1
    assert len(tracker.of("trial_ended")) == 1


def test_a_lost_trial_keeps_its_epochs(study):
    recorder, folder, tracker, trials = study
    events = events_of(trials[0])
    for event in events[:2]:
        recorder.take(trials[0]["trial_id"], event)
    (ended,) = recorder.take(trials[0]["trial_id"], {"type": "lost", "error": error_of("tune_trial", "gone")})
    assert (ended["type"], ended["status"], ended["error"]["kind"]) == ("ended", "failed", "tune_trial")
    (record,) = folder.read_trials()
    assert record["epochs"] == trials[0]["epochs"][:1]
    assert tracker.of("trial_ended")[0]["tags"]["scalestudy.error"] == "gone"


def test_a_trial_that_never_got_workers_has_a_run_and_a_record(study):
    recorder, folder, tracker, trials = study
    facts = Outcome().to_dict(
        status="failed", attempts=1, started_at=None, now=100.0, error=error_of("group_start", "no room")
    )
    recorder.take(trials[0]["trial_id"], {"type": "ended", **facts})
    assert [name for name, _ in tracker.told] == ["trial_ended"]
    assert tracker.told[0][1]["params"]["num_gpus"] == 1  # MLflow's part makes the run
    assert folder.read_trials()[0]["error"]["message"] == "no room"


def test_a_second_attempt_opens_no_second_run(study):
    recorder, _, tracker, trials = study
    events = events_of(trials[0])
    retry = {"type": "retry", "attempt": 1, "error": error_of("worker_lost", "died")}
    for event in (events[0], events[1], retry, {**events[0], "attempt": 2}, events[1], *events[2:]):
        recorder.take(trials[0]["trial_id"], event)
    told = ["trial_started", "epochs", "trial_started", "epochs", "trial_ended"]  # one run: it goes on
    assert [name for name, _ in tracker.told] == told


def test_an_interrupted_study_leaves_its_open_trials_to_a_later_run(study):
    recorder, folder, tracker, trials = study
    begin(recorder, folder)
    play(recorder, trials[0])
    trial_id = trials[1]["trial_id"]
    recorder.take(trial_id, events_of(trials[1])[0])
    stopped = {"type": "ended", **trials[1], "status": "failed", "error": error_of("stopped", "the study was stopped")}
    assert recorder.take(trial_id, stopped) == []
    recorder.finish()
    recorder.close(interrupted=True)
    assert [trial["trial_id"] for trial in folder.read_trials()] == [trials[0]["trial_id"]]
    assert tracker.of("trial_ended")[-1]["status"] == "interrupted"
    assert tracker.of("study_ended")[0]["status"] == "interrupted"
    assert not tracker.of("model")


def test_a_line_of_trials_jsonl():
    _, plan, _ = study_of(SPEC)
    facts = Outcome().to_dict(status="failed", attempts=1, started_at=1.0, now=2.0, error=None)
    assert list(trial_record(plan.trials[0], {"type": "ended", **facts})) == [
        "trial_id", "kind", "params", "status", "attempts", "started_at", "ended_at", "wall_seconds", "train_seconds",
        "startup_seconds", "world", "flags", "epochs", "error",
    ]  # fmt: skip


def test_a_lost_event_without_epochs():
    ended = lost_event({"error": error_of("tune_trial", "gone")}, None)
    assert (ended["status"], ended["epochs"], ended["train_seconds"]) == ("failed", [], 0)


def test_metrics_at_the_end():
    _, _, trials = study_of(SPEC)
    found = final_metrics(trials[0], (0.3, 0.99), ACCURACY)
    assert found["best_test_accuracy"] == max(epoch["test_accuracy"] for epoch in trials[0]["epochs"])
    assert "time_to_accuracy_0.3" in found
    assert "time_to_accuracy_0.99" not in found  # not reached
    broken = {**trials[0], "epochs": [], "startup_seconds": None}
    assert final_metrics(broken, (0.3,), ACCURACY).keys() == {"train_seconds", "wall_seconds"}


def test_of_an_error_the_smallest_is_the_best(tmp_path):
    text = SPEC.replace("data: digits", "data: digits, metric: mse, metric_mode: min").replace("0.99", "0.001")
    recorder, _, tracker, trials = recorded(tmp_path, text.replace("0.3", "0.8"))
    for trial in trials:
        play(recorder, trial)
    recorder.finish()
    recorder.close(interrupted=False)
    best = min(trials, key=lambda trial: trial["epochs"][-1]["test_mse"])
    assert [facts["trial_id"] for facts in tracker.of("model")] == [best["trial_id"]]
    for trial, ended in zip(trials, tracker.of("trial_ended"), strict=True):
        found = ended["point"]["metrics"]
        assert found["best_test_mse"] == min(epoch["test_mse"] for epoch in trial["epochs"])
        assert "time_to_mse_0.8" in found
        assert "time_to_mse_0.001" not in found  # not reached
        assert not any("accuracy" in name for name in found)
        assert [find_metric(name).name for name in found]
    assert "test mse" in tracker.of("study_ended")[0]["note"]


def test_what_training_picked_by_itself_is_written_down(study):
    recorder, folder, tracker, trials = study
    picked = {"shards": [0.6, 0.4], "channels_last": True, "fused": False, "compressed_steps": 120, "kind": "amx"}
    play(recorder, {**trials[0], "details": picked})
    assert folder.read_trials()[0]["details"] == picked
    assert tracker.of("trial_ended")[0]["tags"] == {
        "scalestudy.shards": "[0.6, 0.4]",
        "scalestudy.channels_last": "true",
        "scalestudy.fused": "false",
        "scalestudy.compressed_steps": "120",
        "scalestudy.kind": "amx",
        "scalestudy.attempts": "1",
    }


def test_tags_at_the_end():
    assert trial_tags({"attempts": 2, "flags": [], "error": None}) == {"scalestudy.attempts": "2"}
    tags = trial_tags({"attempts": 1, "flags": ["a", "b"], "error": {"message": "x" * 9_999}})
    assert tags["scalestudy.flags"] == "a, b"
    assert len(tags["scalestudy.error"]) == 1_000


def test_dotted_names():
    tree = {"train": {"epochs": 2, "optimizer": {"name": "sgd"}, "args": {}}, "other": 1}
    assert flat_params(tree, ("train",)) == {"train.epochs": 2, "train.optimizer.name": "sgd", "train.args": {}}


def test_the_note_is_the_answer_in_markdown():
    spec, _, _ = study_of(SPEC)
    lines = note(spec, summary_of(SPEC)).splitlines()
    assert lines[0] == "**A small one**"
    assert sum(line.startswith("- ") for line in lines) >= 1
    assert "report.html" in lines[-1]
