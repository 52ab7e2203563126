"""pyproject.toml and constraints.txt say the versions; everything else repeats them, and is checked against them."""

import re
import tomllib
from importlib import metadata

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from tests.support.studies import REPOSITORY
from tests.unit.infra.manifests import INFRA, KUBERAY, cluster_spec, kuberay, pinned, pods, read

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))
DOCKERFILE = (INFRA / "docker" / "Dockerfile").read_text("utf-8")
PIN = re.compile(r"([A-Za-z][\w.-]*)(?:\[[\w,]+\])?==([\w.]+)")
MARKED = [INFRA / name for name in ("kuberay/raycluster.yaml", "kuberay/rayjob.yaml", "ray/cluster.yaml")]


def image_version(image):
    """An image's name and the version in its tag, which may name the device too."""
    name, _, tag = image.rpartition("/")[2].partition(":")
    return name, tag.partition("-")[0]


def argument(name):
    """The default of a build argument."""
    (value,) = re.findall(rf"^ARG {name}=(\S+)$", DOCKERFILE, re.MULTILINE)
    return value


def marked_lines(file):
    """The lines of a manifest that a user has to change."""
    return [line for line in file.read_text("utf-8").splitlines() if line.rstrip().endswith("# CHANGE")]


def our_image(target):
    """The name and tag of this version's image, whatever its registry."""
    return f"scalestudy:{PROJECT['project']['version']}-{target}"


def test_the_constraints_fit_the_project():
    for text in PROJECT["project"]["dependencies"]:
        requirement = Requirement(text)
        assert pinned(requirement.name) in requirement.specifier, text


def test_the_dockerfile():
    assert argument("SCALESTUDY_VERSION") == PROJECT["project"]["version"]
    assert argument("RAY_VERSION") == pinned("ray")
    python = argument("PYTHON_VERSION")
    assert re.fullmatch(r"\d+\.\d+\.\d+", python), "a patch release, so that builds are alike"
    assert python in SpecifierSet(PROJECT["project"]["requires-python"])
    assert python.startswith(PROJECT["tool"]["mypy"]["python_version"] + ".")
    tags = re.findall(r"scalestudy:(\S+)-(?:cpu|cuda)", DOCKERFILE)
    assert set(tags) == {PROJECT["project"]["version"]}


@pytest.mark.parametrize("file", sorted(INFRA.rglob("Dockerfile")), ids=lambda file: file.parent.name)
def test_every_dockerfile_installs_what_is_pinned(file):
    text = file.read_text("utf-8")
    assert not [f"{name}=={version}" for name, version in PIN.findall(text) if pinned(name) != version]
    installs = re.findall(r"pip install [^\n]*", text)
    assert installs
    assert not [line for line in installs if not re.search(r"-c \S*constraints\.txt ", line)]
    bases = set(re.findall(r"^FROM python:(\d+\.\d+)", text, re.MULTILINE))
    assert bases <= {PROJECT["tool"]["mypy"]["python_version"]}


@pytest.mark.parametrize("name", KUBERAY)
def test_kuberays_manifests(name):
    manifest = kuberay(name)
    assert cluster_spec(manifest)["rayVersion"] == pinned("ray")
    for role, pod in pods(manifest).items():
        image = pod["containers"][0]["image"]
        assert image.rpartition("/")[2] == our_image("cuda" if role == "gpu" else "cpu")


def test_the_cluster_launchers_file():
    docker = read("ray/cluster.yaml")["docker"]
    for name, target in (("head_image", "cpu"), ("worker_image", "cuda")):
        assert docker[name].rpartition("/")[2] == our_image(target)


def test_what_is_installed_here_is_what_the_project_says():
    assert metadata.version("ray") == pinned("ray")
    assert metadata.version("scalestudy") == PROJECT["project"]["version"]


@pytest.mark.parametrize("page", ["docs/cluster.md", "infra/ray/README.md", "infra/kuberay/README.md"])
def test_pages_name_the_version_that_they_are_about(page):
    text = (REPOSITORY / page).read_text("utf-8")
    tags = set(re.findall(r"scalestudy:(\d\S*?)-(?:cpu|cuda)", text))
    assert tags <= {PROJECT["project"]["version"]}
    assert set(re.findall(r"Ray (\d+\.\d+\.\d+)", text)) <= {pinned("ray")}


@pytest.mark.parametrize("file", MARKED, ids=lambda file: file.name)
def test_what_a_user_must_change_is_in_the_page_beside_it(file):
    text = (file.parent / "README.md").read_text("utf-8")
    names = {re.search(r"name: (\w+),", line) or re.search(r"([\w-]+):", line) for line in marked_lines(file)}
    assert names
    assert not [name[1] for name in names if f"`{name[1]}`" not in text]
