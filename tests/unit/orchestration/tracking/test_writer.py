"""The writer's queue, its thread, and how far MLflow has come."""

import threading
import time

import pytest

from scalestudy.orchestration.groups.events import Reopened
from scalestudy.orchestration.tracking import writer as writers
from scalestudy.orchestration.tracking.entries import Recorded
from scalestudy.orchestration.tracking.writer import Cursor, TrackingWriter, catch_up


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(writers, "RETRY_SECONDS", (0.01, 0.02))
    monkeypatch.setattr(writers, "GATHER_SECONDS", 0.01)
    monkeypatch.setattr(writers, "GRACE_SECONDS", 0.2)


class FakeStore:
    """MLflow: keeps each entry once, fails when told to, and may write some before it fails."""

    def __init__(self, failures=0, written_before_failing=0):
        self.failures, self.part = failures, written_before_failing
        self.written: dict[int, Recorded] = {}  # writing twice changes nothing, as in MLflow
        self.batches: list[int] = []
        self.threads: set[str] = set()

    @property
    def has_begun(self):
        return bool(self.written)

    def write(self, entries, wrote):
        self.threads.add(threading.current_thread().name)
        if self.failures:
            self.failures -= 1
            self._keep(entries[: self.part], wrote)
            raise ConnectionError("away")
        self.batches.append(len(entries))
        self._keep(entries, wrote)

    def _keep(self, entries, wrote):
        for each in entries:
            self.written.setdefault(each.number, each)
            wrote(each.number)


def entries(count, start=1):
    numbers = range(start, start + count)
    return [Recorded(number=number, at=float(number), trial_id="t", event=Reopened()) for number in numbers]


class FakeJournal:
    """A study's journal of so many entries."""

    def __init__(self, count=0):
        self.count = count

    def entries(self, after=0):
        return iter(entries(self.count - after, after + 1))


def tell(writer, count, start=1):
    for entry in entries(count, start):
        writer.tell(entry)


@pytest.fixture
def cursor(tmp_path):
    return Cursor(tmp_path / "spool" / "written")


def test_everything_is_written_once_in_order_by_a_thread_of_its_own(cursor):
    store = FakeStore()
    writer = TrackingWriter(lambda: store, cursor, FakeJournal())
    tell(writer, 500)
    assert writer.close() == 0
    assert list(store.written) == list(range(1, 501))
    assert store.written[3] == entries(3)[2]
    assert store.threads == {"tracking"}
    assert cursor.read() == 500


def test_entries_gather_into_batches(cursor):
    store = FakeStore()
    writer = TrackingWriter(lambda: store, cursor, FakeJournal())
    tell(writer, 100)
    writer.close()
    assert len(store.batches) < 10


def test_entries_are_written_while_the_study_runs(cursor):
    store = FakeStore()
    writer = TrackingWriter(lambda: store, cursor, FakeJournal())
    tell(writer, 1)
    deadline = time.monotonic() + 5
    while not cursor.read() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert (list(store.written), cursor.read()) == ([1], 1)
    writer.close()


@pytest.mark.parametrize("part", [0, 3])
def test_a_store_that_comes_back_gets_all_in_order(cursor, part):
    store = FakeStore(failures=5, written_before_failing=part)
    writer = TrackingWriter(lambda: store, cursor, FakeJournal())
    for start in range(1, 51, 10):
        tell(writer, 10, start)
        time.sleep(0.01)
    assert writer.close() == 0
    assert list(store.written) == list(range(1, 51))
    assert cursor.read() == 50


def test_a_store_that_can_not_be_opened_at_first_is_opened_later(cursor):
    store, tries = FakeStore(), []

    def open_store():
        tries.append(0)
        if len(tries) < 4:
            raise ConnectionError("away")
        return store

    writer = TrackingWriter(open_store, cursor, FakeJournal())
    tell(writer, 10)
    assert writer.close() == 0
    assert list(store.written) == list(range(1, 11))
    assert len(tries) == 4


def test_what_is_never_written_is_counted_and_the_cursor_stays(cursor):
    away = FakeStore(failures=10**9)
    writer = TrackingWriter(lambda: away, cursor, FakeJournal())
    tell(writer, 21)
    began = time.monotonic()
    assert writer.close(seconds=0.3) == 21
    assert time.monotonic() - began < 2
    assert cursor.read() == 0


def test_a_backlog_is_sent_from_where_it_stopped(cursor):
    store = FakeStore(failures=3, written_before_failing=2)
    writer = TrackingWriter(lambda: store, cursor, FakeJournal())
    tell(writer, 7)
    assert writer.close(seconds=0) > 0
    assert cursor.read() == max(store.written) in (2, 4, 6)
    assert list(store.written) == list(range(1, cursor.read() + 1))


