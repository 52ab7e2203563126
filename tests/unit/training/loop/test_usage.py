"""What a worker's process takes of its machine, measured on this one."""

import math
import mmap
import time

import pytest
import torch

from scalestudy.training.config import TrainConfig
from scalestudy.training.loop import measures
from scalestudy.training.loop.measures import UsageMeter, resident_bytes
from scalestudy.training.loop.train import train
from tests.support.training.helpers import ALONE


def test_a_busy_process_keeps_a_core_busy_and_a_sleeping_one_none() -> None:
    meter = UsageMeter(torch.device("cpu"))
    time.sleep(0.2)
    assert meter.since_last().cpu_cores < 0.5
    until = time.process_time() + 0.1
    while time.process_time() < until:
        pass
    busy = meter.since_last()
    assert busy.cpu_cores > 0
    assert math.isnan(busy.gpu_share)


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
    config = TrainConfig(model="lenet", data="digits", batch_size=256, learning_rate=0.1, epochs=2)
    records = train(config, ALONE).records
    assert all(record.cpu_cores and record.cpu_cores > 0 for record in records)
    assert all(record.resident_bytes and record.resident_bytes > 1e7 for record in records)
    assert [record.gpu_share for record in records] == [None, None]
