"""What the recorder writes down of a study's events, and the journal that it folds again."""

import json
from dataclasses import replace

import pytest

from scalestudy.experiments.report import write_report
from scalestudy.experiments.spec.study_spec import StudySpec
from scalestudy.experiments.spec.yaml_lines import read_yaml
from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.experiments.study.journal import Entry
from scalestudy.orchestration.groups.events import (
    Ended,
    EpochDone,
    Failure,
    LoopCheckpoint,
    Lost,
    Origin,
    Reopened,
    Retried,
    Running,
    StudyBegan,
    StudyStopped,
    Suggested,
    TrialError,
    World,
    to_plain,
)
from scalestudy.orchestration.groups.trial_record import TrialRecord
from scalestudy.orchestration.study.folders import spec_of
from scalestudy.orchestration.study.opening import open_resumed
from scalestudy.orchestration.sweep.methods import search_for
from scalestudy.orchestration.tracking.entries import Recorded, StudyJournal
from scalestudy.orchestration.tracking.mlflow_store import TrackedStudy
from scalestudy.orchestration.tracking.recorder import History, Recorder, complete_trials
from scalestudy.orchestration.tracking.run_content import answer_of
from scalestudy.orchestration.tracking.writer import Cursor
from scalestudy.training.fingerprint import Fingerprint
from scalestudy.training.records import utc_text
from tests.support.epochs import epoch_of
from tests.support.old_studies import JOURNALS, STUDIES, entry_texts, recorded_in, unpack
from tests.support.recordings import SPEC, FakeWriter, again, begin, events_of, play, recorded

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
    assert writer.entries == list(StudyJournal(folder).entries())
    assert [entry.line for entry in writer.entries if entry.line] == trials
    assert summary == json.loads(folder.summary_file.read_text())
    assert folder.report_file.exists()
    took = summary["cost"]["wall_seconds"]
    assert 0 < took < 60
    told = writer.entries[-1].event
    assert told.wall_seconds == took
    assert told.answer == answer_of(summary)
    assert told.answer.figures["trials_ended"] == 2
    assert History.of(writer.entries).study_seconds == took, "and not the time that the report took besides"
    best = max(trials, key=lambda trial: trial["epochs"][-1]["test_accuracy"])
    assert told.best == best["trial_id"]
    left = [path.name for path in (folder.path / "checkpoints").iterdir()]
    assert left == [best["trial_id"]]


def test_a_failed_trial_that_is_reopened_runs_again_from_its_beginning(study):
    recorder, folder, writer, trials = study
    begin(recorder, folder)
    fate, other = trials[0]["trial_id"], trials[1]["trial_id"]
    failed = [*events_of(trials[0])[:2], failed_end(attempts=3)]
    for event in failed:
        recorder.take(fate, event)
    play(recorder, trials[1])
    assert recorder.take(other, Running(attempt=2)) is None
    assert recorder.take(fate, Reopened()) == Reopened()
    assert recorder.take(fate, Reopened()) is None, "it has not ended since"
    assert [line["trial_id"] for line in folder.read_trials()] == [other]
    record = recorder.history.record_of(fate)
    assert (record.attempts, record.epochs, record.ended) == (3, {}, None)
    assert ([lost.attempt for lost in record.failures], record.counted_failures) == ([1, 2], [])
    again_events = [Running(attempt=4), *events_of(trials[0])[1:]]
    for event in again_events:
        assert recorder.take(fate, event) == event
    assert [line["trial_id"] for line in folder.read_trials()] == [other, fate]
    assert folder.read_trials()[1]["status"] == "finished"
    assert writer.told[-5:] == ["reopened", "running", "epoch", "epoch", "ended"]
    history = History.of(StudyJournal(folder).entries())
    assert history.ended[fate]["status"] == "finished"
    told = [type(event) for each, event in history.past if each == fate]
    assert told == [Ended, Reopened, Running, EpochDone, EpochDone, Ended], "of before it, the end alone"


def test_a_driver_killed_while_it_reopens_leaves_no_old_line(study):
    recorder, folder, _, trials = study
    begin(recorder, folder)
    for event in [*events_of(trials[0])[:1], failed_end()]:
        recorder.take(trials[0]["trial_id"], event)
    line = folder.trials_file.read_bytes()
    recorder.take(trials[0]["trial_id"], Reopened())
    folder.trials_file.write_bytes(line)  # killed between the journal and the file
    complete_trials(folder, History.of(StudyJournal(folder).entries()))
    assert folder.read_trials() == []


