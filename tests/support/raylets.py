"""A Ray cluster of several raylets on this machine, as nodes; for programs that connect to no other Ray.

Their workers are forks.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

from tests.support.preloaded import preloaded_workers


@contextmanager
def raylets(slots: int, others: Sequence[dict[str, str]]) -> Iterator[list[Any]]:
    """A head and more nodes of so many CPUs each, and this process connected to them; yields the others.

    others: for each, what is added to its processes' environment.
    """
    home = tempfile.mkdtemp(prefix="raylets-")  # short: sockets lie under it
    os.environ["RAY_TMPDIR"] = home
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    with preloaded_workers() as python:
        try:
            with mock.patch.object(sys, "executable", python):
                cluster.add_node(num_cpus=slots, include_dashboard=False)
                added = [cluster.add_node(num_cpus=slots, env_vars=variables) for variables in others]
            ray.init(address=cluster.address, namespace="raylets", log_to_driver=False)
            yield added
        finally:
            ray.shutdown()
            cluster.shutdown()
            shutil.rmtree(home, ignore_errors=True)


def kill(node: Any) -> None:
    """SIGKILL for a node's raylet, with which its workers go."""
    os.kill(node.all_processes["raylet"][0].process.pid, signal.SIGKILL)
