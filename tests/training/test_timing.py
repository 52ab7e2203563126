"""Stopwatches, warm-up and sampled phases."""

from __future__ import annotations

import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from training.timing import EpochStopwatch, PhaseTimer, enough_timed_steps, warm_up_steps_left

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("warm_up", "steps", "epoch", "left"),
    [(5, 235, 1, 5), (5, 235, 2, 0), (5, 3, 1, 3), (5, 3, 2, 2), (5, 3, 3, 0), (0, 10, 1, 0), (10, 10, 1, 10)],
)
def test_warm_up_belongs_to_the_trial(warm_up: int, steps: int, epoch: int, left: int) -> None:
    assert warm_up_steps_left(warm_up, steps, epoch) == left


@given(st.integers(0, 50), st.integers(1, 20))
def test_warm_up_steps_are_spent_exactly(warm_up: int, steps: int) -> None:
    assert sum(warm_up_steps_left(warm_up, steps, epoch) for epoch in range(1, 60)) == warm_up


@pytest.mark.parametrize(
    ("steps", "warm_up", "enough"),
    [(235, 5, True), (9, 5, False), (10, 5, True), (6, 0, True), (3, 0, True), (3, 1, False), (3, 3, False)],
)
def test_five_steps_or_a_whole_short_epoch_are_enough(steps: int, warm_up: int, enough: bool) -> None:
    assert enough_timed_steps(steps, warm_up) is enough


def test_the_stopwatch_leaves_the_warm_up_out() -> None:
    stopwatch = EpochStopwatch(CPU, warm_up_steps=1)
    for step, samples in enumerate((0, 8)):
        stopwatch.step_starts(step, samples)
        time.sleep(0.03 if step == 0 else 0.01)
    seconds, timed_seconds, timed_samples = stopwatch.stop(2, 14)
    assert seconds >= 0.04
    assert 0.01 <= timed_seconds <= seconds - 0.03
    assert timed_samples == 6


def test_a_stopwatch_that_saw_only_warm_up_has_timed_nothing() -> None:
    stopwatch = EpochStopwatch(CPU, warm_up_steps=2)
    stopwatch.step_starts(0, 0)
    assert stopwatch.stop(1, 8)[1:] == (0.0, 0)


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 40])
def test_phases_share_out_the_epochs_seconds(steps: int) -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    timer = PhaseTimer(CPU, [parameter], steps)
    for step in range(steps):
        timer.step_starts(step)
        time.sleep(0.001)
        timer.mark("data")
        with timer.backward():
            parameter.sum().backward()
            time.sleep(0.003)
        timer.mark_last_gradient("forward_backward")
        timer.mark("gradient_sync")
    phases = timer.phase_seconds(10.0)
    assert sum(phases.values()) == pytest.approx(10.0)
    assert phases["gradient_sync"] > phases["data"] > phases["forward_backward"]
    assert phases["optimizer"] == 0.0
    assert not parameter._backward_hooks


def test_an_epoch_without_sampled_steps_has_no_phases() -> None:
    assert sum(PhaseTimer(CPU, [], 10).phase_seconds(1.0).values()) == 0.0