OWN = SPEC.replace("model: lenet", "model: 'mine:build'")
FIRST, EDITED = (Fingerprint(code={"mine": {"mine.py": "1", "glue.py": glue}}) for glue in "12")


def test_each_trial_s_line_says_which_code_has_made_it_over_all_runs_of_the_study(tmp_path):
    recorder, folder, _, trials = recorded(tmp_path, OWN)
    recorder.begin(StudyBegan(how="started", fingerprint=FIRST), Cursor(folder.cursor_file))
    whole, cut, unbegun = trials[0]["trial_id"], trials[1]["trial_id"], "later"
    for event in events_of(trials[0]):
        recorder.take(whole, event)
    for event in events_of(trials[1])[:2]:
        recorder.take(cut, event)
    recorder, _ = again(recorder, folder)  # after an edit
    recorder._study.trials[unbegun] = replace(recorder._study.trials[cut], trial_id=unbegun)
    assert recorder.history.fingerprint == FIRST
    recorder.begin(StudyBegan(how="extended", fingerprint=EDITED), Cursor(folder.cursor_file))
    for event in events_of(trials[1])[2:]:
        recorder.take(cut, event)
    recorder.take(unbegun, events_of(trials[1])[-1])
    lines = {line["trial_id"]: line["fingerprint"] for line in folder.read_trials()}
    one, two = (
        each.digests({"model": "mine:build", "data": "digits", "data_args": {}})["mine"] for each in (FIRST, EDITED)
    )
    assert lines == {whole: {"mine": [one]}, cut: {"mine": [one, two]}, unbegun: {"mine": [two]}}
    told = History.of(StudyJournal(folder).entries())
    assert (told.fingerprint, told.trained_with) == (EDITED, {})
    assert [line["fingerprint"] for line in told.ended.values()] == list(lines.values())
    assert "versions" in [caveat["kind"] for caveat in recorder.finish()["caveats"]]


def test_of_an_edit_in_the_middle_of_a_run_the_worker_s_word_counts(tmp_path):
    recorder, folder, _, trials = recorded(tmp_path, OWN)
    recorder.begin(StudyBegan(how="started", fingerprint=FIRST), Cursor(folder.cursor_file))
    for trial, told in zip(trials, ({}, {"mine": ["of the edit"]}), strict=True):
        *others, ended = events_of(trial)
        for event in [*others, replace(ended, fingerprint=told)]:
            recorder.take(trial["trial_id"], event)
    began = FIRST.digests({"model": "mine:build", "data": "digits", "data_args": {}})["mine"]
    assert [line["fingerprint"]["mine"] for line in folder.read_trials()] == [[began], ["of the edit"]]


def test_a_reopened_trial_is_of_the_code_that_trains_it_then(tmp_path):
    recorder, folder, _, trials = recorded(tmp_path, OWN)
    recorder.begin(StudyBegan(how="started", fingerprint=FIRST), Cursor(folder.cursor_file))
    trial_id = trials[0]["trial_id"]
    for event in [*events_of(trials[0])[:2], failed_end()]:
        recorder.take(trial_id, event)
    recorder, _ = again(recorder, folder)
    recorder.begin(StudyBegan(how="resumed", fingerprint=EDITED), Cursor(folder.cursor_file))
    for event in [Reopened(), Running(attempt=2), *events_of(trials[0])[1:]]:
        recorder.take(trial_id, event)
    ((digests,),) = [line["fingerprint"].values() for line in folder.read_trials()]
    assert digests == [EDITED.digests({"model": "mine:build", "data": "digits", "data_args": {}})["mine"]]


def test_a_study_of_built_in_parts_writes_no_fingerprint(study):
    recorder, folder, _, trials = study
    recorder.begin(StudyBegan(how="started", fingerprint=FIRST), Cursor(folder.cursor_file))
    play(recorder, trials[0])
    assert "fingerprint" not in folder.read_trials()[0]


def failed_end(attempts=1):
    """An end after lost attempts."""
    record = TrialRecord(
        failures=[Failure(attempt=number, kind="node_lost", message="m") for number in range(1, attempts)]
    )
    return record.end("failed", attempts=attempts, error=TrialError(kind="node_lost", message="m"), at=100.0)


