"""Private names of Ray, each behind one function. Ray Train's callback class is in `groups.ray_train`.

Ray 2.60 has no public call for any of them. The version of Ray is fixed, and tests hold each function to a real
cluster.
"""

from __future__ import annotations


def draining_node_ids() -> set[str]:
    """The nodes that are to go soon. Ray Train and Ray Serve ask in the same way."""
    from ray._private.state import state

    return set(state.get_draining_nodes())


def read_loopback_variable(name: str) -> None:
    """Makes Ray read again the variable that decides whether a cluster listens on 127.0.0.1 alone.

    Ray reads it once, when it is imported.
    """
    from ray._private import ray_constants

    ray_constants.ENABLE_RAY_CLUSTER = ray_constants.env_bool(name, not ray_constants.IS_WINDOWS_OR_OSX)


def noted_cluster_address() -> str | None:
    """The host:port of the cluster that Ray would join by itself. A killed cluster may have left the note behind."""
    from ray._private.services import canonicalize_bootstrap_address

    address: str | None = canonicalize_bootstrap_address(None)
    return address
