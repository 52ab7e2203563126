"""Private names of Ray, each behind one function. Ray Train's are in `groups.ray_train` and `groups.trainer`.

Ray 2.60 has no public call for any of them. The version of Ray is fixed, and tests run each function on a real cluster,
except `gpu_type_here`, which needs a GPU.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any


def draining_node_ids() -> set[str]:
    """Return the nodes that go soon. Ray Train and Ray Serve ask in the same way."""
    from ray._private.state import state

    return set(state.get_draining_nodes())


def available_per_node() -> dict[str, dict[str, float]]:
    """Return what each node can still give away, by resource; a resource that is used up is missing."""
    from ray._private.state import available_resources_per_node

    available: dict[str, dict[str, float]] = available_resources_per_node()
    return available


def job_of_placement_group(key: str) -> int:
    """Return the number of the job that made a placement group, whose id `key` is in hexadecimal.

    The last four bytes of the id are the number.
    """
    return job_number(key[-8:])


def job_number(job_id: str) -> int:
    """Return the number of a job, counted from 1. job_id: in hexadecimal."""
    return int.from_bytes(bytes.fromhex(job_id), "little")


@dataclass(frozen=True, kw_only=True)
class NodeGroup:
    """Nodes of one kind that an autoscaler may start."""

    resources: Mapping[str, float]
    most: float  # how many at a time; infinity: any number


@dataclass(frozen=True, kw_only=True)
class ClusterLimits:
    """How large an autoscaler may make the cluster."""

    groups: tuple[NodeGroup, ...]
    total: Mapping[str, float] = field(default_factory=dict)
    """The most of a resource over all nodes, if that is limited too."""


def cluster_limits() -> ClusterLimits | None:
    """Return the limits of the cluster's autoscaler; None: it does not publish them, as most don't."""
    from ray._private.state import state

    config = state.get_cluster_config()
    if config is None or not config.node_group_configs:
        return None
    groups = [
        NodeGroup(resources=dict(each.resources), most=math.inf if each.max_count == -1 else each.max_count)
        for each in config.node_group_configs
    ]
    return ClusterLimits(groups=tuple(groups), total=dict(config.max_resources))


def is_without_nodes(address: str) -> bool:
    """Whether a cluster's control service answers and knows of no node that is alive. address: host:port."""
    import ray

    try:
        client: Any = ray._raylet.GcsClient(address=address)
        nodes = client.get_all_node_info(timeout=5).values()
    except Exception:  # whatever failed, we can't say that there is none
        return False
    return not any(node.state == 0 for node in nodes)  # ALIVE in Ray's protocol


def refusal_of(address: str) -> str | None:
    """Return in which words a cluster's control service refuses this process's token; None if that is not what it does.

    `ray.init` asks again for 20 seconds. Where RAY_AUTH_MODE wants a token and there is none, asking ends this process.
    """
    import ray

    try:
        ray._raylet.GcsClient(address=address)
    except ray.exceptions.AuthenticationError as error:
        return str(error)
    except Exception:  # `ray.init` says what it is
        return None
    return None


def is_autoscaled() -> bool:
    """Whether an autoscaler adds nodes to the cluster.

    Every cluster that `ray start` begins has an autoscaler that adds none. It gives each node a type named after that
    node; one that adds nodes has named types.
    """
    import ray
    from ray.autoscaler.v2.sdk import get_cluster_status
    from ray.experimental.internal_kv import _internal_kv_get

    status: Any = json.loads(_internal_kv_get("__autoscaling_status") or "{}")
    types = (status.get("autoscaler_report") or {}).get("node_type_mapping") or {}
    known = get_cluster_status(ray.get_runtime_context().gcs_address)
    types = {node.node_id: node.ray_node_type_name for node in [*known.active_nodes, *known.idle_nodes]} | types
    return any(name and name != f"node_{node_id}" for node_id, name in types.items())