def test_the_checkpoints_of_a_user_s_loop_go_with_the_attempt_and_the_trial(study):
    recorder, folder, _, trials = study
    running, first, second, *_, end = events_of(trials[0])
    runs = [folder.path / "checkpoints" / run for run in ("group-1", "group-2")]
    for run in runs:
        (run / "checkpoint_1").mkdir(parents=True)
    for event, run in zip((first, second), runs, strict=True):
        at = LoopCheckpoint(address=str(run / "checkpoint_1"), epoch=event.record.epoch)
        recorder.take(trials[0]["trial_id"], running)
        recorder.take(trials[0]["trial_id"], replace(event, checkpoint=at))
    assert [run.exists() for run in runs] == [False, True], "the later attempt has its own"
    recorder.take(trials[0]["trial_id"], end)
    assert [run.exists() for run in runs] == [False, False]


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
    assert writer.entries[-1].event.error.message == "gone"


def test_an_interrupted_study_leaves_its_open_trials_to_a_later_run(study):
    recorder, folder, writer, trials = study
    begin(recorder, folder)
    play(recorder, trials[0])
    trial_id = trials[1]["trial_id"]
    recorder.take(trial_id, events_of(trials[1])[0])
    error = TrialError(kind="stopped", message="the study was stopped")
    assert recorder.take(trial_id, replace(events_of(trials[1])[-1], status="failed", error=error)) is None
    recorder.close(interrupted=True)
    assert [trial["trial_id"] for trial in folder.read_trials()] == [trials[0]["trial_id"]]
    stopped = writer.entries[-1].event
    assert (type(stopped), stopped.open) == (StudyStopped, (trial_id,))
    assert stopped.answer is None, "it has no summary"


def test_suggested_trials_are_known_and_suggested_once(study):
    recorder, folder, _, _ = study
    trial = next(iter(recorder._study.trials.values()))
    suggested = Suggested(trial=trial, point=1)
    assert recorder.take(trial.trial_id, suggested) == suggested
    assert recorder.take(trial.trial_id, suggested) is None
    for history in (recorder.history, History.of(StudyJournal(folder).entries())):
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
    assert writer.entries[-1].event.best == best["trial_id"]


# --- a study that an earlier driver has left in the middle ------------------------------------------------------------


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
    epochs = [(each.trial_id, each.event.record.epoch) for each in more.entries if isinstance(each.event, EpochDone)]
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
    assert writer.entries[-1].event.best == best["trial_id"]
    assert [path.name for path in (folder.path / "checkpoints").iterdir()] == [best["trial_id"]]


def test_wall_seconds_leave_the_time_between_two_runs_out(tmp_path):
    recorder, folder, _, _ = recorded(tmp_path, SPEC)
    begin(recorder, folder)
    history = History.of(StudyJournal(folder).entries())
    history.began -= 1_000  # as if the first run had begun, and been killed, long ago
    history.last_seen -= 990
    later = Recorder(recorder._study, FakeWriter(), history)
    begin(later, folder, "resumed")
    assert 10 <= later.wall_seconds < 20


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


# --- a study's journal, folded: what a killed or lost engine leaves, and what the next one goes on from ---------------


DIED = TrialError(kind="worker_lost", message="died")
INTERRUPTED = TrialError(kind="interrupted", message="again")
ON_CPU = World(device="cpu", nodes=1)
END = TrialRecord().end("finished", attempts=1, error=None, at=110.5)


def of_study(state, **facts):
    return "", {"type": "study", "state": state, **facts}


def running(trial_id, attempt=1, world=ON_CPU):
    return trial_id, to_plain(Running(attempt=attempt, world=world))


def epoch(trial_id, number, *flags):
    return trial_id, to_plain(EpochDone(record=epoch_of(number), flags=flags))


def retry(trial_id, attempt=1):
    return trial_id, to_plain(Retried(attempt=attempt, error=DIED))


def ended(trial_id):
    return trial_id, {"type": "ended", "trial_id": trial_id, **END.to_facts()}


def entries(*events, start=0, at=None):
    """Entries with these events, ten seconds apart."""
    times = at or [100.0 + 10 * (start + index) for index in range(len(events))]
    numbered = enumerate(zip(events, times, strict=True), start=start + 1)
    plain = [Entry(number=n, at=moment, trial_id=trial, event=event) for n, ((trial, event), moment) in numbered]
    return [Recorded.of(entry) for entry in plain]


