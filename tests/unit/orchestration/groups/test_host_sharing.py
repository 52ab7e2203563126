"""How studies that share a cluster show what they wait for, in miniature.

Placement groups are placed as Ray places them, and each study has its pool and host.

The pool and the host run unmodified. At the border are Ray's calls, which act on a `ModelCluster`, and the workers: a
group whose placement group has room trains its trial for some beats.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from scalestudy.orchestration.cluster.nodes import ClusterNode
from scalestudy.orchestration.cluster.sharing import WANTED as WISH
from scalestudy.orchestration.cluster.sharing import Reservation
from scalestudy.orchestration.groups import host
from scalestudy.orchestration.groups.clock import PoolClock
from scalestudy.orchestration.groups.events import Member, TrainingEnded
from scalestudy.orchestration.groups.host import GroupHost, GroupResources
from scalestudy.orchestration.groups.model import Group, GroupLimits, GroupStart, Turn
from scalestudy.orchestration.groups.pool import GroupPool, PoolSettings
from tests.support.fake_ray_train import FakeClock
from tests.support.pool_study import order_of

RESOURCES = GroupResources(device="cpu", cpus_per_worker=1, gpus_per_worker=0, timeout_seconds=1.0)


@dataclass(kw_only=True)
class ModelGroup:
    """A placement group of so many CPUs. nodes: where each must be; None: by the strategy. held: {} while it waits."""

    cpus: int
    strategy: str
    name: str
    job: int
    memory: float | None = None
    nodes: Sequence[str] | None = None
    held: dict[str, int] = field(default_factory=dict)


class ModelCluster:
    """Nodes with CPUs, and placement groups, oldest first. A group gets all of its room at once, or waits."""

    def __init__(self, cpus: Mapping[str, int]) -> None:
        self.cpus, self.groups, self._made = dict(cpus), dict[str, ModelGroup](), 0

    def add(self, group: ModelGroup) -> str:
        """Returns the new group's id."""
        self._made += 1
        key = f"{self._made:08x}"
        self.groups[key] = group
        self.place()
        return key

    def remove(self, key: str) -> None:
        """Gives a group's room to those that wait."""
        self.groups.pop(key, None)
        self.place()

    def remove_tagged(self, tag: int) -> None:
        """Removes the group whose bundles ask for so many bytes."""
        for key in [key for key, group in self.groups.items() if group.memory == tag]:
            self.remove(key)

    def free(self) -> dict[str, int]:
        """CPUs that nobody holds, by node."""
        return {
            node: count - sum(group.held.get(node, 0) for group in self.groups.values())
            for node, count in self.cpus.items()
        }

    def place(self) -> None:
        """What Ray does all the time: a group that waits gets its room if that is there."""
        for group in [group for group in self.groups.values() if not group.held]:
            free, held = self.free(), dict[str, int]()
            if group.nodes is not None:
                held = {node: group.nodes.count(node) for node in group.nodes}
            elif group.strategy == "STRICT_PACK":
                held = next(({node: group.cpus} for node in free if free[node] >= group.cpus), {})
            else:  # PACK: on few nodes if that is possible, on many if it is not
                left = group.cpus
                for node in sorted(free, key=lambda name: -free[name]):
                    if count := min(free[node], left):
                        held[node], left = count, left - count
                held = {} if left else held
            if all(free[node] >= count for node, count in held.items()):
                group.held = held

    def reservations(self) -> list[Reservation]:
        """As `sharing.reservations`."""
        return [
            Reservation(
                key=key,
                name=group.name,
                job=group.job,
                memory=group.memory,
                waits=not group.held,
                held={node: {"CPU": float(count)} for node, count in group.held.items()},
            )
            for key, group in self.groups.items()
        ]


