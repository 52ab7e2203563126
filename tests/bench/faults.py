"""Faults that strike a running study, and the schedule by which they do: decided by a seed alone.

A fault is a function of the target and of a choice in [0, 1). It harms the study and says what it did, or gives None
when there is nothing to harm yet; it is then tried again.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scalestudy.experiments.study.folder import StudyFolder
from tests.bench.chaos_models import ORDER
from tests.bench.failing_nodes import FailingNodes
from tests.support.faulty_proxy import Gateway
from tests.support.processes import named
from tests.support.tracking_server import TrackingServer

WORKER = "ray::RayTrainWorker"
FOLLOWER = "ray::ImplicitFunc"
"""Title of Tune's process that follows a trial."""


@dataclass(frozen=True, kw_only=True)
class Strike:
    """kind: of the fault. after: share of the study's epochs that are recorded when it comes. choice: in [0, 1)."""

    kind: str
    after: float
    choice: float


def plan_strikes(seed: int, count: int, kinds: Sequence[str]) -> list[Strike]:
    """So many strikes in their order, every kind as often as any other, give or take one."""
    generator = random.Random(seed)
    drawn: list[str] = []
    while len(drawn) < count:
        drawn.extend(generator.sample(list(kinds), len(kinds)))
    times = sorted(generator.uniform(0.02, 0.92) for _ in range(count))
    return [
        Strike(kind=kind, after=after, choice=generator.random()) for kind, after in zip(drawn, times, strict=False)
    ]


@dataclass
class Target:
    """A running study, as faults see it.

    driver: its process. orders: where its model looks for orders to raise. gateway: before its tracking server.
    nodes: the cluster that it has joined; None: it has a Ray of its own.
    """

    driver: int
    folder: StudyFolder
    orders: Path
    server: TrackingServer
    gateway: Gateway
    nodes: FailingNodes | None = None
    frozen: list[int] = field(default_factory=list)
    timers: list[threading.Timer] = field(default_factory=list)

    def processes(self, title: str) -> list[int]:
        """The study's processes of Ray with such a title."""
        return sorted(named(os.getpid() if self.nodes else self.driver, title))

    def workers(self) -> list[int]:
        """The processes that train, or wait for a trial."""
        return self.processes(WORKER)


Fault = Callable[[Target, float], str | None]


def pick(options: Sequence[int], choice: float) -> int:
    """The option that a number in [0, 1) means."""
    return options[int(choice * len(options))]


def kill_worker(target: Target, choice: float) -> str | None:
    """SIGKILL to one worker."""
    workers = target.workers()
    if not workers:
        return None
    os.kill(victim := pick(workers, choice), signal.SIGKILL)
    return f"killed worker {victim}, one of {len(workers)}"


def freeze_worker(target: Target, choice: float) -> str | None:
    """SIGSTOP to one worker, by which it holds its connections and says nothing more."""
    workers = target.workers()
    if not workers:
        return None
    os.kill(victim := pick(workers, choice), signal.SIGSTOP)
    target.frozen.append(victim)
    return f"froze worker {victim}, one of {len(workers)}"


def raise_on_one_rank(target: Target, choice: float) -> str | None:
    """The user's model raises on the rank that comes first."""
    (target.orders / ORDER).touch()
    return "ordered an exception"


def kill_driver(target: Target, choice: float) -> str | None:
    """SIGKILL to the process that runs the study; whoever watches it resumes it."""
    if not target.workers():  # it has hardly begun
        return None
    os.kill(target.driver, signal.SIGKILL)
    return f"killed the driver {target.driver}"


def stop_driver(target: Target, choice: float, *, least_seconds: float = 15.0) -> str | None:
    """The driver and Tune's processes stand still, longer than the study's limit for a stalled trial, and go on.

    Workers, the pool and Ray go on meanwhile, as on a cluster whose head is overloaded. least_seconds: for so long.
    """
    followers = target.processes(FOLLOWER)
    if not target.workers() or not followers:
        return None
    stopped = [target.driver, *followers]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    seconds = least_seconds + 5 * choice
    _later(target, seconds, lambda: _continue(stopped))
    return f"stopped the driver and {len(followers)} processes of Tune for {seconds:.0f} s"


