"""Before stage 3, on a cluster: whether a cluster's manifest names the versions that are installed here.

`scalestudy doctor --manifest FILE` reads KubeRay's RayCluster, RayJob and RayService, and the files of Ray's cluster
launcher (`ray up`). A file is composed into YAML's nodes and no further: a tag in it has nothing to run, and every
value keeps its line and its text (`rayVersion: 2.60` is 2.60, not 2.6).
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from scalestudy.orchestration.base.errors import RequestError
from scalestudy.orchestration.commands.doctor_checks import Finding

CLUSTER_SPECS = {
    "RayCluster": ("spec",),
    "RayJob": ("spec", "rayClusterSpec"),
    "RayService": ("spec", "rayClusterConfig"),
}
"""KubeRay's kinds, and where each holds the description of its cluster."""
LAUNCHER_IMAGES = ("image", "head_image", "worker_image")
EXAMPLES = "name one such as infra/kuberay/rayjob.yaml or infra/ray/cluster.yaml"

_VERSION = re.compile(r"v?(\d+\.\d+\.\d+(?:(?:a|b|rc|\.post|\.dev)\d+)?)(?:[-_.].*)?")
_PROJECTS = {"ray": "ray", "ray-ml": "ray", "scalestudy": "scalestudy"}


@dataclass(frozen=True, kw_only=True)
class Stated:
    """What a manifest says at one place about a version.

    field: dotted path. line: 1-based. value: as written, None where the field is not there.
    package: the installed package that it is about, None for an image of another name. version: None where the value
    names none.
    """

    field: str
    line: int
    value: str | None
    package: str | None
    version: str | None


def examine_manifests(files: Sequence[Path]) -> list[Finding]:
    """A finding for each image and each rayVersion of the manifests, broken where this machine has another version.

    Raises RequestError for a file that can't be read, or is no manifest of a Ray cluster.
    """
    return [_finding(file, stated) for file in files for stated in _read(file)]


def image_version(image: str) -> tuple[str | None, str | None]:
    """The package that an image is named after, and the version in its tag; None for what its name does not say."""
    name, _, _ = image.partition("@")
    name, _, tag = name.rpartition("/")[2].partition(":")
    match = _VERSION.fullmatch(tag)
    return _PROJECTS.get(name), match[1] if match else None


def _finding(file: Path, stated: Stated) -> Finding:
    name, field, package = f"{file}:{stated.line}", stated.field, stated.package
    if stated.value is None:
        remedy = f'write rayVersion: "{_installed("ray")}"; without it KubeRay does not know what this Ray can do'
        return Finding(name, "broken", f"{field}: is not there", remedy)
    if package is None:
        remedy = "make an image from scalestudy's (infra/docker), and keep that one's name and version in its own"
        return Finding(name, "note", f"{field}: {stated.value}: its versions can't be told from here", remedy)
    here = _installed(package)
    if stated.version is None:
        remedy = f"name the version that is installed here: {here}"
        return Finding(name, "note", f"{field}: {stated.value}: names no version of {package}", remedy)
    if stated.version != here:
        remedy = f"write {here} in its place, or install {package}=={stated.version} here"
        if package == "scalestudy":
            remedy = f"build the image of {here} (infra/docker) and name it, or use scalestudy {stated.version} here"
        told = stated.value if stated.value == stated.version else f"{stated.value}: {package} {stated.version}"
        return Finding(name, "broken", f"{field}: {told}, here {here}", remedy)
    return Finding(name, "ok", f"{field}: {package} {here}, as here")


def _installed(package: str) -> str:
    """A package's version on this machine, without the part that names a build."""
    try:
        return importlib.metadata.version(package).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        problem = f"--manifest: {package} is not installed here, so there is nothing to compare with"
        raise RequestError(problem, "pip install -c constraints.txt -e .") from None


def _read(file: Path) -> list[Stated]:
    """All that a manifest states, in the file's order."""
    try:
        documents = list(yaml.compose_all(file.read_text(encoding="utf-8"), Loader=yaml.SafeLoader))
    except OSError as error:
        raise RequestError(f"--manifest: {file}: {error.strerror or error}", EXAMPLES) from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f":{mark.line + 1}" if mark else ""
        said = getattr(error, "problem", None) or type(error).__name__
        raise RequestError(f"--manifest: {file}{where}: is not YAML ({said})", "correct the file") from None
    stated = [each for document in documents for each in _stated(document)]
    if not stated:
        raise RequestError(f"--manifest: {file}: describes no Ray cluster", EXAMPLES)
    return sorted(stated, key=lambda each: each.line)


def _stated(document: Node | None) -> Iterator[Stated]:
    kind = _text(_get(document, "kind"))
    if kind in CLUSTER_SPECS:
        yield from _of_kuberay(document, CLUSTER_SPECS[kind])
    elif document is not None and _get(document, "cluster_name"):
        yield from _of_launcher(document)


def _of_kuberay(document: Node | None, place: tuple[str, ...]) -> Iterator[Stated]:
    spec = _get(document, *place)
    if spec is not None:
        version = _get(spec, "rayVersion")
        text, line = _text(version), _line(version or spec)
        yield Stated(field=".".join((*place, "rayVersion")), line=line, value=text, package="ray", version=text)
        within = ".".join(place)
        yield from _of_pod(_get(spec, "headGroupSpec", "template"), f"{within}.headGroupSpec.template")
        for index, group in enumerate(_items(_get(spec, "workerGroupSpecs"))):
            yield from _of_pod(_get(group, "template"), f"{within}.workerGroupSpecs[{index}].template")
    yield from _of_pod(_get(document, "spec", "submitterPodTemplate"), "spec.submitterPodTemplate")


def _of_pod(template: Node | None, field: str) -> Iterator[Stated]:
    """The image of a pod's first container, which is Ray's; those after it are helpers of the user's."""
    for container in _items(_get(template, "spec", "containers"))[:1]:
        yield from _of_image(_get(container, "image"), f"{field}.spec.containers[0].image")


def _of_launcher(document: Node) -> Iterator[Stated]:
    images = list(_launcher_images(document))
    line = _line(_get(document, "docker") or document)
    yield from images or [Stated(field="docker", line=line, value="no image", package=None, version=None)]


def _launcher_images(document: Node) -> Iterator[Stated]:
    for name in LAUNCHER_IMAGES:
        yield from _of_image(_get(document, "docker", name), f"docker.{name}")
    types = _get(document, "available_node_types")
    for name in _keys(types):
        field = f"available_node_types.{name}.docker.worker_image"
        yield from _of_image(_get(types, name, "docker", "worker_image"), field)


def _of_image(node: Node | None, field: str) -> Iterator[Stated]:
    image = _text(node)
    if node is not None and image is not None:
        package, version = image_version(image)
        yield Stated(field=field, line=_line(node), value=image, package=package, version=version)


def _get(node: Node | None, *path: str) -> Node | None:
    """The node at a path of keys, None where there is none."""
    for name in path:
        pairs = node.value if isinstance(node, MappingNode) else []
        node = next((value for key, value in pairs if _text(key) == name), None)
    return node


def _keys(node: Node | None) -> list[str]:
    return [str(key.value) for key, _ in node.value] if isinstance(node, MappingNode) else []


def _items(node: Node | None) -> list[Node]:
    return list(node.value) if isinstance(node, SequenceNode) else []


def _text(node: Node | None) -> str | None:
    """A scalar as it is written; None for what is empty, or is no scalar."""
    return str(node.value) or None if isinstance(node, ScalarNode) else None


def _line(node: Node) -> int:
    return int(node.start_mark.line) + 1
