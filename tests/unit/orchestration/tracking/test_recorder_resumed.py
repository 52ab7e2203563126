"""What a recorder makes of a study that an earlier driver has left in the middle."""

from dataclasses import replace

import pytest

from scalestudy.experiments.study.journal import Journal
from scalestudy.orchestration.groups.events import Retried, TrialError
from scalestudy.orchestration.study.opening import open_resumed
from scalestudy.orchestration.tracking.recorder import History, Recorder
from scalestudy.orchestration.tracking.writer import Cursor
from tests.support.recordings import SPEC, FakeWriter, again, begin, events_of, play, recorded


@pytest.fixture
def study(tmp_path):
    return recorded(tmp_path, SPEC)


def killed_at(tmp_path, count):
    """A study of which a driver wrote so many events, and was killed; the events that were left."""
    recorder, folder, writer, trials = recorded(tmp_path, SPEC)
    begin(recorder, folder)
    events = [(trial["trial_id"], event) for trial in trials for event in events_of(trial)]
    for trial_id, event in events[:count]:
        recorder.take(trial_id, event)
    return recorder, folder, writer, trials, events


@pytest.mark.parametrize("count", range(9))
def test_a_study_killed_after_any_event_ends_as_an_undisturbed_one(tmp_path, count):
    recorder, folder, writer, trials, events = killed_at(tmp_path, count)
    later, more = again(recorder, folder)
    begin(later, folder, "resumed")
    for trial_id, event in events:  # the engine tells all epochs again, those from before a checkpoint too
        later.take(trial_id, event)
    later.close(interrupted=False)
    assert folder.read_trials() == trials
    epochs = [(each.trial_id, each.event["epoch"]["epoch"]) for each in more.entries if each.type == "epoch"]
    assert sorted(epochs) == sorted((t["trial_id"], e["epoch"]) for t in trials for e in t["epochs"])
    assert more.entries[: len(writer.entries)] == writer.entries  # MLflow had got nothing: all comes again
    assert more.numbers == sorted(more.numbers)


def test_mlflow_gets_what_it_had_not_got_before_the_driver_was_killed(tmp_path):
    recorder, folder, writer, _, _ = killed_at(tmp_path, 3)
    Cursor(folder.cursor_file).write(writer.numbers[1])
    later, more = again(recorder, folder)
    begin(later, folder, "resumed")
    assert more.numbers[0] == writer.numbers[2]
    assert more.told == ["epoch", "epoch", "resumed"]


def test_an_end_that_is_in_the_journal_alone_comes_into_trials_jsonl(tmp_path):
    recorder, folder, _, trials, _ = killed_at(tmp_path, 4)
    line = folder.trials_file.read_bytes()
    for torn in (b"", line[:50]):  # killed before, or in the middle of, the line
        folder.trials_file.write_bytes(torn)
        later, _ = again(recorder, folder)
        begin(later, folder, "resumed")
        assert folder.read_trials() == trials[:1]


def test_the_best_model_of_an_earlier_run_is_kept(tmp_path):
    recorder, folder, _, trials = recorded(tmp_path, SPEC)
    begin(recorder, folder)
    best, other = sorted(trials, key=lambda trial: -trial["epochs"][-1]["test_accuracy"])
    play(recorder, best)
    later, writer = again(recorder, folder)
    begin(later, folder, "resumed")
    play(later, other)
    later.finish()
    later.close(interrupted=False)
    assert writer.entries[-1].event["best"] == best["trial_id"]
    assert [path.name for path in (folder.path / "checkpoints").iterdir()] == [best["trial_id"]]


def test_wall_seconds_leave_the_time_between_two_runs_out(tmp_path):
    recorder, folder, _, _ = recorded(tmp_path, SPEC)
    begin(recorder, folder)
    history = History.of(Journal(folder.journal_folder).entries())
    history.began -= 1_000  # as if the first run had begun, and been killed, long ago
    history.last_seen -= 990
    later = Recorder(recorder._study, FakeWriter(), history)
    begin(later, folder, "resumed")
    assert 10 <= later.wall_seconds < 20


def test_what_the_pool_tells_again_is_not_written_again(study):
    recorder, folder, _, trials = study
    trial_id, events = trials[0]["trial_id"], events_of(trials[0])
    retry = Retried(attempt=1, error=TrialError(kind="worker_lost", message="died"))
    again = replace(events[0], attempt=2)
    for event in (events[0], events[1], retry, again, events[0], events[1], retry, again, events[2]):
        recorder.take(trial_id, event)
    kinds = [entry.type for entry in Journal(folder.journal_folder).entries()]
    assert kinds == ["running", "epoch", "retry", "running", "epoch"]
    assert recorder.history.record_of(trial_id).attempts == 2
    assert len(recorder.history.record_of(trial_id).failures) == 1


def test_an_end_that_only_trials_jsonl_has_comes_to_mlflow(tmp_path):
    recorder, folder, _, trials, _ = killed_at(tmp_path, 4)
    for file in folder.journal_folder.glob("*"):
        file.unlink()
    Cursor(folder.cursor_file).write(0)
    history = open_resumed(folder.path).history
    writer = FakeWriter()
    later = Recorder(recorder._study, writer, history)
    begin(later, folder, "resumed")
    assert writer.told == ["ended", "resumed"]
    assert folder.read_trials() == trials[:1]
    assert Recorder(recorder._study, writer, open_resumed(folder.path).history).wall_seconds < 60
