"""Stage 7: the tracker's queue, its thread and its spool."""

import json
import threading
import time

import pytest

from orchestration import tracking
from orchestration.tracking import SPOOL_FILE, Tracker, replay


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(tracking, "RETRY_SECONDS", (0.01, 0.02))
    monkeypatch.setattr(tracking, "GATHER_SECONDS", 0.01)
    monkeypatch.setattr(tracking, "GRACE_SECONDS", 0.2)


class FakeStore:
    """MLflow: writes each operation once, fails when told to, and may write some before it fails."""

    def __init__(self, failures=0, written_before_failing=0):
        self.failures, self.part = failures, written_before_failing
        self.written: dict[int, dict] = {}  # writing twice changes nothing, as in MLflow
        self.batches: list[int] = []
        self.threads: set[str] = set()

    def apply(self, operations):
        self.threads.add(threading.current_thread().name)
        if self.failures:
            self.failures -= 1
            self._write(operations[: self.part])
            raise ConnectionError("away")
        self.batches.append(len(operations))
        self._write(operations)

    def _write(self, operations):
        for operation in operations:
            self.written.setdefault(operation["number"], operation)


def tell(tracker, count, start=0):
    for number in range(start, start + count):
        tracker.tell("epochs", number=number)


def test_everything_is_written_once_in_order_by_a_thread_of_its_own(tmp_path):
    store = FakeStore()
    tracker = Tracker(lambda: store, tmp_path / "spool")
    tell(tracker, 500)
    assert tracker.close() == 0
    assert list(store.written) == list(range(500))
    assert store.written[3] == {"op": "epochs", "number": 3}
    assert store.threads == {"tracking"}
    assert not (tmp_path / "spool").exists()


def test_operations_gather_into_batches(tmp_path):
    store = FakeStore()
    tracker = Tracker(lambda: store, tmp_path)
    tell(tracker, 100)
    tracker.close()
    assert len(store.batches) < 10


def test_operations_are_written_while_the_study_runs(tmp_path):
    store = FakeStore()
    tracker = Tracker(lambda: store, tmp_path)
    tell(tracker, 1)
    deadline = time.monotonic() + 5
    while not store.written and time.monotonic() < deadline:
        time.sleep(0.01)
    assert list(store.written) == [0]
    tracker.close()


@pytest.mark.parametrize("part", [0, 3])
def test_a_store_that_comes_back_gets_all_in_order(tmp_path, part):
    store = FakeStore(failures=5, written_before_failing=part)
    tracker = Tracker(lambda: store, tmp_path / "spool")
    for start in range(0, 50, 10):
        tell(tracker, 10, start)
        time.sleep(0.01)
    assert tracker.close() == 0
    assert list(store.written) == list(range(50))
    assert not (tmp_path / "spool").exists()


def test_a_store_that_can_not_be_opened_at_first_is_opened_later(tmp_path):
    store, tries = FakeStore(), []

    def open_store():
        tries.append(0)
        if len(tries) < 4:
            raise ConnectionError("away")
        return store

    tracker = Tracker(open_store, tmp_path)
    tell(tracker, 10)
    assert tracker.close() == 0
    assert list(store.written) == list(range(10))
    assert len(tries) == 4


def test_what_is_never_written_is_spooled_and_replayed_in_order(tmp_path):
    away = FakeStore(failures=10**9)
    tracker = Tracker(lambda: away, tmp_path / "spool")
    tell(tracker, 20)
    began = time.monotonic()
    assert tracker.close(seconds=0.3) == 20
    assert time.monotonic() - began < 2
    back = FakeStore()
    assert replay(back, tmp_path / "spool") == 20
    assert list(back.written) == list(range(20))
    assert replay(back, tmp_path / "spool") == 0


def test_a_second_run_of_the_study_spools_behind_the_first(tmp_path):
    for start in (0, 5):
        tracker = Tracker(lambda: FakeStore(failures=10**9), tmp_path)
        tell(tracker, 5, start)
        tracker.close(seconds=0)
    store = FakeStore()
    replay(store, tmp_path)
    assert list(store.written) == list(range(10))


class BlockingStore(FakeStore):
    """A server that takes the connection and never answers."""

    def __init__(self, failing=False):
        super().__init__()
        self.entered, self.answer, self.failing = threading.Event(), threading.Event(), failing

    def apply(self, operations):
        self.entered.set()
        self.answer.wait(20)
        if self.failing:
            raise ConnectionError("away")
        super().apply(operations)


def test_close_does_not_wait_for_a_server_that_never_answers(tmp_path):
    store = BlockingStore()
    tracker = Tracker(lambda: store, tmp_path)
    tell(tracker, 3)
    assert store.entered.wait(5)
    tell(tracker, 2, start=3)
    began = time.monotonic()
    assert tracker.close(seconds=0.1) == 5
    assert time.monotonic() - began < 2
    store.answer.set()
    late = FakeStore()
    assert replay(late, tmp_path) == 5
    assert list(late.written) == list(range(5))


def test_what_was_told_during_a_last_failing_try_is_spooled_too(tmp_path):
    store = BlockingStore(failing=True)
    tracker = Tracker(lambda: store, tmp_path)
    tell(tracker, 1)
    assert store.entered.wait(5)
    tell(tracker, 4, start=1)
    threading.Timer(0.05, store.answer.set).start()
    assert tracker.close(seconds=0.05) == 5


def test_a_replay_that_fails_keeps_the_spool(tmp_path):
    (tmp_path / SPOOL_FILE).write_text('{"op": "epochs", "number": 1}\n', encoding="utf-8")
    with pytest.raises(ConnectionError):
        replay(FakeStore(failures=1), tmp_path)
    store = FakeStore()
    assert replay(store, tmp_path) == 1
    assert list(store.written) == [1]


def test_odd_text_survives_the_spool(tmp_path):
    odd = "line\u2028separator\x1c é \n end"
    tracker = Tracker(lambda: FakeStore(failures=10**9), tmp_path)
    tracker.tell("study_ended", number=0, note=odd)
    tracker.close(seconds=0)
    assert len((tmp_path / SPOOL_FILE).read_text(encoding="utf-8").splitlines()) == 1
    store = FakeStore()
    replay(store, tmp_path)
    assert store.written[0]["note"] == odd


def test_an_infinite_parameter_of_a_user_does_not_stop_the_spool(tmp_path):
    tracker = Tracker(lambda: FakeStore(failures=10**9), tmp_path)
    tracker.tell("trial_started", number=0, params={"workload.model_args.bound": float("inf")})
    assert tracker.close(seconds=0) == 1
    store = FakeStore()
    replay(store, tmp_path)
    assert store.written[0]["params"] == {"workload.model_args.bound": float("inf")}


def test_points_keep_their_value_exactly_through_the_spool(tmp_path):
    value = 0.1 + 0.2
    tracker = Tracker(lambda: FakeStore(failures=10**9), tmp_path)
    tracker.tell("epochs", number=0, points=[value])
    tracker.close(seconds=0)
    assert json.loads((tmp_path / SPOOL_FILE).read_text())["points"] == [value]
