"""`open --watch`: what it makes of a journal, when it rewrites the page, and that it leaves the study alone."""

import itertools
import json
import webbrowser

import pytest

from scalestudy.orchestration.base.errors import UnreachableError
from scalestudy.orchestration.commands import study_commands as folder_commands
from scalestudy.orchestration.commands import watch as module
from scalestudy.orchestration.commands.study_commands import status_of
from scalestudy.orchestration.commands.watch import WatchedStudy, watch
from scalestudy.orchestration.groups.events import Reopened, Running
from scalestudy.orchestration.storage.lock import StudyLock, lock_of
from scalestudy.orchestration.tracking.recorder import History
from scalestudy.training.process import Terminated
from tests.support.in_process import scalestudy
from tests.support.recordings import again, begin, events_of, play, recorded
from tests.support.report_pages import Page

SPEC = """
name: tiny
train: {epochs: 4}
targets: {accuracy: [0.3]}
sweep: {num_gpus: [1, 2], batch_size: [32], learning_rate: [0.1], seed: [0, 1]}
"""


@pytest.fixture(autouse=True)
def _own_home(monkeypatch, tmp_path):
    monkeypatch.setenv("SCALESTUDY_HOME", str(tmp_path / "home"))


@pytest.fixture
def running(tmp_path):
    """A study of four trials that runs: one has ended, one has made two epochs. Recorder, folder, trials."""
    recorder, folder, _, trials = recorded(tmp_path, SPEC)
    begin(recorder, folder)
    play(recorder, trials[0])
    train(recorder, trials[1], epochs=2)
    return recorder, folder, trials


def train(recorder, trial, epochs):
    for event in events_of(trial)[: 1 + epochs]:
        recorder.take(trial["trial_id"], event)


def shown(study):
    return Page(study.page.read_text("utf-8"))


def test_the_page_is_written_from_the_journal_alone(running):
    _, folder, _ = running
    folder.trials_file.unlink()
    study = WatchedStudy(folder.path)
    study.write_page()
    page = shown(study)
    assert "So far: " in page.shown
    assert "1/4 trials" in page.shown
    assert "workers=1 batch=32 lr=0.1 seed=1: epoch 2 of 4" in page.shown
    data = json.loads(page.scripts[0])
    assert [(curve["cell"], curve["epochs"]) for curve in data["curves"] if curve.get("runs")] == [(0, [1, 2])]


def test_watching_changes_nothing_in_the_studys_folder(running):
    _, folder, _ = running
    before = {file: file.read_bytes() for file in folder.path.rglob("*") if file.is_file()}
    study = WatchedStudy(folder.path)
    watch(study, lambda page: None)
    assert study.page.exists()
    assert {file: file.read_bytes() for file in folder.path.rglob("*") if file.is_file()} == before


def test_the_page_follows_the_journal_and_leads_to_the_report_at_the_end(running, monkeypatch):
    monkeypatch.setattr(module, "SHARE", 1e9)
    recorder, folder, trials = running
    study, pages, opened_pages = WatchedStudy(folder.path), [], []
    lock = lock_of(folder)
    lock.__enter__()

    def pass_time(seconds):
        pages.append(study.page.read_text("utf-8"))
        if len(pages) == 1:
            play(recorder, trials[2])
        else:
            recorder.finish()
            recorder.close(interrupted=False)
            lock.__exit__(None, None, None)

    watch(study, opened_pages.append, pass_time)
    assert opened_pages == [study.page]
    first, second = (Page(text).shown for text in pages)
    assert "1/4 trials" in first
    assert "2/4 trials" in second
    last = study.page.read_text("utf-8")
    assert f"url={folder.report_file.as_uri()}" in last
    assert "data-written" not in folder.report_file.read_text("utf-8")


@pytest.mark.parametrize(
    ("takes", "has_news", "moments"),
    [
        pytest.param(0, False, [0, 60, 120], id="without news once a minute"),
        pytest.param(2, True, [0, 42, 84], id="two seconds of writing in forty"),
    ],
)
def test_when_the_page_is_rewritten(running, monkeypatch, takes, has_news, moments):
    recorder, folder, trials = running
    study, clock, written = WatchedStudy(folder.path), [0.0], []
    news = iter(events_of(trials[2]) if has_news else ())
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])

    def write_page():
        written.append(clock[0])
        clock[0] += takes

    def pass_time(seconds):
        clock[0] += seconds
        if clock[0] > 130:
            raise KeyboardInterrupt
        for event in itertools.islice(news, 1):
            recorder.take(trials[2]["trial_id"], event)

    monkeypatch.setattr(study, "write_page", write_page)
    with lock_of(folder), pytest.raises(KeyboardInterrupt):
        watch(study, lambda page: None, pass_time)
    assert written == moments


def test_in_a_resumed_study_what_trained_before_rests_and_only_this_runs_trials_tell_the_pace(running):
    recorder, folder, trials = running
    recorder, _ = again(recorder, folder)
    begin(recorder, folder, "resumed")
    study = WatchedStudy(folder.path)
    assert (list(study.progress.running), study.progress.ended_before) == ([], 1)
    assert list(study.progress.resting) == [trials[1]["trial_id"]]
    assert [(each.trial_id, each.epoch) for each in status_of(folder.path).running] == [(trials[1]["trial_id"], 2)]
    _, *epochs, _ = events_of(trials[1])
    for event in (Running(attempt=2), epochs[2]):
        recorder.take(trials[1]["trial_id"], event)
    assert study.look()
    assert [len(each.epochs) for each in study.progress.running.values()] == [3]
    assert not study.look()
    assert [(each.trial_id, each.attempt, each.epoch) for each in status_of(folder.path).running] == [
        (trials[1]["trial_id"], 2, 3)
    ]


