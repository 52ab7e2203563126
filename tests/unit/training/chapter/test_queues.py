"""Queues of operations: what they cost, and how much they keep alive."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalestudy.training.chapter.queues import (
    Batches,
    BusyFrontEnd,
    EagerQueue,
    OperationCosts,
    ThreadQueue,
    memory_table,
    operation_costs,
)

SECONDS = st.floats(1e-7, 1.0)


def test_loops_cost_what_the_book_says() -> None:
    costs = OperationCosts(hand_over=1.0, carry_out=3.0, answer=2.0)
    assert costs.waiting_each_time(10) == 60.0  # 10 · (1 + 3 + 2)
    assert costs.books_formula(10) == 33.0  # 1 + 10 · 3 + 2
    assert costs.waiting_once(10) == 33.0  # max(1 + 30, 10 + 3) + 2
    assert costs.books_condition(10)  # 30 > 9


def test_the_books_formula_fails_where_its_condition_does() -> None:
    costs = OperationCosts(hand_over=3.0, carry_out=1.0, answer=2.0)
    assert not costs.books_condition(10)  # 10 · 1 < 9 · 3
    assert costs.books_formula(10) == 15.0  # 3 + 10 + 2, though handing over alone takes 30
    assert costs.waiting_once(10) == 33.0  # max(3 + 10, 30 + 1) + 2


@given(SECONDS, SECONDS, SECONDS, st.integers(1, 1000))
def test_a_loop_is_as_fast_as_its_slower_side(t1: float, t2: float, t3: float, operations: int) -> None:
    """A simulation, operation by operation, against the formula."""
    costs = OperationCosts(t1, t2, t3)
    handed_over = carried_out = 0.0
    for _ in range(operations):
        handed_over += t1
        carried_out = max(handed_over, carried_out) + t2
    assert costs.waiting_once(operations) == pytest.approx(carried_out + t3)
    assert costs.waiting_once(operations) <= costs.waiting_each_time(operations) * (1 + 1e-9)
    if t2 >= t1:
        assert costs.books_formula(operations) == pytest.approx(costs.waiting_once(operations))
    if not costs.books_condition(operations):
        assert costs.books_formula(operations) <= (operations * t1 + t3) * (1 + 1e-9)


def test_an_eager_queue_has_finished_and_a_thread_has_not() -> None:
    done: list[int] = []
    EagerQueue().queue(lambda: done.append(1))
    assert done == [1]
    with ThreadQueue() as thread:
        release = thread.hold(1)
        thread.queue(lambda: done.append(2))
        assert done == [1]
        release()
        thread.wait()
        assert done == [1, 2]


def test_a_queued_operations_error_comes_with_the_wait() -> None:
    with ThreadQueue() as thread:
        thread.queue(lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            thread.wait()


def test_a_busy_front_end_breaks_the_books_condition() -> None:
    with BusyFrontEnd(lambda: time.sleep(0.005)) as busy:
        costs = operation_costs(busy, lambda: None, count=4, repeats=3)
    assert costs.hand_over >= 0.005
    assert not costs.books_condition(1000)


def test_a_slow_back_end_keeps_it() -> None:
    with ThreadQueue() as thread:
        costs = operation_costs(thread, lambda: time.sleep(0.005), count=4, repeats=3)
    assert costs.carry_out >= 0.005
    assert costs.books_condition(1000)


class HeldUntilWaitedFor(ThreadQueue):
    """The slowest back end there can be: it works only while someone waits."""

    def __init__(self) -> None:
        super().__init__()
        self._release = self.hold(1)

    def wait(self) -> None:
        self._release()
        super().wait()
        self._release = self.hold(1)

    def wait_for(self, mark):
        self._release()
        super().wait_for(mark)
        self._release = self.hold(1)

    def __exit__(self, *_: object) -> None:
        self._release()
        super().__exit__()


def test_how_much_is_alive_follows_from_how_far_the_front_end_may_run_ahead() -> None:
    batches = Batches(count=8, rows=32, columns=32)
    with HeldUntilWaitedFor() as queue:
        table, metrics = memory_table([queue], batches)
    assert table.column("waiting") == ["after each batch", "for the batch two before", "once, at the end"]
    assert metrics["memory_waiting_once_bytes"] == 8 * batches.bytes_each == 8 * 4096
    # the thread may still hold the batch whose result it has just given
    assert batches.bytes_each <= metrics["memory_waiting_each_bytes"] <= 2 * batches.bytes_each
    assert 3 * batches.bytes_each <= metrics["memory_waiting_two_bytes"] <= 4 * batches.bytes_each
