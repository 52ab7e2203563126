"""Heads of Ray that `ray start` begins on this machine, for studies that join them from processes of their own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.groups import wait_until
from tests.support.processes import mentioning
from tests.support.studies import environment

RAY = Path(sys.executable).parent / "ray"
AUTOSCALED_PORT = 6379  # Ray's fake provider of nodes joins them to this one, whatever the head's port is


@contextmanager
def head(
    cpus: int, port: int, *arguments: str, python: str = sys.executable, **variables: str
) -> Iterator[dict[str, str]]:
    """A cluster of one node; yields the environment of processes that join it.

    python: starts its workers. `ray stop` would end every Ray of the machine, so its processes are ended one by one.
    """
    home = tempfile.mkdtemp(prefix="head-")  # short: sockets lie under it
    joined = environment(RAY_TMPDIR=home, RAY_AUTH_MODE="disabled")
    options = ["--head", f"--port={port}", f"--num-cpus={cpus}", "--include-dashboard=false", *arguments]
    try:
        _start(options, python, {**joined, **variables})
        yield joined
    finally:
        for pid in mentioning(home):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not mentioning(home), 20)
        shutil.rmtree(home, ignore_errors=True)


def join(address: str, cpus: int, *arguments: str, python: str = sys.executable, **variables: str) -> None:
    """Another node of a cluster, on this machine too, which ends with its head. variables: as the head yields them."""
    _start([f"--address={address}", f"--num-cpus={cpus}", *arguments], python, variables)


def _start(options: list[str], python: str, variables: dict[str, str]) -> None:
    """`ray start`. python: Ray starts workers with the Python that it takes itself to be."""
    script = "import sys; sys.executable = sys.argv.pop(1); from ray.scripts.scripts import main; main()"
    started = subprocess.run(
        [sys.executable, "-c", script, python, "start", *options],
        env=variables,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert started.returncode == 0, started.stdout + started.stderr


def drain(address: str, node_id: str, seconds: int, **variables: str) -> None:
    """A cloud's notice, which its handler hands to Ray: the node goes after so many seconds. Ray does not end it."""
    words = ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "the cloud takes the machine back"]
    notice = [RAY, "drain-node", "--address", address, "--node-id", node_id, *words]
    subprocess.run(
        [*notice, "--deadline-remaining-seconds", str(seconds)],
        env=environment(**variables),
        capture_output=True,
        check=True,
    )


@contextmanager
def autoscaled_head(cpus: int, most_others: int) -> Iterator[dict[str, str]]:
    """A cluster that begins with one node, and whose autoscaler adds as many others, of as many CPUs, as it may."""
    from ray.autoscaler._private.fake_multi_node.node_provider import FAKE_HEAD_NODE_ID

    lists = ["initialization_commands", "setup_commands", "head_setup_commands", "worker_setup_commands"]
    lists += ["head_start_ray_commands", "worker_start_ray_commands", "cluster_synced_files", "rsync_exclude"]
    types = {
        "ray.head.default": {"resources": {"CPU": cpus}, "node_config": {}, "max_workers": 0},
        "other": {"resources": {"CPU": cpus}, "node_config": {}, "min_workers": 0, "max_workers": most_others},
    }
    config = {
        "cluster_name": "fake",
        "max_workers": most_others,
        "upscaling_speed": 1.0,
        "idle_timeout_minutes": 5,
        "provider": {"type": "fake_multinode", "head_node_id": FAKE_HEAD_NODE_ID},
        "available_node_types": types,
        "head_node_type": "ray.head.default",
        **{name: {} for name in ("auth", "docker", "file_mounts")},
        **{name: [] for name in [*lists, "rsync_filter"]},
        "file_mounts_sync_continuously": False,
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "autoscaler.json"
        file.write_text(json.dumps(config), encoding="utf-8")
        variables = {
            "AUTOSCALER_UPDATE_INTERVAL_S": "1",
            "RAY_FAKE_CLUSTER": "1",
            "RAY_OVERRIDE_NODE_ID_FOR_TESTING": FAKE_HEAD_NODE_ID,
        }
        with head(cpus, AUTOSCALED_PORT, f"--autoscaling-config={file}", **variables) as joined:
            yield joined
