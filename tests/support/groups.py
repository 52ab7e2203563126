"""Drives real worker groups without Tune: leases trials by hand and collects their events."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import ray

from scalestudy.orchestration.cluster import connection
from scalestudy.orchestration.cluster import nodes as nodes_module
from scalestudy.orchestration.groups.host import GroupHost, GroupResources
from scalestudy.orchestration.groups.model import GroupLimits
from scalestudy.orchestration.study.engine import books_actor

LIMITS = {"trial_seconds": 120.0, "stalled_seconds": 60.0, "failures_per_trial": 2, "trials_per_group": 200}
CONFIG = {"model": "lenet", "model_args": {"init": "xavier"}, "data": "digits", "batch_size": 256}
CONFIG |= {"learning_rate": 0.1, "epochs": 2}


class Desk:
    """A study's worker groups, for a test."""

    def __init__(self, groups: Any, host: GroupHost) -> None:
        self.groups, self.host, self._count = groups, host, 0

    def lease(self, num_workers: int, checkpoints: Path | None = None, **config: Any) -> str:
        """Asks for workers for a trial, which keeps its checkpoints there; returns the trial's id."""
        self._count += 1
        trial_id = f"trial-{self._count}"
        trial = {"trial_id": trial_id, "num_workers": num_workers, "config": {**CONFIG, **config}, "metric_mode": "max",
                 "model_path": None}  # fmt: skip
        if checkpoints:
            trial["checkpoints"] = {"store": str(checkpoints), "every_epochs": 1}
        ray.get(self.groups.lease.remote(trial))
        return trial_id

    def events(
        self, trial_id: str, until: Callable[[dict[str, Any]], bool] = lambda event: event["type"] == "ended"
    ) -> list[dict[str, Any]]:
        """A trial's events up to and with the first one for which `until` holds."""
        seen: list[dict[str, Any]] = []
        while not any(until(event) for event in seen):
            seen.extend(ray.get(self.groups.events.remote(trial_id, len(seen)), timeout=120))
        return seen

    def release(self, trial_id: str) -> None:
        """Gives a trial's workers back."""
        ray.get(self.groups.release.remote(trial_id))

    def look(self) -> dict[str, Any]:
        """The books in plain data."""
        return ray.get(self.groups.snapshot.remote())

    def train(self, num_workers: int, **config: Any) -> dict[str, Any]:
        """Trains a trial to its end and gives the workers back; returns its `ended` event."""
        trial_id = self.lease(num_workers, **config)
        try:
            return self.events(trial_id)[-1]
        finally:
            self.release(trial_id)

    def served_by(self, num_workers: int) -> dict[str, int]:
        """Trials served by each group of one size."""
        return {group: count for group, count in self.served().items() if group.endswith(f"-of-{num_workers}")}

    def served(self) -> dict[str, int]:
        """Trials served by each group that is alive."""
        return {group["group_id"]: group["served"] for group in self.look()["groups"]}


@contextmanager
def worker_groups(folder: Path, *, timeout_seconds: float = 60.0, **limits: Any):
    """Worker groups on the Ray that the test session has started, for a while."""
    nodes = connection.connect(None).nodes
    room = nodes_module.slots(nodes, device="cpu", cpus_per_worker=1, gpus_per_worker=1)
    groups = books_actor().remote(room, GroupLimits(**{**LIMITS, **limits}), exclusive=True, logs=str(folder))
    resources = GroupResources(device="cpu", cpus_per_worker=1, gpus_per_worker=0, timeout_seconds=timeout_seconds)
    host = GroupHost(groups, resources, folder)
    groups.watch.remote()
    host.start()
    try:
        yield Desk(groups, host)
    finally:
        with suppress(ray.exceptions.RayActorError):  # a test has killed them
            assert host.close(20)
            ray.kill(groups)


def losses(ended: dict[str, Any]) -> list[tuple[float, float, float]]:
    """What training has computed, epoch by epoch, to the bit."""
    return [(epoch["train_loss"], epoch["test_loss"], epoch["test_accuracy"]) for epoch in ended["epochs"]]


def wait_until(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Waits for a true answer and returns it."""
    deadline = time.monotonic() + seconds
    while not (answer := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds} s: {condition}")
        time.sleep(0.05)
    return answer
