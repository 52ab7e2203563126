"""Processes of this machine, by Linux's /proc: who is alive, and whose child it is."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def is_alive(pid: int) -> bool:
    """Whether the process is there and not only waits for its parent to take note of its end."""
    return _fact(pid, "State")[:1] not in ("", "Z", "X")


def is_asleep(pid: int) -> bool:
    """Whether the process's main thread waits for something, such as what is typed."""
    return _fact(pid, "State")[:1] == "S"


def parent_of(pid: int) -> int:
    return int(_fact(pid, "PPid"))


def children_of(pid: int) -> list[int]:
    return [child for child in _numbers() if _fact(child, "PPid") == str(pid)]


def title_of(pid: int) -> str:
    """The command line, which Ray's workers change to what they are."""
    try:
        return (Path("/proc") / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        return ""


def family_of(pid: int) -> list[int]:
    """A process and all that come from it, by their parents."""
    parents = {child: _fact(child, "PPid") for child in _numbers()}
    found = edge = [pid]
    while edge:
        edge = [child for child, parent in parents.items() if parent in map(str, edge)]
        found = found + edge
    return found


def named(pid: int, text: str) -> list[int]:
    """The processes below one in whose command line a text stands, such as ray::GroupPoolActor."""
    return [child for child in family_of(pid)[1:] if text in title_of(child)]


def mentioning(text: str) -> list[int]:
    """The living processes of the machine in whose command line or environment a text stands; not this one."""
    found = []
    for pid in _numbers():
        with suppress(OSError):
            environment = (Path("/proc") / str(pid) / "environ").read_bytes()
            if pid != os.getpid() and is_alive(pid) and (text in title_of(pid) or text.encode() in environment):
                found.append(pid)
    return found


def _numbers() -> list[int]:
    return [int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdigit()]


def _fact(pid: int, name: str) -> str:
    try:
        lines = (Path("/proc") / str(pid) / "status").read_text("utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(f"{name}:")), "")
