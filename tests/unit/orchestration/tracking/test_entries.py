"""The journal with typed events: what is not known is skipped. What is written is read again: test_recorder.py."""

from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.experiments.study.journal import Journal
from scalestudy.orchestration.groups.events import Running, StudyBegan
from scalestudy.orchestration.tracking.entries import StudyJournal


def test_an_event_that_is_not_known_takes_no_other_with_it(tmp_path, caplog):
    folder = StudyFolder(tmp_path)
    first = StudyJournal(folder).append_study(StudyBegan(how="started"))
    newer = Journal(folder.journal_folder)
    newer.append("", {"type": "study", "state": "paused"})
    newer.append("t", {"type": "paused"})
    later = StudyJournal(folder).append("t", Running(attempt=1))
    assert list(StudyJournal(folder).entries()) == [first, later]
    assert ["paused" in message for message in caplog.messages] == [True, True]
    assert (later.number, StudyJournal(folder).last_number) == (4, 4)
