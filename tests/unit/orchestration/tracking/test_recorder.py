"""What the recorder writes down of a study's events."""

import json
from dataclasses import replace

import pytest

from scalestudy.experiments.study.journal import Journal
from scalestudy.orchestration.groups.events import Ended, Lost, Suggested, TrialError
from scalestudy.orchestration.groups.trial_record import TrialRecord
from scalestudy.orchestration.tracking.recorder import History
from tests.support.recordings import SPEC, begin, events_of, play, recorded
from tests.support.synthetic_studies import study_of

GONE = TrialError(kind="tune_trial", message="gone")


@pytest.fixture
def study(tmp_path):
    return recorded(tmp_path, SPEC)


def test_a_study_from_its_start_to_its_report(study):
    recorder, folder, writer, trials = study
    begin(recorder, folder)
    for trial in trials:
        play(recorder, trial)
    summary = recorder.finish()
    recorder.close(interrupted=False)
    assert folder.read_trials() == trials
    assert writer.told == ["started", *(["running", "epoch", "epoch", "ended"] * 2), "finished"]
    assert writer.entries == list(Journal(folder.journal_folder).entries())
    assert summary == json.loads(folder.summary_file.read_text())
    assert folder.report_file.exists()
    assert 0 < writer.entries[-1].event["wall_seconds"] < 60
    best = max(trials, key=lambda trial: trial["epochs"][-1]["test_accuracy"])
    assert writer.entries[-1].event["best"] == best["trial_id"]
    left = [path.name for path in (folder.path / "checkpoints").iterdir()]
    assert left == [best["trial_id"]]


def test_a_trial_ends_once(study):
    recorder, folder, writer, trials = study
    play(recorder, trials[0])
    for event in events_of(trials[0]):
        assert recorder.take(trials[0]["trial_id"], event) is None
    assert recorder.take(trials[0]["trial_id"], Lost(error=GONE)) is None
    assert len(folder.read_trials()) == 1
    assert writer.told.count("ended") == 1


def test_a_lost_trial_keeps_its_epochs(study):
    recorder, folder, writer, trials = study
    events = events_of(trials[0])
    for event in events[:2]:
        recorder.take(trials[0]["trial_id"], event)
    ended = recorder.take(trials[0]["trial_id"], Lost(error=GONE))
    assert isinstance(ended, Ended)
    assert (ended.status, ended.error) == ("failed", GONE)
    (record,) = folder.read_trials()
    assert record["epochs"] == trials[0]["epochs"][:1]
    assert writer.entries[-1].event["error"]["message"] == "gone"


def test_a_trial_that_never_got_workers_has_a_record(study):
    recorder, folder, writer, trials = study
    error = TrialError(kind="group_start", message="no room")
    recorder.take(trials[0]["trial_id"], TrialRecord().end("failed", attempts=1, error=error, at=100.0))
    assert writer.told == ["ended"]
    assert folder.read_trials()[0]["error"]["message"] == "no room"


def test_an_interrupted_study_leaves_its_open_trials_to_a_later_run(study):
    recorder, folder, writer, trials = study
    begin(recorder, folder)
    play(recorder, trials[0])
    trial_id = trials[1]["trial_id"]
    recorder.take(trial_id, events_of(trials[1])[0])
    error = TrialError(kind="stopped", message="the study was stopped")
    assert recorder.take(trial_id, replace(events_of(trials[1])[-1], status="failed", error=error)) is None
    recorder.finish()
    recorder.close(interrupted=True)
    assert [trial["trial_id"] for trial in folder.read_trials()] == [trials[0]["trial_id"]]
    stopped = writer.entries[-1].event
    assert (stopped["state"], stopped["open"]) == ("stopped", [trial_id])


def test_a_line_of_trials_jsonl():
    _, plan, _ = study_of(SPEC)
    ended = TrialRecord().end("failed", attempts=1, error=None, at=2.0)
    assert list(ended.to_line(plan.trials[0])) == [
        "trial_id",
        "kind",
        "params",
        "status",
        "attempts",
        "started_at",
        "ended_at",
        "wall_seconds",
        "train_seconds",
        "startup_seconds",
        "world",
        "flags",
        "epochs",
        "error",
    ]


def test_suggested_trials_are_known_and_suggested_once(study):
    recorder, folder, _, _ = study
    trial = next(iter(recorder._study.trials.values()))
    suggested = Suggested(trial=trial, point=1)
    assert recorder.take(trial.trial_id, suggested) == suggested
    assert recorder.take(trial.trial_id, suggested) is None
    for history in (recorder.history, History.of(Journal(folder.journal_folder).entries())):
        assert history.suggested == {trial.trial_id: trial}
        assert history.past == [(trial.trial_id, suggested)]
        assert history.record_of(trial.trial_id) == TrialRecord(), "it has not begun"


def test_of_an_error_the_smallest_is_the_best(tmp_path):
    text = SPEC.replace("data: digits", "data: digits, metric: mse, metric_mode: min")
    recorder, _, writer, trials = recorded(tmp_path, text)
    for trial in trials:
        play(recorder, trial)
    recorder.finish()
    recorder.close(interrupted=False)
    best = min(trials, key=lambda trial: trial["epochs"][-1]["test_mse"])
    assert writer.entries[-1].event["best"] == best["trial_id"]


def test_what_training_picked_by_itself_is_written_down(study):
    recorder, folder, _, trials = study
    picked = {"shards": [0.6, 0.4], "channels_last": True, "fused": False, "compressed_steps": 120, "kind": "amx"}
    play(recorder, {**trials[0], "details": picked})
    assert folder.read_trials()[0]["details"] == picked
