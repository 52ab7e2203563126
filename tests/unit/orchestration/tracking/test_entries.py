"""The journal with typed events: what is written is what is read, and what is not known is skipped."""

from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.experiments.study.journal import Journal
from scalestudy.orchestration.groups.events import Running, StudyBegan
from scalestudy.orchestration.tracking.entries import StudyJournal
from tests.support.recordings import SPEC, begin, play, recorded


def test_what_is_handed_on_as_it_is_written_is_what_is_read(tmp_path):
    recorder, folder, writer, trials = recorded(tmp_path, SPEC)
    begin(recorder, folder)
    for trial in trials:
        play(recorder, trial)
    recorder.close(interrupted=False)
    assert list(StudyJournal(folder).entries()) == writer.entries
    assert list(StudyJournal(folder).entries(after=3)) == writer.entries[3:]
    assert [entry.line for entry in writer.entries if entry.line] == trials


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
