"""What each rank's GPU does is asked after the steps of each period, and is the same on all ranks."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from scalestudy.training.backend import Gpu
from scalestudy.training.distributed import Worker
from scalestudy.training.gpu_state import GpuState
from scalestudy.training.loop import gpu_watch
from scalestudy.training.loop.gpu_watch import GpuWatch, library_versions
from scalestudy.training.loop.train import train
from tests.support.fake_nvml import PCI, Sample, install
from tests.support.gloo import GlooPool
from tests.support.training.helpers import ALONE, make_config

THERMAL = 0x20
LATER = 9_000_000


def watched(
    worker: Worker, gpus: list[tuple[str, int] | None], uuids: tuple[str, ...] = ("A", "B"), boot: str = "boot"
) -> tuple[GpuState, ...]:
    """The states after one period; gpus: by rank, its GPU's address and how many processes computed there."""
    watch, mine = GpuWatch(clock=lambda: 1.0), gpus[worker.rank]
    device = torch.device("cuda" if mine else "cpu")
    with pytest.MonkeyPatch.context() as patch:
        if mine:
            install(patch, nvmlDeviceGetProcessUtilization=[Sample(pid, LATER) for pid in range(mine[1])])
            patch.setattr(gpu_watch, "gpu_of", lambda device: Gpu(uuid=uuids[worker.rank], pci=mine[0]))
            patch.setattr(gpu_watch, "machine", lambda: boot.format(rank=worker.rank))
            patch.setattr(gpu_watch, "library_versions", lambda: {"nccl": "2.27.7", "cudnn": None})
        on_cpu = dataclasses.replace(worker, device=torch.device("cpu"))
        patch.setattr(gpu_watch, "gather_texts", lambda text, _: real_gather(text, on_cpu))
        trial: Any = SimpleNamespace(worker=dataclasses.replace(worker, device=device))
        watch.epoch_measured(trial)
    return watch.states


real_gather = gpu_watch.gather_texts


def test_a_worker_alone_with_another_process() -> None:
    (state,) = watched(ALONE, [(PCI, 2)])
    assert (state.rank, state.sm_mhz, state.others, state.nccl) == (0, 1815, 1, "2.27.7")


def test_workers_that_share_a_gpu_are_not_each_other_s_strangers(ranks: GlooPool) -> None:
    first, second = ranks.run(2, watched, [(PCI, 2), (PCI, 2)])
    assert first == second
    assert [(state.rank, state.others) for state in first] == [(0, 0), (1, 0)]


def test_workers_on_two_machines_do_not_share_a_gpu_of_the_same_address(ranks: GlooPool) -> None:
    found = ranks.run(2, watched, [(PCI, 2), (PCI, 2)], ("A", "B"), "boot{rank}")
    assert [[state.others for state in states] for states in found] == [[1, 1], [1, 1]]


def test_workers_with_the_same_uuid_share_a_gpu(ranks: GlooPool) -> None:
    found = ranks.run(2, watched, [(PCI, 2), (PCI, 2)], ("A", "A"), "boot{rank}")
    assert [[state.others for state in states] for states in found] == [[0, 0], [0, 0]]


def test_who_computed_before_the_training_or_the_last_look_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now, mine = [100.0], Gpu(uuid="A", pci=PCI)
    fake = install(monkeypatch)
    monkeypatch.setattr(gpu_watch, "gpu_of", lambda device: mine)
    monkeypatch.setattr(gpu_watch, "library_versions", dict)
    monkeypatch.setattr(gpu_watch, "gather_texts", lambda text, _: [text])
    trial: Any = SimpleNamespace(worker=dataclasses.replace(ALONE, device=torch.device("cuda")))
    watch = GpuWatch(clock=lambda: now[0])
    now[0] = 200.0
    watch.train_starts(trial)
    seen = []
    for now[0], newest in ((202.0, 201.5), (204.0, 203.0)):
        before = Sample(pid=2, timeStamp=int(newest * 1e6) - 1_000_000)  # 200.5 is of what was before 200
        fake.answers["nvmlDeviceGetProcessUtilization"] = [before, Sample(pid=1, timeStamp=int(newest * 1e6))]
        watch.epoch_measured(trial)
        seen.append((watch.states[0].processes, watch.states[0].others))
    assert seen == [(1, 0), (1, 0)]


def test_a_rank_on_a_cpu_has_no_state(ranks: GlooPool) -> None:
    first, second = ranks.run(2, watched, [None, (PCI, 1)])
    assert first == second
    assert [(state.rank, state.others) for state in first] == [(1, 0)]


def test_a_gpu_that_was_hot_once_is_told_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a whole training, whose device alone is a fake: it is asked once a period, after its steps."""
    fake = install(monkeypatch, nvmlDeviceGetCurrentClocksThrottleReasons=THERMAL)
    monkeypatch.setattr(gpu_watch, "gpu_of", lambda device: Gpu(uuid="", pci=PCI))
    monkeypatch.setattr(gpu_watch, "library_versions", lambda: {"nccl": None, "cudnn": None})

    class OnGpu(GpuWatch):
        asked = 0

        def epoch_measured(self, trial: Any) -> Any:
            self.asked += 1
            assert trial.progress.tally.steps == trial.period_steps
            on_gpu = SimpleNamespace(rank=0, world_size=1, device=torch.device("cuda"))
            found = super().epoch_measured(SimpleNamespace(worker=on_gpu))  # type: ignore[arg-type]
            fake.answers["nvmlDeviceGetCurrentClocksThrottleReasons"] = 0
            return found

    watch = OnGpu()
    train(make_config(epochs=3), ALONE, hooks=[watch])
    assert watch.asked == 3
    assert [state.reasons for state in watch.states] == [("sw_thermal_slowdown",)]


def test_versions_are_told_as_their_makers_write_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 27, 7))
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91002)
    assert library_versions() == {"nccl": "2.27.7", "cudnn": "9.10.2"}


def test_a_build_without_them_has_no_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    def version() -> tuple[int, ...]:
        raise AttributeError("_nccl_version")

    monkeypatch.setattr(torch.cuda.nccl, "version", version)
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: None)
    assert library_versions() == {"nccl": None, "cudnn": None}
