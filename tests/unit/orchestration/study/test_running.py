"""A study that runs: what ends it before its time."""

from dataclasses import replace
from threading import Event
from types import SimpleNamespace

from scalestudy.orchestration.groups.events import Ended, Running
from scalestudy.orchestration.progress.progress import StudyProgress
from scalestudy.orchestration.study.running import RunningStudy
from scalestudy.training.fingerprint import Fingerprint
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


def test_a_study_that_is_stopped_says_so_at_once():
    """The view, which draws the progress, shows trials as cut off while their workers end."""
    progress, told = StudyProgress({}), []
    engine = SimpleNamespace(stop_soon=lambda: told.append(progress.stopping))
    study = SimpleNamespace(stopping=Event(), progress=progress, engine=engine)
    RunningStudy.stop(study)
    assert study.stopping.is_set()
    assert told == [True]


def test_an_edit_in_the_middle_of_a_run_is_told_once_by_the_files(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "running_mine.py").write_text("import running_glue\n")
    (tmp_path / "running_glue.py").write_text("VALUE = 1\n")
    _, plan, records = study_of("name: x\nworkload: {model: 'running_mine:build'}\ntrain: {epochs: 1}")
    trial, ended = plan.trials[0], Ended.from_facts(records[0])
    began = Fingerprint.of_code(trial.workload)
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
    study.edited, study.ready.fingerprint = set(), Fingerprint.of_code(trial.workload)
    of("of another node")
    assert told[1:] == ["changed since this run began: running_mine"]
