"""A cluster that a study starts for itself: how its ports are seen, and that its patience is its own.

`test_worker_groups.py` looks at its ports while it has workers.
"""

import os
import socket
import struct
import threading
from contextlib import ExitStack, suppress
from pathlib import Path

from scalestudy.orchestration.cluster.connection import PATIENCE

LOOPBACK = {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
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


def _sockets_of(pid: int) -> list[str]:
    links = []
    with suppress(OSError):  # the process has ended
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):  # this file alone was closed meanwhile
                links.append(str(entry.readlink()))
    return [link.removeprefix("socket:[").rstrip("]") for link in links if link.startswith("socket:[")]


def _address(text: str, family: socket.AddressFamily) -> str:
    """The kernel writes words of four bytes in the machine's order."""
    words = [struct.pack("=I", int(text[start : start + 8], 16)) for start in range(0, len(text), 8)]
    return socket.inet_ntop(family, b"".join(words))


def test_a_port_that_is_open_to_others_is_seen():
    with socket.create_server(("0.0.0.0", 0)) as server, socket.create_server(("::", 0), family=socket.AF_INET6) as six:
        places = listening({os.getpid()})
        assert ("0.0.0.0", server.getsockname()[1]) in places
        assert ("::", six.getsockname()[1]) in places


def test_a_port_is_seen_while_other_files_of_the_process_come_and_go():
    stop = threading.Event()

    def churn():
        while not stop.is_set():
            with ExitStack() as files:
                for _ in range(50):
                    files.enter_context(Path("/proc/self/stat").open())

    other = threading.Thread(target=churn)
    other.start()
    try:
        with socket.create_server(("0.0.0.0", 0)) as server:
            assert all(("0.0.0.0", server.getsockname()[1]) in listening({os.getpid()}) for _ in range(20))
    finally:
        stop.set()
        other.join()


def test_a_program_that_this_process_starts_does_not_inherit_the_patience(ray_session):
    """With it, `scalestudy run --address` waits minutes for a cluster that refuses its token."""
    assert ray_session.started_here
    assert PATIENCE.keys().isdisjoint(os.environ)