def test_a_store_that_fails_again_and_again_gets_all_of_a_long_backlog(cursor, monkeypatch):
    monkeypatch.setattr(writers, "A_BATCH", 5)
    store = FakeStore(failures=12, written_before_failing=1)
    assert catch_up(store, FakeJournal(30), cursor) == 30
    assert (list(store.written), cursor.read()) == (list(range(1, 31)), 30)
    assert sum(store.batches) == 30 - 12, "what it had was not sent again"


class BlockingStore(FakeStore):
    """A server that takes the connection and never answers."""

    def __init__(self, failing=False):
        super().__init__()
        self.entered, self.answer, self.failing = threading.Event(), threading.Event(), failing

    def write(self, entries, wrote):
        self.entered.set()
        self.answer.wait(20)
        if self.failing:
            raise ConnectionError("away")
        super().write(entries, wrote)


def test_close_does_not_wait_for_a_server_that_never_answers(cursor):
    store = BlockingStore()
    writer = TrackingWriter(lambda: store, cursor, FakeJournal())
    tell(writer, 3)
    assert store.entered.wait(5)
    tell(writer, 2, start=4)
    began = time.monotonic()
    assert writer.close(seconds=0.1) == 5
    assert time.monotonic() - began < 2
    store.answer.set()


def test_what_was_told_during_a_last_failing_try_is_left_too(cursor):
    store = BlockingStore(failing=True)
    writer = TrackingWriter(lambda: store, cursor, FakeJournal())
    tell(writer, 1)
    assert store.entered.wait(5)
    tell(writer, 4, start=2)
    threading.Timer(0.05, store.answer.set).start()
    assert writer.close(seconds=0.05) == 5


def test_an_abandoned_study_leaves_the_cursor_to_its_new_owner(cursor):
    store = BlockingStore()
    writer = TrackingWriter(lambda: store, cursor, FakeJournal())
    tell(writer, 3)
    assert store.entered.wait(5)
    writer.abandon()
    store.answer.set()
    writer.close(seconds=1)
    assert cursor.read() == 0


def test_catching_up_goes_on_where_it_broke_off(cursor, monkeypatch):
    monkeypatch.setattr(writers, "A_BATCH", 4)
    store = FakeStore()
    assert catch_up(store, FakeJournal(6), cursor) == 6
    assert (store.batches, cursor.read()) == ([4, 2], 6)
    store.failures = len(writers.RETRY_SECONDS) + 1
    with pytest.raises(ConnectionError):
        catch_up(store, FakeJournal(10), cursor)
    assert (store.failures, cursor.read()) == (0, 6)
    assert catch_up(store, FakeJournal(10), cursor) == 4
    assert (list(store.written), cursor.read()) == (list(range(1, 11)), 10)


@pytest.mark.parametrize("has", [0, 5])
def test_a_store_without_anything_of_the_study_gets_all_of_it_again(cursor, has):
    """A database that was just made never continues a study that has runs."""
    for write in (
        lambda store: catch_up(store, FakeJournal(8), cursor),
        lambda store: (
            writer := TrackingWriter(lambda: store, cursor, FakeJournal(8)),
            tell(writer, 3, 6),
            writer.close(),
        ),
    ):
        cursor.write(5)
        store = FakeStore()
        store.written = {entry.number: entry for entry in entries(has)}
        write(store)
        assert (list(store.written), cursor.read()) == (list(range(1, 9)), 8)
        assert sum(store.batches) == 8 - has


def test_a_resending_that_breaks_off_goes_on_where_it_broke_off(cursor, monkeypatch):
    monkeypatch.setattr(writers, "A_BATCH", 2)
    cursor.write(5)
    store = FakeStore(failures=len(writers.RETRY_SECONDS) + 1)
    with pytest.raises(ConnectionError):
        catch_up(store, FakeJournal(8), cursor)
    assert cursor.read() == 0
    assert catch_up(store, FakeJournal(8), cursor) == 8


def test_catching_up_with_nothing(cursor):
    assert catch_up(FakeStore(failures=1), FakeJournal(), cursor) == 0


@pytest.mark.parametrize("content", ["", "seven", "\x00\x00"])
def test_a_cursor_that_can_not_be_read_has_all_written_again(cursor, content):
    cursor.write(7)
    assert cursor.read() == 7
    cursor.file.write_text(content, encoding="utf-8")
    assert cursor.read() == 0


def test_a_full_disk_does_not_keep_mlflow_from_its_part(cursor):
    cursor.file.parent.parent.mkdir(exist_ok=True)
    cursor.file.parent.write_text("a file where the folder should be", encoding="utf-8")
    store = FakeStore()
    writer = TrackingWriter(lambda: store, cursor, FakeJournal())
    tell(writer, 3)
    assert writer.close() == 0
    assert list(store.written) == [1, 2, 3]