def test_of_a_study_that_was_killed_the_open_trials_are_known():
    history = History.of(
        entries(of_study("started"), running("a"), epoch("a", 1), running("b"), epoch("a", 2), ended("a"))
    )
    assert history.ended == {"a": {key: value for key, value in ended("a")[1].items() if key != "type"}}
    assert list(history.open) == ["b"]
    assert history.record_of("a") == history.record_of("never begun") == TrialRecord()
    assert history.wall_seconds == 50.0
    assert not any(history.is_news("a", event) for event in (EpochDone(record=epoch_of(3)), END, Lost()))
    history.record_of("b").apply(EpochDone(record=epoch_of(1)), 1.0)
    assert history.record_of("b").epochs == {}, "the caller's copy"


BEGAN, STOPPED = of_study("started"), of_study("stopped", open=[], wall_seconds=7.5)
GOES_ON = of_study("resumed")


@pytest.mark.parametrize(
    ("told", "state", "seconds"),
    [
        ((), "new", 0.0),
        ((BEGAN,), "running", 0.0),
        ((BEGAN, STOPPED), "stopped", 7.5),
        ((BEGAN, STOPPED, GOES_ON, running("a")), "running", 10.0 + 10.0),
        ((BEGAN, of_study("finished", best=None, wall_seconds=8.5)), "finished", 8.5),
    ],
)
def test_state_and_time_are_what_the_study_last_said(told, state, seconds):
    history = History.of(entries(*told))
    assert (history.state, history.study_seconds, history.origin) == (state, seconds, None)


def test_the_origin_is_that_of_the_last_run_that_has_one():
    told = entries(of_study("started", origin={"user": "ann", "source": "a.yaml"}), GOES_ON)
    assert History.of(told).origin == Origin(user="ann", source="a.yaml")


@pytest.mark.parametrize(
    ("after", "failures"),
    [
        ([retry("a"), GOES_ON], [(1, "worker_lost")]),
        ([epoch("a", 1, "shared_node"), GOES_ON, GOES_ON], [(1, "interrupted")]),
        ([STOPPED, GOES_ON], [(1, "interrupted")]),
        ([of_study("engine_lost", message="the pool died")], [(1, "engine_lost")]),
    ],
    ids=["lost before", "killed", "stopped", "engine lost"],
)
def test_an_attempt_that_an_end_cuts_off_is_lost_once(after, failures):
    record = History.of(entries(BEGAN, running("a"), *after)).record_of("a")
    assert [(failure.attempt, failure.kind) for failure in record.failures] == failures
    assert record.world == ON_CPU


def test_a_trial_that_goes_on_has_its_epochs_attempts_time_and_failures():
    told = entries(of_study("started"), running("a"), epoch("a", 1), retry("a"), running("a", 2), epoch("a", 2))
    record = History.of(told + entries(of_study("resumed"), start=100)).record_of("a")
    assert record.epochs == {number: epoch_of(number) for number in (1, 2)}
    assert record.attempts == 2
    assert record.started_at == 110.0
    assert record.earlier_seconds == 40.0  # from its first running to its last event; not the time between the runs
    assert [(failure.attempt, failure.kind) for failure in record.failures] == [(1, "worker_lost"), (2, "interrupted")]


def test_that_every_trial_gets_fresh_workers_holds_in_later_runs():
    told = (BEGAN, running("a"), of_study("fresh_workers", why="it was kept"), STOPPED, GOES_ON)
    assert History.of(entries(*told)).fresh_workers == "it was kept"
    assert History.of(entries(BEGAN)).fresh_workers == ""


def test_time_between_two_runs_of_the_study_counts_for_nothing():
    history = History.of(
        entries(
            of_study("started"),
            running("a"),
            of_study("stopped", open=["a"], wall_seconds=20.0),
            of_study("resumed"),
            running("a", 2),
            epoch("a", 1),
            at=[100.0, 110.0, 120.0, 1000.0, 1010.0, 1025.0],
        )
    )
    assert history.wall_seconds == 20.0 + 25.0
    record = history.open["a"]
    record.cut(INTERRUPTED)
    assert record.earlier_seconds == 0.0 + 15.0  # nothing was seen of it in the first run after its start
    assert len(record.failures) == 2


# --- recorded studies: their journals are folded, resumed and written again to the byte ------------------------------


