"""Stage 4, worker groups: whether the kernel has killed a worker for want of memory, by the count that it keeps.

A killed process says nothing. But Linux counts such kills a control group, and lists the count in one file of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

CGROUPS = Path("/sys/fs/cgroup")
WHOLE_MACHINE = Path("/proc/vmstat")
ANSWER_SECONDS = 20.0
WORDS = "the kernel killed the worker for want of memory (its control group's count of such kills rose)"

Counted = Mapping[str, Any]
"""A worker's node, the file that holds its count, and the count: node, file, kills."""


def kills_so_far(node: str) -> dict[str, Any] | None:
    """This process's count; None where the system keeps none. node: the one that it runs on."""
    for file in _files(Path("/proc/self/cgroup")):
        if (kills := kills_in(file)) is not None:
            return {"node": node, "file": str(file), "kills": kills}
    return None


def _files(memberships: Path) -> list[Path]:
    """Where the count may stand, the closest first: of version 2, of version 1, of the container, of the machine.

    memberships: lines `number:controllers:path`.
    """
    try:
        lines = [line.split(":", 2) for line in memberships.read_text("utf-8").splitlines()]
    except OSError:
        return []
    found = [CGROUPS / path.strip("/") / "memory.events" for _, controllers, path in lines if not controllers]
    found += [
        CGROUPS / "memory" / path.strip("/") / "memory.oom_control"
        for _, controllers, path in lines
        if "memory" in controllers.split(",")
    ]
    return [*found, CGROUPS / "memory.events", CGROUPS / "memory" / "memory.oom_control", WHOLE_MACHINE]


def kills_in(file: Path) -> int | None:
    """The count in one of the system's files, which all have a line `oom_kill 3`; None: it can't be had."""
    try:
        facts = dict(line.split(maxsplit=1) for line in file.read_text("utf-8").splitlines() if " " in line)
        return int(facts["oom_kill"])
    except (OSError, KeyError, ValueError):
        return None


def killed_by_kernel(counts: Mapping[int, Counted], here: str) -> dict[int, str]:
    """Of dead workers those whose count has risen since, by rank, in words.

    counts: by rank, as `kills_so_far` gave them when the trial began. here: this process's node; another is asked by a
    task. A node that does not answer gives no evidence.
    """
    return {rank: WORDS for rank, count in counts.items() if (_now(count, here) or 0) > count["kills"]}


def _now(count: Counted, here: str) -> int | None:
    if count["node"] == here:
        return kills_in(Path(count["file"]))
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    there = NodeAffinitySchedulingStrategy(count["node"], soft=False)
    ask = ray.remote(kills_in).options(num_cpus=0, max_retries=0, scheduling_strategy=there)
    try:
        kills: int | None = ray.get(ask.remote(Path(count["file"])), timeout=ANSWER_SECONDS)
    except ray.exceptions.RayError:
        return None
    return kills
