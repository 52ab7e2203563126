"""A Ray cluster whose nodes go, with notice or without, and are replaced; for drivers that join it by its address."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from tests.support.ports import free_port
from tests.support.ray_heads import drain
from tests.support.raylets import kill
from tests.support.studies import environment


class FailingNodes:
    """A head, which stays, and other raylets of so many CPUs each; at most one of them is away at a time.

    Each has a loopback address of its own, so that drivers join the head. What is due at a later moment is done by
    `tend`, which the main thread calls again and again.
    """

    def __init__(self, count: int, slots: int) -> None:
        self._home = tempfile.mkdtemp(prefix="nodes-")  # short: sockets lie under it
        self._slots = slots
        self._due: list[tuple[float, Callable[[], None]]] = []
        self._free_addresses = [f"127.0.0.{number}" for number in range(250, 10, -1)]
        self._jobs: list[subprocess.Popen[bytes]] = []
        os.environ.update(self.environment())  # the raylets' is this process's
        from ray.cluster_utils import Cluster

        head = {"num_cpus": slots, "include_dashboard": False, "gcs_server_port": free_port()}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self.others: list[Any] = []
        for _ in range(count - 1):
            self._add()

    @property
    def address(self) -> str:
        """Of the head."""
        return str(self._cluster.address)

    def environment(self) -> dict[str, str]:
        """Of a process that joins the cluster."""
        return environment(RAY_TMPDIR=self._home, RAY_AUTH_MODE="disabled")

    def lose(self, node: Any, seconds: float) -> bool:
        """SIGKILL for a raylet, with which its workers go; another comes after so many seconds. Says whether it did."""
        if self._due:
            return False
        self._take(node)
        self._later(seconds, self._add)
        return True

    def drain(self, node: Any, seconds: int) -> bool:
        """A cloud's notice: the node goes after so many seconds, and another comes. Says whether it was given."""
        if self._due:
            return False
        drain(self.address, node.node_id, seconds, **self.environment())
        self._later(seconds, lambda: self._take(node))
        self._later(seconds + 3, self._add)
        return True

    def hold(self, cpus: int, seconds: float) -> None:
        """A job that is no study asks for so many CPUs, and holds them for so long once it has them."""
        quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        job = [sys.executable, "-m", "tests.support.foreign_job", self.address, str(cpus), str(seconds)]
        self._jobs.append(subprocess.Popen(job, env=self.environment(), **quiet))

    def tend(self) -> None:
        """Does what is due by now."""
        while self._due and self._due[0][0] <= time.monotonic():
            _, do = self._due.pop(0)
            do()

    def settle(self) -> None:
        """Ends foreign jobs, and waits until all nodes are there again."""
        for job in self._jobs:
            job.kill()
            job.wait()
        self._jobs = []
        while self._due:
            self.tend()
            time.sleep(0.1)

    def close(self) -> None:
        """Ends the cluster."""
        self.settle()
        self._cluster.shutdown()
        shutil.rmtree(self._home, ignore_errors=True)

    def _add(self) -> None:
        node = self._cluster.add_node(num_cpus=self._slots, node_ip_address=self._free_addresses.pop())
        self.others.append(node)

    def _take(self, node: Any) -> None:
        with suppress(ProcessLookupError):
            kill(node)
        self._cluster.remove_node(node, allow_graceful=False)
        self.others.remove(node)

    def _later(self, seconds: float, do: Callable[[], None]) -> None:
        self._due.append((time.monotonic() + seconds, do))
