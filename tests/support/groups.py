"""Drives a real pool without Tune: requests workers for trials by hand and collects their events."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import ray

from scalestudy.orchestration.cluster import connection
from scalestudy.orchestration.cluster import nodes as nodes_module
from scalestudy.orchestration.groups.events import Ended, JournalEvent, Retried
from scalestudy.orchestration.groups.host import GroupHost, GroupResources, LoopGroups
from scalestudy.orchestration.groups.model import GroupLimits, TrialOrder
from scalestudy.orchestration.groups.pool import PoolSettings
from scalestudy.orchestration.study.engine import pool_actor
from scalestudy.training.config import TrainConfig

LIMITS = {"trial_seconds": 120.0, "stalled_seconds": 60.0, "failures_per_trial": 2, "trials_per_group": 200}
CONFIG = {"data": "digits", "batch_size": 256, "learning_rate": 0.1, "epochs": 2}


class Pool:
    """A study's pool, for a test."""

    def __init__(self, actor: Any, host: GroupHost) -> None:
        self.actor, self.host, self._count = actor, host, 0
        self._orders: dict[str, TrialOrder] = {}
        self._leases: dict[str, int] = {}

    def request(
        self, num_workers: int, checkpoints: Path | None = None, stop_at: float | None = None, **config: Any
    ) -> str:
        """Asks for workers for a trial, which keeps its checkpoints there; returns the trial's id."""
        self._count += 1
        trial_id = f"trial-{self._count}"
        model = {} if "loop" in config else {"model": "mlp"}
        self._orders[trial_id] = TrialOrder(
            trial_id=trial_id,
            num_workers=num_workers,
            config=TrainConfig.from_dict({**CONFIG, **model, **config}),
            checkpoints=str(checkpoints) if checkpoints else None,
            stop_at=stop_at,
        )
        self.follow_anew(trial_id)
        return trial_id

    def follow_anew(self, trial_id: str) -> None:
        """Asks for a trial's workers again, as another Tune process does that takes the place of a lost one."""
        self._leases[trial_id] = ray.get(self.actor.request.remote(self._orders[trial_id]))

    def events(
        self, trial_id: str, until: Callable[[JournalEvent], bool] = lambda event: isinstance(event, Ended)
    ) -> list[JournalEvent]:
        """A trial's events up to and with the first one for which `until` holds. What is put off is asked for again."""
        seen: list[JournalEvent] = []
        while not any(until(event) for event in seen):
            lease = self._leases[trial_id]
            seen.extend(ray.get(self.actor.events.remote(trial_id, lease, len(seen)), timeout=120))
            if seen and isinstance(seen[-1], Retried) and not ray.get(self.actor.follows.remote(trial_id, lease)):
                self.follow_anew(trial_id)
        return seen

    def end_of(self, trial_id: str) -> Ended:
        """Waits for a trial's end and gives its workers back."""
        try:
            ended = self.events(trial_id)[-1]
            assert isinstance(ended, Ended)
            return ended
        finally:
            self.release(trial_id)

    def release(self, trial_id: str) -> None:
        """Gives a trial's workers back."""
        ray.get(self.actor.release.remote(trial_id))

    @property
    def pid(self) -> int:
        """The process of the pool's actor."""
        return ray.get(self.actor.__ray_call__.remote(lambda _: os.getpid()))

    def look(self) -> dict[str, Any]:
        """The pool as it is now: its groups, the workers that each node holds, and the trials that wait."""

        def seen(actor: Any) -> dict[str, Any]:
            pool = actor._pool
            return {
                "groups": [
                    {"group_id": group.group_id, "served": group.served, "nodes": dict(group.slots)}
                    for group in pool.groups.values()
                ],
                "room": {node.node_id: node.slots for node in pool.nodes},
                "waiting": list(pool.waiting),
            }

        return ray.get(self.actor.__ray_call__.remote(seen))

    def train(self, num_workers: int, **config: Any) -> Ended:
        """Trains a trial to its end and gives the workers back."""
        return self.end_of(self.request(num_workers, **config))

    def served_by(self, num_workers: int) -> dict[str, int]:
        """Trials served by each group of one size."""
        return {group: count for group, count in self.served().items() if group.endswith(f"-of-{num_workers}")}

    def served(self) -> dict[str, int]:
        """Trials served by each group that is alive."""
        return {group["group_id"]: group["served"] for group in self.look()["groups"]}


@contextmanager
def group_pool(folder: Path, *, timeout_seconds: float = 60.0, loop: LoopGroups | None = None, **limits: Any):
    """A pool on the Ray that the test session has started, for a while. loop: for trials of a user's, side by side."""
    nodes = connection.connect(None).nodes
    room = nodes_module.slots(nodes, device="cpu", cpus_per_worker=1, gpus_per_worker=1)
    settings = PoolSettings(limits=GroupLimits(**{**LIMITS, **limits}), exclusive=loop is None, logs=str(folder))
    actor = pool_actor().remote(room, settings)
    resources = GroupResources(device="cpu", cpus_per_worker=1, gpus_per_worker=0, timeout_seconds=timeout_seconds)
    host = GroupHost(actor, resources, folder, loop=loop)
    actor.watch.remote()
    host.start()
    try:
        yield Pool(actor, host)
    finally:
        with suppress(ray.exceptions.RayActorError):  # a test has killed it
            assert host.close(20)
            ray.kill(actor)


def losses(ended: Ended) -> list[tuple[float, float, float]]:
    """What training has computed, epoch by epoch, to the bit."""
    return [(epoch.train_loss, epoch.test_loss, epoch.test_metric) for epoch in ended.epochs]


def wait_until(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Waits for a true answer and returns it."""
    deadline = time.monotonic() + seconds
    while not (answer := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds} s: {condition}")
        time.sleep(0.05)
    return answer
