"""A study that runs: what ends it before its time."""

import signal
from dataclasses import replace
from threading import Event
from types import SimpleNamespace

import pytest

from scalestudy.orchestration.groups.events import Ended, FreshWorkers, Retried, Running, TrialError
from scalestudy.orchestration.progress.progress import StudyProgress
from scalestudy.orchestration.study.result import exit_code_of_signal
from scalestudy.orchestration.study.running import RunningStudy, stop_signals
from scalestudy.orchestration.tracking.recorder import History
from scalestudy.training.fingerprint import Fingerprint
from scalestudy.training.own_code import named_modules
from scalestudy.training.process import terminate
from tests.support.synthetic_studies import study_of


def test_an_entry_of_the_journal_that_another_process_has_written_is_a_lost_lock():
    """This process stood still for so long that another one goes on with the study."""

    def taken(*_):
        raise FileExistsError("00000007.json")

    lost = []
    study = SimpleNamespace(
        lock_lost=False,
        storage_lost=False,
        recorder=SimpleNamespace(take=taken),
        _lose_lock=lambda: lost.append("lock"),
        _lose_storage=lambda _: lost.append("storage"),
    )
    assert RunningStudy._take(study, "t0", Running(attempt=1)) is None
    assert lost == ["lock"]


def test_what_used_workers_gave_back_is_noted_and_shown_once():
    """The journal then says that every trial gets fresh workers, so that a later run knows."""
    given_back = Retried(attempt=1, error=TrialError(kind="used_workers", message="it was kept"))
    study = SimpleNamespace(
        lock_lost=False,
        storage_lost=False,
        fresh_workers="",
        first=None,
        recorder=SimpleNamespace(take=lambda _trial_id, event: event, take_study=lambda event: noted.append(event)),
        progress=StudyProgress({}),
        view=SimpleNamespace(stage=lambda line: shown.append(line), event=lambda *_: None),
    )
    study.recorder.history = History()
    study._use_fresh_workers = lambda why: RunningStudy._use_fresh_workers(study, why)
    study.progress.take = lambda *_: None
    noted, shown = [], []
    for trial_id in ("t0", "t1"):
        RunningStudy._take(study, trial_id, given_back)
    assert noted == [FreshWorkers(why="it was kept")]
    assert shown == ["every trial gets fresh workers: it was kept"]
    assert study.fresh_workers == "it was kept"


def test_a_study_that_is_stopped_says_so_at_once():
    """The view, which draws the progress, shows trials as cut off while their workers end."""
    progress, told = StudyProgress({}), []
    engine = SimpleNamespace(stop_soon=lambda: told.append(progress.stopping))
    study = SimpleNamespace(stopping=Event(), progress=progress, engine=engine)
    RunningStudy.stop(study)
    assert study.stopping.is_set()
    assert told == [True]


@pytest.fixture
def hang_up():
    """Sets what SIGHUP does here, and puts back what it did."""
    before = signal.getsignal(signal.SIGHUP)
    yield lambda handler: signal.signal(signal.SIGHUP, handler)
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("before", [signal.SIG_DFL, terminate])
def test_the_end_of_a_terminal_stops_a_study_and_never_gives_it_up(hang_up, before):
    """Kernel and shell both send the signal."""
    hang_up(before)
    stopped = []
    with stop_signals(lambda: stopped.append(True)) as caught:
        for _ in range(3):
            signal.raise_signal(signal.SIGHUP)
        assert (caught, stopped) == ([signal.SIGHUP], [True])
        with pytest.raises(SystemExit) as end:
            signal.raise_signal(signal.SIGTERM)
    assert end.value.code == exit_code_of_signal(signal.SIGHUP) == 143
    assert signal.getsignal(signal.SIGHUP) is before


@pytest.mark.parametrize("before", [signal.SIG_IGN, lambda *_: None], ids=["nohup", "a handler of the user's"])
def test_a_terminal_s_end_that_is_handled_otherwise_stays_so(hang_up, before):
    hang_up(before)
    with stop_signals(lambda: None):
        assert signal.getsignal(signal.SIGHUP) is before


def test_an_edit_in_the_middle_of_a_run_is_told_once_by_the_files(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "running_mine.py").write_text("import running_glue\n")
    (tmp_path / "running_glue.py").write_text("VALUE = 1\n")
    _, plan, records = study_of("name: x\nworkload: {model: 'running_mine:build'}\ntrain: {epochs: 1}")
    trial, ended = plan.trials[0], Ended.from_facts(records[0])
    began = Fingerprint.of_code(named_modules(trial.workload))
    (same,) = began.digests(trial.workload).values()
    told = []
    study = SimpleNamespace(
        ready=SimpleNamespace(fingerprint=began), edited=set(), view=SimpleNamespace(stage=told.append)
    )

    def of(*digests):
        RunningStudy._tell_edits(study, trial, replace(ended, fingerprint={"running_mine": digests}))

    of(same)
    of("of an earlier run", same)
    RunningStudy._tell_edits(study, trial, ended)
    assert told == []
    (tmp_path / "running_glue.py").write_text("VALUE = 2\n")
    of("other")
    of("other")
    assert told == ["changed since this run began: running_glue.py"]
    study.edited, study.ready.fingerprint = set(), Fingerprint.of_code(named_modules(trial.workload))
    of("of another node")
    assert told[1:] == ["changed since this run began: running_mine"]