def gpu_type_here() -> str:
    """Return Ray's name for the type of this machine's first NVIDIA GPU; "": the driver does not say."""
    from ray._private.accelerators.nvidia_gpu import NvidiaGPUAcceleratorManager

    try:
        return NvidiaGPUAcceleratorManager.get_current_node_accelerator_type() or ""
    except Exception:  # NVML's errors, of a driver that begins to answer
        return ""


LOOPBACK_ONLY = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Ray's variable. With 0 a cluster has the address 127.0.0.1, as on macOS and Windows, and listens nowhere else.
`--node-ip-address=127.0.0.1` does not help: Ray replaces it by the network's address."""


def read_variables() -> None:
    """Make Ray read LOOPBACK_ONLY and the variables of its token again; it keeps what it found when it first looked."""
    import ray
    from ray._private import ray_constants

    raylet: Any = ray._raylet
    ray_constants.ENABLE_RAY_CLUSTER = ray_constants.env_bool(LOOPBACK_ONLY, not ray_constants.IS_WINDOWS_OR_OSX)
    raylet.Config.initialize("")
    raylet.AuthenticationTokenLoader.instance().reset_cache()


TRIES, HELPERS_SECONDS = 3, 25.0
"""A raylet waits half a minute for its helpers, then it ends, and is tried again. One that ends earlier has another
reason."""


class NotStartedError(RuntimeError):
    """A cluster's processes that ended, or were not ready in time."""


def start_cluster(seconds: float, **options: Any) -> None:
    """Call `ray.init` for a new cluster, and give it so long, where Ray gives its processes a fixed half minute.

    On a busy machine they need more. Raises NotStartedError; no process is left then.

    On Linux, where the kernel ends Ray's processes with this one, each gets a process group: a closed terminal, and
    `timeout`, send their signal to this process's whole group, and a cluster that ends with it takes the report away.
    """
    import ray
    from ray._private import services
    from ray._private.node import Node
    from ray._private.utils import detect_fate_sharing_support

    opens = services.ConsolePopen
    start, deadline = Node.start_ray_processes, time.monotonic() + seconds

    def start_and_wait(node: Any) -> None:
        start(node)
        while True:
            with suppress(RuntimeError):  # it is not known yet
                services.get_node(node.gcs_address, node.node_id)
                return
            dead = [kind for kind, _ in node.dead_processes()]
            if dead or time.monotonic() > deadline:
                said = _last_error(Path(node.get_logs_dir_path()), dead[0]) if dead else ""
                node.kill_all_processes(check_alive=False, allow_graceful=False)
                why = f"its {dead[0]} ended{said and f': {said}'}" if dead else f"not ready after {seconds:.0f} s"
                raise NotStartedError(why)
            time.sleep(0.1)

    Node.start_ray_processes = start_and_wait
    if detect_fate_sharing_support():
        services.ConsolePopen = partial(opens, process_group=0)
    try:
        for left in reversed(range(TRIES)):
            began = time.monotonic()
            try:
                ray.init(address="local", **options)
                return
            except NotStartedError:
                if not left or not began + HELPERS_SECONDS < time.monotonic() < deadline:
                    raise
    finally:
        Node.start_ray_processes, services.ConsolePopen = start, opens


def _last_error(logs: Path, process: str) -> str:
    """Return the last error that one of Ray's processes wrote to its log; empty: none.

    In Ray's logs `C` marks a critical error, and `E` another. A list of the functions that called it may follow.
    """
    said = ""
    for name in (f"{process}.out", f"{process}.err"):
        with suppress(OSError):
            for line in (logs / name).read_text(encoding="utf-8", errors="replace").splitlines():
                if error := re.match(r"\[[^]]* [CE] [^]]*\] (.*)", line):
                    said = error[1].rpartition("Check failed: ")[2]
    return said


def noted_cluster_address() -> str | None:
    """Return the host:port of the cluster that Ray would join by itself.

    A killed cluster may have left the note behind.
    """
    from ray._private.services import canonicalize_bootstrap_address

    address: str | None = canonicalize_bootstrap_address(None)
    return address