@dataclass
class SharingStudy:
    """One study: a real pool and host, and trials that wait from the start. job: its number; the lower the older."""

    cluster: ModelCluster
    job: int
    sizes: Sequence[int]
    clock: FakeClock
    exclusive: bool = False
    train_beats: int = 20
    ended: list[str] = field(default_factory=list)
    training: dict[str, int] = field(default_factory=dict)  # group → beats left

    def __post_init__(self) -> None:
        limits = GroupLimits(trial_seconds=1e6, stalled_seconds=1e6, failures_per_trial=2, trials_per_group=200)
        hands = SimpleNamespace(kill=lambda actor: None, remove_workers=self.cluster.remove_tagged)
        clock = PoolClock(wall=self.clock, monotonic=self.clock)
        self.pool = GroupPool([], PoolSettings(limits=limits, exclusive=self.exclusive), hands, clock)
        self.said: list[str] = []
        self.host = GroupHost(self._handle(), RESOURCES, Path("/nowhere"), say=self.said.append)
        for number, size in enumerate(self.sizes):
            self.pool.request(order_of(f"t{number}", size))

    def _handle(self) -> Any:
        """The pool as an actor's handle: after each call it does what has become possible."""

        def call(name: str) -> Any:
            def remote(*arguments: Any) -> Any:
                answer = getattr(self.pool, name)(*arguments)
                self.pool.reconcile()
                return answer

            return SimpleNamespace(remote=remote)

        return SimpleNamespace(set_nodes=call("set_nodes"), share=call("share"))

    def beat(self) -> None:
        """A second of the study: its host tells the pool of the cluster, orders are carried out, workers train.

        It is over, with all of its groups, when all of its trials have ended.
        """
        if len(self.ended) == len(self.sizes):
            self.host._wish.drop()
            for group in self.pool.groups.values():
                self.cluster.remove_tagged(group.tag)
            return
        self.host._tell_room()
        if self.pool.enforce_limits():
            self.pool.reconcile()
        for start in self._orders():
            self.cluster.add(
                ModelGroup(
                    cpus=start.num_workers,
                    strategy="PACK",
                    name="",
                    job=self.job,
                    memory=float(start.tag),
                    nodes=start.nodes,
                )
            )
        for group in list(self.pool.groups.values()):
            self._work(group)
        self.pool.reconcile()

    def _orders(self) -> list[GroupStart]:
        """As `GroupHost._watch_orders` takes them."""
        starts, self.pool.starts = self.pool.starts, []
        for start in starts:
            self.host._tags[start.tag] = start.group_id
            self.host._wish.drop()
        return starts

    def _work(self, group: Group) -> None:
        placed = any(each.memory == group.tag and each.held for each in self.cluster.groups.values())
        if group.state == "starting" and placed:
            for rank, node in enumerate(node for node, count in group.slots.items() for _ in range(count)):
                member = Member(rank=rank, node=node, host=node, pid=1, cores=8, device="cpu", threads=1)
                self.pool.register(group.group_id, "life", member, None)
        elif group.state == "stopping" and group.assignment is None:
            self.cluster.remove_tagged(group.tag)
            self.pool.group_closed(group.group_id, None, "worker_lost")
        elif group.assignment is not None:
            left = self.training[group.group_id] = self.training.get(group.group_id, self.train_beats) - 1
            if left <= 0:
                del self.training[group.group_id]
                self.ended.append(group.trial_id)
                turn = Turn(group_id=group.group_id, incarnation="life", sequence=group.assignment.sequence)
                trial_id = group.trial_id
                self.pool.report(turn, 0, TrainingEnded(status="finished", score=0.5, lost_seconds=0.0, message=None))
                self.pool.release(trial_id)


