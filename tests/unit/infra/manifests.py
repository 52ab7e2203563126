"""The manifests of infra/, read as Kubernetes and Ray read them, and the versions that they repeat."""

from __future__ import annotations

from typing import Any

import yaml
from packaging.utils import canonicalize_name

from tests.support.studies import REPOSITORY

INFRA = REPOSITORY / "infra"
KUBERAY = ["raycluster", "rayjob"]


def pinned(package: str) -> str | None:
    """Return the version in constraints.txt."""
    lines = (REPOSITORY / "constraints.txt").read_text("utf-8").splitlines()
    versions = {canonicalize_name(name): version for name, _, version in (line.partition("==") for line in lines)}
    return versions.get(canonicalize_name(package))


def read(name: str) -> dict[str, Any]:
    """A manifest as plain data, by its path in infra/; it holds one document."""
    return dict(yaml.safe_load((INFRA / name).read_text("utf-8")))


def kuberay(name: str) -> dict[str, Any]:
    """One of infra/kuberay, by its name without the ending."""
    return read(f"kuberay/{name}.yaml")


def cluster_spec(manifest: dict[str, Any]) -> dict[str, Any]:
    """The description of a cluster in a RayCluster or a RayJob."""
    spec = manifest["spec"]
    return dict(spec.get("rayClusterSpec", spec))


def pods(manifest: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The pods' own descriptions, by `head`, the groups' names, and `submitter`."""
    spec = cluster_spec(manifest)
    groups = {group["groupName"]: group["template"]["spec"] for group in spec["workerGroupSpecs"]}
    submitter = manifest["spec"].get("submitterPodTemplate")
    return {
        "head": spec["headGroupSpec"]["template"]["spec"],
        **groups,
        **({"submitter": submitter["spec"]} if submitter else {}),
    }
