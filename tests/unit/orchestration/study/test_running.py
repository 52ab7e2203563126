"""A study that runs: what ends it before its time."""

from threading import Event
from types import SimpleNamespace

from scalestudy.orchestration.groups.events import Running
from scalestudy.orchestration.progress.progress import StudyProgress
from scalestudy.orchestration.study.running import RunningStudy


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
