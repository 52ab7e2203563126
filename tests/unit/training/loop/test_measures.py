"""Stopwatches, warm-up and sampled phases; what a worker's process takes of its machine."""

from __future__ import annotations

import math
import mmap
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scalestudy.training.distributed import Worker
from scalestudy.training.loop import measures
from scalestudy.training.loop.measures import (
    PhaseTimer,
    RunDelay,
    Stopwatch,
    UsageMeter,
    enough_timed_steps,
    is_sampled,
    resident_bytes,
    warm_up_end,
)
from scalestudy.training.loop.train import train
from scalestudy.training.loop.trial import start_trial
from tests.support.gloo import GlooPool
from tests.support.training.helpers import ALONE, make_config
from tests.unit.training.loop.clock import Clock

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("warm_up", "steps", "began_at", "end"),
    [
        (5, 235, 0, 5),
        (5, 235, -235, 0),
        (5, 3, 0, 3),  # all of the first period, and 2 steps of the second
        (5, 3, -3, 2),
        (5, 3, -6, 0),
        (0, 10, 0, 0),
        (10, 10, 0, 10),
        (5, 100, 40, 45),  # resumed in its middle: cold again
        (5, 100, 98, 100),  # 2 steps are left of this period
        (5, 100, -2, 3),
        (5, 100, -102, 0),
    ],
)
def test_warm_up_belongs_to_the_process(warm_up: int, steps: int, began_at: int, end: int) -> None:
    assert warm_up_end(warm_up, steps, began_at) == end


@given(st.integers(0, 50), st.integers(1, 20), st.data())
def test_warm_up_steps_are_spent_exactly(warm_up: int, steps: int, data: st.DataObject) -> None:
    began_at = data.draw(st.integers(0, steps - 1))
    spent = [warm_up_end(warm_up, steps, began_at - period * steps) for period in range(60)]
    assert sum(spent) == warm_up + began_at


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


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """What the measures go by."""
    clock = Clock()
    monkeypatch.setattr("scalestudy.training.loop.measures.time", clock)
    return clock


def test_the_stopwatch_can_be_paused(clock: Clock) -> None:
    stopwatch = Stopwatch(CPU, warm_up_end=1)
    clock.now += 1
    stopwatch.step_starts(1, 4)
    with stopwatch.paused():
        clock.now += 8
    clock.now += 2
    assert stopwatch.seconds() == 3
    assert stopwatch.stop(2, 8) == (3, 2, 4)


def test_the_stopwatch_leaves_the_warm_up_out(clock: Clock) -> None:
    stopwatch = Stopwatch(CPU, warm_up_end=1)
    for step, samples in enumerate((0, 8)):
        stopwatch.step_starts(step, samples)
        clock.now += 3 if step == 0 else 1
    assert stopwatch.stop(2, 14) == (4, 1, 6)


def test_a_step_that_is_left_out_is_in_the_whole_time_alone(clock: Clock) -> None:
    stopwatch = Stopwatch(CPU, warm_up_end=0)
    for seconds in (8, 4):
        with stopwatch.out_of_timing(4):
            clock.now += seconds
    clock.now += 2
    assert stopwatch.left_out == 2
    assert stopwatch.stop(3, 12) == (14, 2, 4)


def test_a_stopwatch_that_saw_only_warm_up_has_timed_nothing() -> None:
    stopwatch = Stopwatch(CPU, warm_up_end=2)
    stopwatch.step_starts(0, 0)
    assert stopwatch.stop(1, 8)[1:] == (0.0, 0)


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 40])
def test_phases_share_out_the_epochs_seconds(steps: int, clock: Clock) -> None:
    """The synchronisation begins with the last gradient, and not with the end of backward."""
    parameter = torch.nn.Parameter(torch.ones(2))
    timer = PhaseTimer(CPU, [parameter], steps)
    for step in range(steps):
        timer.step_starts(step)
        clock.now += 0.005
        timer.mark("data")
        with timer.backward():
            clock.now += 0.001
            parameter.sum().backward()
            clock.now += 0.02
        timer.mark_last_gradient("forward_backward")
        timer.mark("gradient_sync")
    phases = timer.phase_seconds(26.0)
    assert phases == pytest.approx({"data": 5.0, "forward_backward": 1.0, "gradient_sync": 20.0})
    assert phases["optimizer"] == 0.0
    assert not parameter._backward_hooks