def _continue(pids: Sequence[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def _later(target: Target, seconds: float, act: Callable[[], None]) -> None:
    timer = threading.Timer(seconds, act)
    timer.start()
    target.timers.append(timer)


def tracking_down(target: Target, choice: float) -> str | None:
    """The tracking server goes away for some seconds."""
    if not target.server.stop():
        return None
    seconds = 2 + 6 * choice
    _later(target, seconds, target.server.start)
    return f"stopped the tracking server for {seconds:.0f} s"


def lose_answers(target: Target, choice: float) -> str | None:
    """What the tracking server was told is committed, and answered with 503 by the gateway before it."""
    target.gateway.lose(count := 1 + int(5 * choice))
    return f"lost {count} of the tracking server's answers"


def lose_node(target: Target, choice: float) -> str | None:
    """SIGKILL for a raylet, as for a machine that dies; another comes some seconds later."""
    node = _node(target, choice)
    if node is None or not target.nodes or not target.nodes.lose(node, seconds=3 + 5 * choice):
        return None
    return f"lost the node {node.node_id[:8]}"


def drain_node(target: Target, choice: float) -> str | None:
    """A notice that a node will go, as of a spot machine; it does, and another comes."""
    node, seconds = _node(target, choice), 10 + int(10 * choice)
    if node is None or not target.nodes or not target.nodes.drain(node, seconds):
        return None
    return f"told that the node {node.node_id[:8]} goes in {seconds} s"


def _node(target: Target, choice: float) -> Any:
    """One that is not the head; None: there is no such thing, or nobody trains yet."""
    others = target.nodes.others if target.nodes and target.workers() else []
    return others[int(choice * len(others))] if others else None


def foreign_job(target: Target, choice: float) -> str | None:
    """A job that is no study asks for one or two CPUs of the cluster."""
    if not target.nodes:
        return None
    cpus, seconds = 1 + int(2 * choice), 5 + 10 * choice
    target.nodes.hold(cpus, seconds)
    return f"began a job that wants {cpus} CPUs for {seconds:.0f} s"


def corrupt_checkpoint(target: Target, choice: float) -> str | None:
    """Flips a byte of the newest checkpoint, then kills a worker, so that somebody reads it."""
    folders = target.folder.path.glob("checkpoints/*/*/*")
    try:
        newest = max((file for file in folders if file.is_file()), key=lambda file: file.stat().st_mtime_ns)
        flip_byte(newest, choice)
    except (ValueError, FileNotFoundError):
        return None  # there is none, or it was replaced just now
    killed = kill_worker(target, choice)
    return killed and f"flipped a byte of {newest.parent.name}/{newest.name}; {killed}"


def flip_byte(file: Path, choice: float) -> None:
    """Changes one byte in place. Raises ValueError for an empty file."""
    with file.open("r+b") as stream:
        size = stream.seek(0, os.SEEK_END)
        if not size:
            raise ValueError(f"{file} is empty")
        stream.seek(int(choice * size))
        byte = stream.read(1)[0]
        stream.seek(int(choice * size))
        stream.write(bytes([byte ^ 0xFF]))


FAULTS: dict[str, Fault] = {
    "kill worker": kill_worker,
    "freeze worker": freeze_worker,
    "exception": raise_on_one_rank,
    "kill driver": kill_driver,
    "stop driver": stop_driver,
    "tracking down": tracking_down,
    "lost answers": lose_answers,
    "corrupt checkpoint": corrupt_checkpoint,
}
NODE_FAULTS: dict[str, Fault] = {"lose node": lose_node, "drain node": drain_node, "foreign job": foreign_job}
"""Of a study that has joined a cluster."""
