"""The journal: numbered files, whole or not there, in the order of the events."""

import json

import pytest

from scalestudy.experiments.study.journal import Entry, Journal


@pytest.fixture
def journal(tmp_path):
    ticks = iter(range(100, 1000))
    return Journal(tmp_path / "journal", clock=lambda: float(next(ticks)))


def test_events_come_back_in_order_with_their_numbers_and_times(journal, tmp_path):
    first = journal.append("", {"type": "study", "state": "started"})
    journal.append("abc", {"type": "epoch", "epoch": {"epoch": 1, "train_loss": 0.1 + 0.2}})
    assert first == Entry(number=1, at=100.0, trial_id="", event={"type": "study", "state": "started"})
    again = list(Journal(tmp_path / "journal").entries())
    assert [(entry.number, entry.at, entry.trial_id, entry.type) for entry in again] == [
        (1, 100.0, "", "study"),
        (2, 101.0, "abc", "epoch"),
    ]
    assert again[1].event["epoch"]["train_loss"] == 0.1 + 0.2  # to the bit
    assert [entry.number for entry in journal.entries(after=1)] == [2]


def test_a_second_run_of_the_study_goes_on_numbering(journal, tmp_path):
    journal.append("", {"type": "study"})
    later = Journal(tmp_path / "journal")
    assert later.last_number == 1
    assert later.append("", {"type": "study"}).number == 2


def test_an_empty_journal(journal):
    assert (journal.last_number, list(journal.entries())) == (0, [])


@pytest.mark.parametrize("torn", ["", '{"at": 1', "[]", '{"at": 1, "event": {"type": "x"}}', "\0\0\0"])
def test_a_torn_file_is_passed_over_and_its_number_not_used_again(journal, tmp_path, torn):
    for number in range(3):
        journal.append("abc", {"type": "x", "value": number})
    (tmp_path / "journal" / "00000003.json").write_text(torn, encoding="utf-8")
    later = Journal(tmp_path / "journal")
    assert [entry.event["value"] for entry in later.entries()] == [0, 1]
    assert later.append("abc", {"type": "x"}).number == 4


def test_an_entry_of_another_process_is_never_overwritten(journal, tmp_path):
    other = Journal(tmp_path / "journal")
    journal.append("abc", {"type": "x", "value": 1})
    with pytest.raises(FileExistsError):
        other.append("abc", {"type": "x", "value": 2})
    assert [entry.event["value"] for entry in Journal(tmp_path / "journal").entries()] == [1]
    assert len(list((tmp_path / "journal").iterdir())) == 1


def test_text_that_is_no_text(journal):
    journal.append("abc", {"type": "x", "text": "\udc80"})
    (entry,) = journal.entries()
    assert entry.event["text"] == "\udc80"


def test_what_a_killed_writer_left_aside_is_nothing(journal, tmp_path):
    journal.append("abc", {"type": "x"})
    (tmp_path / "journal" / ".00000002.json.0a1b").write_text("{", encoding="utf-8")
    later = Journal(tmp_path / "journal")
    assert len(list(later.entries())) == 1
    assert later.append("abc", {"type": "x"}).number == 2


def test_what_is_no_json_is_refused_and_leaves_nothing(journal, tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        journal.append("abc", {"type": "x", "value": float("nan")})
    assert list((tmp_path / "journal").glob("*")) == []
    assert journal.append("abc", {"type": "x"}).number == 1


def test_text_of_any_language_and_length(journal, tmp_path):
    odd = "line\u2028separator\x1c é \n" + "x" * 100_000
    journal.append("abc", {"type": "x", "text": odd})
    (entry,) = journal.entries()
    assert entry.event["text"] == odd
    assert json.loads((tmp_path / "journal" / "00000001.json").read_text(encoding="utf-8"))["trial_id"] == "abc"
