"""Stopwatches, warm-up and sampled phases."""

from __future__ import annotations

import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scalestudy.training.loop.measures import EpochStopwatch, PhaseTimer, enough_timed_steps, is_sampled, warm_up_end

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("warm_up", "steps", "epoch", "first", "end"),
    [
        (5, 235, 1, (1, 0), 5),
        (5, 235, 2, (1, 0), 0),
        (5, 3, 1, (1, 0), 3),  # all of the first epoch, and 2 steps of the second
        (5, 3, 2, (1, 0), 2),
        (5, 3, 3, (1, 0), 0),
        (0, 10, 1, (1, 0), 0),
        (10, 10, 1, (1, 0), 10),
        (5, 100, 7, (7, 0), 5),  # resumed at the seventh epoch: cold again
        (5, 100, 7, (7, 40), 45),  # and in its middle
        (5, 100, 7, (7, 98), 100),  # 2 steps are left of this epoch
        (5, 100, 8, (7, 98), 3),
        (5, 100, 9, (7, 98), 0),
    ],
)
def test_warm_up_belongs_to_the_process(warm_up: int, steps: int, epoch: int, first: tuple[int, int], end: int) -> None:
    assert warm_up_end(warm_up, steps, epoch, first) == end


@given(st.integers(0, 50), st.integers(1, 20), st.integers(1, 5), st.data())
def test_warm_up_steps_are_spent_exactly(warm_up: int, steps: int, first_epoch: int, data: st.DataObject) -> None:
    first = (first_epoch, data.draw(st.integers(0, steps - 1)))
    spent = [warm_up_end(warm_up, steps, epoch, first) for epoch in range(first_epoch, first_epoch + 60)]
    assert sum(spent) == warm_up + first[1]


@pytest.mark.parametrize(
    ("steps", "timed", "enough"),
    [(235, 230, True), (9, 4, False), (10, 5, True), (6, 6, True), (3, 3, True), (3, 2, False), (3, 0, False)],
)
def test_five_steps_or_a_whole_short_epoch_are_enough(steps: int, timed: int, enough: bool) -> None:
    assert enough_timed_steps(steps, timed) is enough


@given(st.integers(100, 5000), st.integers(2, 16))
def test_sampled_steps_fall_in_with_no_period(steps: int, period: int) -> None:
    """A quarter of all steps, and about a quarter of every second, third … sixteenth."""
    assert not is_sampled(0, steps)
    every = [is_sampled(step, steps) for step in range(steps)]
    assert sum(every) / steps == pytest.approx(0.25, abs=0.02 + 2 / steps)
    some = every[period - 1 :: period]
    assert sum(some) / len(some) == pytest.approx(0.25, abs=0.12 + 4 / len(some))


@pytest.mark.parametrize("steps", range(1, 16))
def test_a_short_epoch_is_sampled_too(steps: int) -> None:
    assert sum(is_sampled(step, steps) for step in range(steps)) == max(steps // 2, 1)


def test_the_stopwatch_can_be_paused() -> None:
    stopwatch = EpochStopwatch(CPU, warm_up_end=1)
    stopwatch.step_starts(1, 4)
    with stopwatch.paused():
        time.sleep(0.05)
    assert stopwatch.seconds() < 0.03
    seconds, timed_seconds, _ = stopwatch.stop(2, 8)
    assert max(seconds, timed_seconds) < 0.03


def test_the_stopwatch_leaves_the_warm_up_out() -> None:
    stopwatch = EpochStopwatch(CPU, warm_up_end=1)
    for step, samples in enumerate((0, 8)):
        stopwatch.step_starts(step, samples)
        time.sleep(0.03 if step == 0 else 0.01)
    seconds, timed_seconds, timed_samples = stopwatch.stop(2, 14)
    assert seconds >= 0.04
    assert 0.01 <= timed_seconds <= seconds - 0.03
    assert timed_samples == 6


def test_a_stopwatch_that_saw_only_warm_up_has_timed_nothing() -> None:
    stopwatch = EpochStopwatch(CPU, warm_up_end=2)
    stopwatch.step_starts(0, 0)
    assert stopwatch.stop(1, 8)[1:] == (0.0, 0)


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 40])
def test_phases_share_out_the_epochs_seconds(steps: int) -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    timer = PhaseTimer(CPU, [parameter], steps)
    for step in range(steps):
        timer.step_starts(step)
        time.sleep(0.005)
        timer.mark("data")
        with timer.backward():
            parameter.sum().backward()
            time.sleep(0.02)
        timer.mark_last_gradient("forward_backward")
        timer.mark("gradient_sync")
    phases = timer.phase_seconds(10.0)
    assert sum(phases.values()) == pytest.approx(10.0)
    assert phases["gradient_sync"] > phases["data"] > phases["forward_backward"]
    assert phases["optimizer"] == 0.0
    assert not parameter._backward_hooks


def test_an_epoch_without_sampled_steps_has_no_phases() -> None:
    assert sum(PhaseTimer(CPU, [], 10).phase_seconds(1.0).values()) == 0.0
