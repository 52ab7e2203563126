"""A hook that asks the driver of a training's GPUs for their state, after the steps of each period."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch

from scalestudy.training.backend import machine
from scalestudy.training.device import gpu_of
from scalestudy.training.distributed import gather_texts
from scalestudy.training.gpu_state import GpuState, others_on, read_gpu
from scalestudy.training.loop.hooks import Hook
from scalestudy.training.loop.trial import Trial

SAMPLE_SECONDS = 1.0
"""The longest stretch, before its time stamp, that NVML's sample of a process covers."""


class GpuWatch(Hook):
    """The state of each rank's GPU, before the evaluation changes it. For all ranks of a group, or for none."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """Take the clock: seconds, as NVML's time stamps count them."""
        self.states: tuple[GpuState, ...] = ()  # by rank, equal on all ranks; a rank on a CPU has none
        self._clock, self._since = clock, clock()

    def train_starts(self, trial: Trial) -> None:
        """Count no process that computed before, such as a group that has just ended a trial."""
        self._since = self._clock() + SAMPLE_SECONDS

    def epoch_measured(self, trial: Trial) -> Mapping[str, float | None]:
        """Ask, and gather the answers of all ranks."""
        worker, mine = trial.worker, None
        if worker.device.type == "cuda":
            gpu = gpu_of(worker.device)
            state = read_gpu(worker.rank, gpu, library_versions(), since=self._since)
            mine = {"gpu": sorted(gpu.names(machine())), "state": state.to_plain()}
            self._since = max(self._since, self._clock())
        told = [json.loads(text) for text in gather_texts(json.dumps(mine), worker)]
        on_gpu = [each for each in told if each is not None]
        earlier = {state.rank: state for state in self.states}
        found = []
        for each in on_gpu:
            state = GpuState.from_plain(each["state"])
            workers = sum(not set(each["gpu"]).isdisjoint(other["gpu"]) for other in on_gpu)
            state = replace(state, others=others_on(state.processes, workers))
            found.append(state.after(earlier.get(state.rank, state)))
        self.states = tuple(found)
        return {}


def library_versions() -> dict[str, str | None]:
    """Return the versions of the libraries that PyTorch calls on a GPU."""
    try:
        nccl = ".".join(map(str, torch.cuda.nccl.version()[:3]))
    except (AttributeError, RuntimeError):  # a build without NCCL
        nccl = None
    number = torch.backends.cudnn.version()  # 91002 is 9.10.2
    cudnn = None if number is None else f"{number // 10_000}.{number // 100 % 100}.{number % 100}"
    return {"nccl": nccl, "cudnn": cudnn}
