"""Ray's trainer for a user's loop: Ray's own PyTorch backend and data sets, in a group of ours.

Importing this module imports torch, which only studies of a user's loop do in their driver and controllers.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any, ClassVar

from ray.train.torch.config import TorchConfig, _TorchBackend
from ray.train.v2._internal.callbacks.datasets import DatasetsCallback

from scalestudy.orchestration.groups.ray_train import LOOPBACK, begin_life, rendezvous
from scalestudy.orchestration.groups.trainer import UNUSED, GroupTrainer
from scalestudy.orchestration.groups.user_loop import POLL_SECONDS


@dataclass
class LoopBackendConfig(TorchConfig):
    """Ray's configuration of PyTorch, for a group of ours."""

    @property
    def backend_cls(self) -> type[_TorchBackend]:
        """The class whose `on_start` Ray Train's controller calls after each start of the workers."""
        return LoopBackend


class LoopBackend(_TorchBackend):
    """Ray's backend for PyTorch, which also names the incarnation of the workers."""

    def on_start(self, worker_group: Any, backend_config: TorchConfig) -> None:
        """Name the incarnation and join the workers. Ray Train calls this once in each life of the workers."""
        address, _ = worker_group.execute_single(0, rendezvous)
        worker_group.execute(name_life, begin_life(), address)
        super().on_start(worker_group, backend_config)

    def on_shutdown(self, worker_group: Any, backend_config: TorchConfig) -> None:
        """Leave the process groups to the end of their processes: destroying them could wait for a dead peer."""


def name_life(incarnation: str, address: str) -> None:
    """Note the incarnation; runs on every worker. In a cluster on the loopback interface alone, gloo uses it too."""
    begin_life(incarnation)
    if address in LOOPBACK and sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


class LoopTrainer(GroupTrainer):
    """A group's trainer whose workers call a user's loop, with Ray's data sets if there are some."""

    variables: ClassVar = {"RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": str(POLL_SECONDS)}

    @property
    def unused(self) -> tuple[type, ...]:
        """See `GroupTrainer`."""
        return tuple(each for each in UNUSED if not self.datasets or each is not DatasetsCallback)
