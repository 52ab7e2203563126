"""Checks on every node of a cluster: whether it has our packages, sees our storage, and can use its GPUs."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalestudy.orchestration.base.child import run_child
from scalestudy.orchestration.base.errors import RequestError, UnreachableError, first_line
from scalestudy.orchestration.cluster.nodes import ClusterNode, Node, of_one_type

PACKAGES = ("ray", "torch", "torchvision", "scalestudy")
"""The packages that a worker computes with. The driver alone needs MLflow."""
ANSWER_SECONDS = 60.0
LOOK_SECONDS = 40.0
"""Limit for a look at a node's device. It leaves Ray time to start the task, so that a driver that hangs is not taken
for a silent node."""
ANSWER = "scalestudy answers: "
"""Printed before the answer, since a node's start-up files and exit functions may print too."""
MISSING = "not installed"


def check_shared_storage(folder: Path, nodes: Sequence[ClusterNode]) -> None:
    """Raise UnreachableError if a node can't read a file that the driver wrote into the study's storage."""
    if len(nodes) < 2:
        return
    probe = folder / f".probe-{uuid.uuid4().hex}"
    probe.write_text(probe.name, encoding="utf-8")
    try:
        answers = ask_nodes(nodes, _reads, str(probe), probe.name)
        blind = [node.host for node, seen in zip(nodes, answers, strict=True) if not seen]
    finally:
        probe.unlink()
    if blind:
        raise UnreachableError(
            f"storage: {folder}: can't be read on {', '.join(sorted(blind))}",
            "name a folder that every node of the cluster shares",
        )


def ask_nodes(nodes: Sequence[ClusterNode | Node], function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Return what the function returns on each node. Raise UnreachableError if an answer does not come."""
    import ray

    task = ray.remote(num_cpus=0)(function)
    asked = [task.options(label_selector={"ray.io/node-id": node.node_id}).remote(*arguments) for node in nodes]
    try:
        return list(ray.get(asked, timeout=ANSWER_SECONDS))
    except ray.exceptions.RayError as error:
        problem = f"--address: a node of the cluster does not answer ({first_line(error)})"
        raise UnreachableError(problem, "look at `ray status` and the node's log, then try again") from error


def _reads(path: str, text: str) -> bool:
    try:
        return Path(path).read_text(encoding="utf-8") == text
    except OSError:
        return False


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A package that a node has in another version than the driver, or not at all."""

    node: str
    package: str
    there: str
    here: str


def check_versions(nodes: Sequence[ClusterNode]) -> None:
    """Raise RequestError if a node's Python or packages differ in version from this process's.

    A task on each node looks, in the job's environment, so packages of a runtime env count.
    """
    hosts = [node.host for node in nodes]
    names = [node.host if hosts.count(node.host) == 1 else f"{node.host} ({node.node_id[:8]})" for node in nodes]
    versions = _versions()
    different = differences(versions(PACKAGES), dict(zip(names, ask_nodes(nodes, versions, PACKAGES), strict=True)))
    if different:
        listed = "; ".join(f"{each.node}: {each.package} {each.there}, here {each.here}" for each in different)
        raise RequestError(
            f"the cluster's packages differ from this process's: {listed}",
            "install the same versions everywhere (`pip install -c constraints.txt …`, or one container image for all "
            "nodes), or submit the study as a job with them in its runtime env",
        )


def differences(here: Mapping[str, str], nodes: Mapping[str, Mapping[str, str]]) -> list[Difference]:
    """Return what differs, by node and package, in their order.

    The suffix of a build does not count, so that a head without GPUs may have PyTorch's CPU build (2.13.0+cpu); nor do
    Python's patch releases. A package that the driver runs without a version, such as this one from a folder, is not
    compared.
    """
    return [
        Difference(node=node, package=package, there=versions.get(package, MISSING), here=version)
        for node, versions in nodes.items()
        for package, version in here.items()
        if _counts(package, versions.get(package, MISSING)) != _counts(package, version)
    ]


def check_devices(nodes: Sequence[Node], device: str, precisions: Iterable[str]) -> None:
    """Raise RequestError, naming the nodes, if one that would train can't use its GPUs or lacks a precision.

    nodes: the cluster. Those that have room and the type of GPUs of the study's trials are asked.
    """
    asked = sorted({*precisions} - {"fp32"})
    if device == "cpu" and not asked:
        return
    used = [node for node in of_one_type(nodes) if node.slots]
    answers = ask_nodes(used, _look_at_device, device, asked)
    for fault in filter(None, answers):
        where = ", ".join(sorted({node.host for node, answer in zip(used, answers, strict=True) if answer == fault}))
        what, remedy, lacks = fault
        if what:
            raise RequestError(f"resources.{what} (on {where})", remedy)
        raise RequestError(
            f"train.precision: {lacks}: not available on the {device} of {where}",
            "choose fp32, or a cluster whose nodes all have it",
        )


def _look_at_device(device: str, precisions: Sequence[str]) -> list[str] | None:
    """Return what `device_fault` says on this node; None also if it gives no answer, since the trials will find out.

    The look runs in a child process, which sees this node's GPUs: Ray hides them from a task that takes none.
    """
    question = (
        "import json; from scalestudy.training.device import device_fault; "
        f"print({ANSWER!r} + json.dumps(device_fault({device!r}, {list(precisions)!r})))"
    )
    ended = run_child(("-c", question), None, LOOK_SECONDS, without=["CUDA_VISIBLE_DEVICES"])
    _, answered, rest = "\n".join(ended.answers).rpartition(ANSWER)
    fault: list[str] | None = json.loads(rest.partition("\n")[0]) if answered and ended.status is not None else None
    return fault


def _counts(package: str, version: str) -> str:
    """Return the part of a version that must be the same."""
    return ".".join(version.split(".")[:2]) if package == "python" else version.partition("+")[0]


def _versions() -> Callable[[Sequence[str]], dict[str, str]]:
    """Return a function that Ray sends along whole: a node that lacks this package must be able to run it too."""

    def versions(packages: Sequence[str]) -> dict[str, str]:
        import platform
        from importlib import metadata

        by_package = {"python": platform.python_version()}
        for package in packages:
            try:
                by_package[package] = metadata.version(package)
            except metadata.PackageNotFoundError:
                continue
        return by_package

    return versions