@pytest.mark.parametrize("name", STUDIES)
def test_the_fold_of_a_journal_is_the_study_s_trials(tmp_path, name):
    study = unpack(name, tmp_path / name)
    kept = study.trials_file.read_bytes()
    study.trials_file.unlink()
    history = open_resumed(study.path).history
    complete_trials(study, history)
    assert study.trials_file.read_bytes() == kept
    assert len(history.open) == (name == "killed")
    assert history.wall_seconds > 0


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_that_is_told_again_is_written_again_byte_for_byte(tmp_path, name):
    """Each event twice, as after a lost Tune process: the journal and trials.jsonl are the recorded ones."""
    old = unpack(name, tmp_path / "old")
    study = StudyFolder(tmp_path / "new")
    study.create()
    trials = old.read_plan().with_trials(History.of(recorded_in(name)).suggested.values()).by_id()
    tracked = TrackedStudy(spec=spec_of(old), folder=study, trials=trials, config_of=lambda trial: {})
    recorder = Recorder(tracked, FakeWriter(), History())
    for entry in recorded_in(name):
        event = entry.event
        if not entry.trial_id:
            recorder.take_study(event)
            continue
        assert recorder.take(entry.trial_id, event) == event
        assert recorder.take(entry.trial_id, event) is None
    assert study.trials_file.read_bytes() == old.trials_file.read_bytes()
    written = [json.loads(file.read_text()) for file in sorted(study.journal_folder.glob("*.json"))]
    assert [without_time(each) for each in written] == [without_time(json.loads(text)) for text in entry_texts(name)]


def without_time(entry):
    """An entry's text without the moment at which it was written."""
    return json.dumps({**entry, "at": 0.0})


@pytest.mark.parametrize("name", STUDIES)
def test_the_report_of_a_recorded_study_has_the_same_summary(tmp_path, name):
    study = unpack(name, tmp_path / name)
    kept = json.loads(study.summary_file.read_text("utf-8"))
    write_report(study)
    assert_same(json.loads(study.summary_file.read_text("utf-8")), kept)


DRAWN = ("summary.recommendation", "summary.time_to_target", "summary.predictions")
"""What comes from draws: where the last digits of a number differ, another draw may be chosen."""


def assert_same(found, kept, path="summary"):
    """Equal, but for the last digits of numbers, which differ from processor to processor."""
    if isinstance(kept, dict):
        assert list(found) == list(kept), path
        for key, value in kept.items():
            assert_same(found[key], value, f"{path}.{key}")
    elif isinstance(kept, list):
        assert len(found) == len(kept), path
        for place, (one, other) in enumerate(zip(found, kept, strict=True)):
            assert_same(one, other, f"{path}[{place}]")
    elif isinstance(kept, float):
        assert found == pytest.approx(kept, rel=0.03 if path.startswith(DRAWN) else 1e-6, abs=1e-9), path
    else:
        assert found == kept, path


def test_a_killed_study_goes_on_as_it_went_on():
    """The open trial's record is what the trial's line says once it has ended."""
    before, after = History.of(recorded_in("killed")), recorded_in("resumed")
    (trial_id,) = before.open
    resumed = next(entry for entry in after if isinstance(entry.event, StudyBegan) and entry.event.how == "resumed")
    before.take(resumed)
    record = before.record_of(trial_id)
    ended = next(entry.event for entry in after if isinstance(entry.event, Ended) and entry.trial_id == trial_id)
    assert (record.attempts, sorted(record.epochs)) == (1, [1, 2, 3, 4])
    assert list(ended.epochs[:4]) == [record.epochs[number] for number in (1, 2, 3, 4)]
    assert tuple(record.failures) == ended.failures
    assert (ended.attempts, utc_text(record.started_at)) == (2, ended.started_at)
    assert 0 < record.earlier_seconds < ended.wall_seconds


@pytest.mark.parametrize("name", STUDIES)
def test_a_search_that_is_told_a_recorded_study_gives_what_is_left_of_it(tmp_path, name):
    study = unpack(name, tmp_path / name)
    plan, history = study.read_plan(), History.of(StudyJournal(study).entries())
    swept = {trial.trial_id for trial in plan.trials}
    past = [(trial_id, event) for trial_id, event in history.past if trial_id in swept]
    search = search_for(StudySpec.model_validate(read_yaml(study.spec_file.read_text("utf-8")).data), plan, past)
    left = []
    while (suggestion := search.next()) is not None:
        left.append(suggestion.trial.trial_id)
    assert left == [trial.trial_id for trial in plan.trials if trial.trial_id not in history.ended]
    assert bool(left) == (name == "killed")


def test_every_study_that_is_kept_is_looked_at():
    kept = {folder.name for folder in JOURNALS.iterdir() if folder.is_dir()}
    assert kept == {*STUDIES, "pieces"}