class SharedCluster:
    """Ray's calls, answered by a model; and the studies on it, each beaten once a second."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **cpus: int) -> None:
        self.model, self.clock, self.studies = ModelCluster(cpus), FakeClock(), list[SharingStudy]()
        self._job = 0
        nodes = tuple(ClusterNode(node_id=node, host=node, cpus=count, gpus=0) for node, count in cpus.items())
        context = SimpleNamespace(get_job_id=lambda: self._job)
        monkeypatch.setattr(host.time, "monotonic", self.clock)
        monkeypatch.setattr(host.clusters, "alive_nodes", lambda: nodes)
        monkeypatch.setattr(host.sharing, "reservations", self.model.reservations)
        monkeypatch.setattr(
            host.ray_private,
            "available_per_node",
            lambda: {node: {"CPU": float(count)} for node, count in self.model.free().items()},
        )
        monkeypatch.setattr(host.ray_private, "job_number", lambda job: job)
        monkeypatch.setattr(ray, "get", lambda answer: answer)
        monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
        monkeypatch.setattr(ray.util, "placement_group", self._placement_group)
        monkeypatch.setattr(ray.util, "remove_placement_group", lambda group: self.model.remove(group.id.hex()))

    def _placement_group(self, bundles: Sequence[Mapping[str, float]], strategy: str, name: str) -> Any:
        key = self.model.add(ModelGroup(cpus=len(bundles), strategy=strategy, name=name, job=self._job))
        return SimpleNamespace(id=SimpleNamespace(hex=lambda: key))

    def study(self, *sizes: int, **settings: Any) -> SharingStudy:
        """Another study, younger than those before, with trials of these sizes."""
        study = SharingStudy(self.model, len(self.studies) + 1, sizes, self.clock, **settings)
        self.studies.append(study)
        return study

    def other(self, **cpus: int) -> str:
        """A job that is no study holds so many CPUs; returns its placement group's id."""
        nodes = [node for node, count in cpus.items() for _ in range(count)]
        return self.model.add(ModelGroup(cpus=len(nodes), strategy="PACK", name="", job=99, nodes=nodes))

    def beats(self, number: int) -> None:
        """So many seconds pass."""
        for _ in range(number):
            self.clock.now += 1
            for study in self.studies:
                self._job = study.job
                study.beat()


# --- several studies, each with its wish for room --------------------------------------------------------------------


def wishes(cluster):
    """The jobs whose wish has room."""
    return [group.job for group in cluster.model.groups.values() if group.name == WISH and group.held]


@pytest.mark.parametrize("number", [2, 3, 4])
def test_many_trials_of_several_studies_all_end(monkeypatch, number):
    cluster = SharedCluster(monkeypatch, a=2, b=2, c=2)
    job = cluster.other(a=1, b=1, c=1)
    studies = [cluster.study(3, 1, 3, 2, 3) for _ in range(number)]
    cluster.beats(30)
    cluster.model.remove(job)
    cluster.beats(100 * number)
    assert [len(study.ended) for study in studies] == [5] * number


def test_a_wish_that_is_of_no_use_leaves_its_room_to_others(monkeypatch):
    """The first study may not train beside its own trial, where Ray gives its wish room; the other one may."""
    cluster = SharedCluster(monkeypatch, a=4, b=2)
    cluster.other(b=2)
    first = cluster.study(2, 2, exclusive=True, train_beats=1000)
    cluster.beats(20)
    second = cluster.study(2)
    cluster.beats(60)
    assert (first.ended, second.ended) == ([], ["t0"])


def test_a_wish_of_no_use_is_shown_again_and_again(monkeypatch):
    cluster = SharedCluster(monkeypatch, a=4, b=2)
    cluster.other(b=2)
    cluster.study(2, 2, exclusive=True, train_beats=1000)
    holds = []
    for _ in range(120):
        cluster.beats(1)
        holds.append(bool(wishes(cluster)))
    assert 0.1 < sum(holds) / 120 < 0.4, holds


def test_a_wish_that_waits_stays_and_one_whose_room_is_used_is_dropped(monkeypatch):
    cluster = SharedCluster(monkeypatch, a=4)
    job = cluster.other(a=2)
    study = cluster.study(3)
    cluster.beats(60)
    waiting = [group for group in cluster.model.groups.values() if group.name == WISH]
    assert [group.held for group in waiting] == [{}]
    cluster.model.remove(job)
    cluster.beats(40)
    assert study.ended == ["t0"]
    assert study.said[0].startswith("waiting for room for 3 workers (10 s): other work on the cluster holds")
    assert not any(group.name == WISH for group in cluster.model.groups.values())