def test_a_trial_that_is_reopened_has_not_ended_before(running):
    recorder, folder, trials = running
    recorder, _ = again(recorder, folder)
    begin(recorder, folder, "resumed")
    recorder.take(trials[0]["trial_id"], Reopened())
    study = WatchedStudy(folder.path)
    assert (study.progress.ended_before, len(study.progress.statuses)) == (0, 0)


def test_the_history_is_the_one_that_resume_reads(running):
    recorder, folder, _ = running
    assert WatchedStudy(folder.path).history == recorder.history
    assert isinstance(recorder.history, History)


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def browser(monkeypatch):
    """The pages that a browser was asked to show."""
    pages = []
    monkeypatch.setattr(webbrowser, "open", lambda page: pages.append(page) or True)
    monkeypatch.setattr(folder_commands.os, "nice", lambda more: None)
    return pages


@pytest.mark.parametrize(("sent", "status", "said"), [(KeyboardInterrupt, 0, ""), (Terminated, 143, "stopped\n")])
def test_ctrl_c_ends_the_watching_with_status_0(running, browser, monkeypatch, tmp_path, sent, status, said):
    _, folder, _ = running

    def interrupt(seconds):
        raise sent

    monkeypatch.setattr(watch, "__defaults__", (interrupt,))
    with lock_of(folder):
        done = scalestudy("open", folder.path, "--watch", cwd=tmp_path, DISPLAY=":0")
    page = tmp_path / "home" / "live" / "tiny-20260131.html"
    assert (done.returncode, done.stdout) == (status, f"{page}\n")
    assert done.stderr == f"Ctrl-C ends the watching, not the study\n{said}"
    assert browser == [page.as_uri()]


def test_a_study_whose_process_dies_ends_the_watching(running, browser, monkeypatch, tmp_path):
    _, folder, _ = running
    lock = lock_of(folder)
    lock.__enter__()
    monkeypatch.setattr(watch, "__defaults__", (lambda seconds: lock.__exit__(None, None, None),))
    done = scalestudy("open", folder.path, "--watch", cwd=tmp_path, DISPLAY=":0")
    assert done.returncode == 0
    assert done.stderr.splitlines()[-1] == (
        f"the process that ran the study has ended before the study; to go on: scalestudy resume {folder.path}"
    )
    assert "1/4 trials" in (tmp_path / "home" / "live" / "tiny-20260131.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("owner", "question", "error"),
    [
        (StudyLock, "read_holder", OSError("no route to host")),
        (WatchedStudy, "look", UnreachableError("storage: s3://b/x: can't be read", "correct the address")),
    ],
)
def test_a_bucket_out_of_reach_is_asked_again(running, browser, monkeypatch, tmp_path, owner, question, error):
    _, folder, _ = running
    lock = lock_of(folder)
    lock.__enter__()
    asks, waits, away = getattr(owner, question), [], []

    def ask(self):
        if away:
            raise error
        return asks(self)

    def pass_time(seconds):
        waits.append(seconds)
        away[:] = ["away"] if len(waits) in (1, 2) else []
        if len(waits) == 4:
            lock.__exit__(None, None, None)

    monkeypatch.setattr(owner, question, ask)
    monkeypatch.setattr(watch, "__defaults__", (pass_time,))
    done = scalestudy("open", folder.path, "--watch", cwd=tmp_path, DISPLAY=":0")
    assert (done.returncode, len(waits)) == (0, 4)
    _, told, last = done.stderr.splitlines()
    assert told.startswith("storage: ")
    assert told.endswith("; asked again every 10 s"), "and said once"
    assert last.startswith("the process that ran the study has ended before the study")


def test_of_a_study_that_does_not_run_the_report_is_shown(running, browser, tmp_path):
    recorder, folder, _ = running
    done = scalestudy("open", folder.path, "--watch", cwd=tmp_path, DISPLAY=":0")
    assert done.returncode == 2
    assert done.stderr.endswith(f"has no report.html; scalestudy report {folder.path} writes it now\n")
    recorder.finish()
    done = scalestudy("open", folder.path, "--watch", cwd=tmp_path, DISPLAY=":0")
    assert (done.stdout, done.stderr) == (f"{folder.report_file}\n", "")


def test_without_watch_a_running_study_is_opened_with_a_word_about_it(running, browser, tmp_path):
    recorder, folder, _ = running
    look = f"scalestudy open {folder.path} --watch shows how far it is"
    with lock_of(folder):
        none = scalestudy("open", folder.path, cwd=tmp_path, DISPLAY=":0")
        recorder.finish()
        earlier = scalestudy("open", folder.path, cwd=tmp_path, DISPLAY=":0")
    assert none.returncode == 2
    assert none.stderr == f"DIR: {folder.path}: has no report.html; it is written when the study ends; {look}\n"
    assert (earlier.stdout, earlier.stderr) == (f"{folder.report_file}\n", f"the study still runs; {look}\n")


def test_a_lock_that_no_one_may_read_names_the_folder(running):
    _, folder, _ = running
    (folder.path / "lock").mkdir()  # root reads any file, but no folder
    with pytest.raises(UnreachableError, match=r"can't be read .*; make the folder and its files readable"):
        status_of(folder.path)
