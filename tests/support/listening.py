"""Which TCP ports processes listen on, as the kernel says."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from pathlib import Path

LISTEN = "0A"


def listening(pids: set[int]) -> dict[tuple[str, int], int]:
    """The process of each (address, port) that one of these processes listens on."""
    owners = {}
    for pid in pids:
        for inode in _sockets_of(pid):
            owners[inode] = pid
    found = {}
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTEN and fields[9] in owners:
                address, port = fields[1].split(":")
                found[_address(address, family), int(port, 16)] = owners[fields[9]]
    return found


def family_of(pid: int) -> set[int]:
    """A process and all that come from it, by their parents."""
    parents = {int(path.name): _parent(path) for path in Path("/proc").iterdir() if path.name.isdigit()}
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def _sockets_of(pid: int) -> list[str]:
    links = []
    with suppress(OSError):  # it has ended, or the file was closed
        links.extend(str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir())
    return [link.removeprefix("socket:[").rstrip("]") for link in links if link.startswith("socket:[")]


def _parent(process: Path) -> int:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _address(text: str, family: socket.AddressFamily) -> str:
    """The kernel writes words of four bytes in the machine's order."""
    words = [struct.pack("=I", int(text[start : start + 8], 16)) for start in range(0, len(text), 8)]
    return socket.inet_ntop(family, b"".join(words))