def timed(clock: Clock, delays: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> PhaseTimer:
    """Two steps, of which the second is sampled: 1 s a phase, and so much of it without a core."""
    delayed = 0.0
    monkeypatch.setattr(RunDelay, "seconds", lambda _: delayed)
    timer = PhaseTimer(CPU, [], 2)
    for step in range(2):
        timer.step_starts(step)
        for phase in ("optimizer", "data", "forward_backward", "gradient_sync", "optimizer", "gradient_sync"):
            clock.now += 1
            delayed += delays.get(phase, 0.0) if step else 0.9
            timer.mark(phase)
    return timer


def test_a_worker_is_starved_in_what_it_computes_alone(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for data and for other workers whether or not it has a core."""
    waits = {"data": 0.5, "gradient_sync": 0.9}
    assert timed(clock, waits, monkeypatch).starved_share() == 0
    # 3 s of computing: 0.75 in forward and backward, 0.375 in each half of the update
    computes = {"forward_backward": 0.75, "optimizer": 0.375, **waits}
    assert timed(clock, computes, monkeypatch).starved_share() == 0.5


def test_where_the_system_counts_no_delay_nobody_is_starved(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(path: str, flags: int) -> int:
        raise FileNotFoundError(path)

    monkeypatch.setattr(measures.os, "open", absent)
    assert math.isnan(RunDelay().seconds())
    assert math.isnan(timed(clock, {"optimizer": math.nan}, monkeypatch).starved_share())
    assert math.isnan(PhaseTimer(CPU, [], 10).starved_share()), "no step was sampled"


@pytest.mark.skipif(not Path("/proc/thread-self/schedstat").exists(), reason="the system does not count it")
def test_a_thread_that_shares_its_core_lacks_it_and_one_that_sleeps_does_not() -> None:
    """Three threads of other processes take turns with it on one core: it has a quarter."""
    cores, others = os.sched_getaffinity(0), []
    os.sched_setaffinity(0, {min(cores)})
    try:
        others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3)]
        time.sleep(0.5)
        meter, started = RunDelay(), time.perf_counter()
        began = meter.seconds()
        while time.perf_counter() - started < 0.5:
            pass
        busy = meter.seconds() - began
        assert busy > 0.2
        time.sleep(0.5)
        assert meter.seconds() - began - busy < 0.2
    finally:
        os.sched_setaffinity(0, cores)
        for each in others:
            each.kill()
            each.wait()


def test_an_epoch_without_sampled_steps_has_no_phases() -> None:
    assert sum(PhaseTimer(CPU, [], 10).phase_seconds(1.0).values()) == 0.0


def test_the_share_of_a_gpu_is_nvmls(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(torch.cuda, "utilization", lambda device: asked.append(device) or 50)
    meter = UsageMeter(torch.device("cuda", 1))
    assert meter.since_last().gpu_share == 0.5
    assert asked == [torch.device("cuda", 1)]


class NotSupportedError(Exception):
    """As NVML's errors are: no RuntimeError."""


@pytest.mark.parametrize("error", [ModuleNotFoundError, RuntimeError, NotSupportedError])
def test_a_gpu_that_does_not_tell_is_asked_once(monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
    asked = []

    def utilization(device: torch.device) -> int:
        asked.append(device)
        raise error("no share for you")

    monkeypatch.setattr(torch.cuda, "utilization", utilization)
    meter = UsageMeter(torch.device("cuda"))
    assert [math.isnan(meter.since_last().gpu_share) for _ in range(2)] == [True, True]
    assert len(asked) == 1


def test_memory_that_is_held_is_counted() -> None:
    size = 80_000_000
    before = resident_bytes()
    with mmap.mmap(-1, size) as held:  # of the kernel: what an allocator gives may have been resident before
        for start in range(0, size, mmap.PAGESIZE):
            held[start] = 1
        assert resident_bytes() - before > 0.9 * size


def test_the_meter_counts_from_one_question_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = iter([(10.0, 1.0), (12.0, 4.0), (16.0, 5.0), (16.0, 5.0)])
    now = [next(clocks)]
    monkeypatch.setattr(measures.time, "perf_counter", lambda: now[0][0])
    monkeypatch.setattr(measures.time, "process_time", lambda: now[0][1])
    meter, cores = UsageMeter(torch.device("cpu")), []
    for each in clocks:
        now[0] = each
        cores.append(meter.since_last().cpu_cores)
    assert cores[:2] == [1.5, 0.25]
    assert math.isnan(cores[2])


def test_a_training_records_it_each_epoch() -> None:
    records = train(make_config(epochs=2), ALONE).records
    assert all(record.cpu_cores and record.cpu_cores > 0 for record in records)
    assert all(record.resident_bytes and record.resident_bytes > 1e7 for record in records)
    assert [record.gpu_share for record in records] == [None, None]
    if Path("/proc/thread-self/schedstat").exists():
        assert all(record.starved_share is not None and 0 <= record.starved_share <= 1 for record in records)


def sync_bytes(worker: Worker) -> list[int]:
    return [record.sync_bytes for record in train(make_config(epochs=2), worker).records]


def test_the_record_tells_the_bytes_of_its_epoch(ranks: GlooPool) -> None:
    size = sum(parameter.numel() for parameter in start_trial(make_config(), ALONE).parameters) * 4
    assert ranks.run(2, sync_bytes)[0] == [8 * size] * 2  # 2 · (2 - 1) / 2 · n in each of 8 steps
    assert sync_bytes(ALONE) == [0, 0]
