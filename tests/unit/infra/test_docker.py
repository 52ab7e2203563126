"""infra/docker: the Dockerfile as far as it can be checked without building it."""

import re
import shlex
import subprocess
import sys
from dataclasses import dataclass

import pytest

from tests.support.studies import REPOSITORY
from tests.unit.infra.manifests import INFRA

FILE = INFRA / "docker" / "Dockerfile"


@dataclass
class Stage:
    """A stage of a build: its name, what it begins from, and its instructions in order."""

    name: str
    base: str
    steps: list[tuple[str, str]]

    def all(self, instruction):
        return [text for name, text in self.steps if name == instruction]


def instructions(text):
    """(instruction, arguments) of a Dockerfile; comments left out, continued lines joined."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines) + "\n")
    for line in filter(None, (line.strip() for line in joined.splitlines())):
        name, _, arguments = line.partition(" ")
        yield name, arguments.strip()


def stages(text):
    found = []
    for name, arguments in instructions(text):
        if name == "FROM":
            base, _, alias = arguments.partition(" AS ")
            found.append(Stage(alias, base, []))
        elif found:
            found[-1].steps.append((name, arguments))
    return {stage.name: stage for stage in found}


@pytest.fixture(scope="module")
def parsed():
    return stages(FILE.read_text("utf-8"))


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_nothing_runs_as_root(parsed, target):
    steps = parsed[target].steps
    assert [text for name, text in steps if name == "USER"] == ["1000:1000"]
    assert all(name == "RUN" for name, _ in steps[steps.index(("USER", "1000:1000")) + 1 :])


def test_the_home_is_named_for_the_cluster_launcher(parsed):
    """`ray up` looks for HOME among the image's variables, and takes root's where there is none."""
    assert any(text.startswith("HOME=/home/study ") for text in parsed["base"].all("ENV"))
    assert any("RAY_AUTH_MODE=token" in text for text in parsed["base"].all("ENV"))


@pytest.mark.parametrize(("target", "index"), [("cpu", "CPU_TORCH_INDEX"), ("cuda", "CUDA_TORCH_INDEX")])
def test_packages_are_pinned_and_torch_comes_from_the_index_that_is_named(parsed, target, index):
    stage = parsed[f"packages-{target}"]
    assert stage.all("ARG") == [f'{index}=""']
    installs = [text for text in stage.all("RUN") if "pip install" in text]
    assert all("-c constraints.txt" in text for text in installs)
    torch, rest = installs
    assert f'${{{index}:+--extra-index-url "${index}"}}' in torch
    assert torch.endswith("torch torchvision")
    ours = {"cpu": ".", "cuda": '".[gpu]"'}[target]
    assert rest.endswith(f" {ours} boto3 && pip check")


@pytest.mark.parametrize(
    ("target", "cuda", "words"),
    [
        ("cpu", None, ""),
        ("cpu", "13.0", "CPU_TORCH_INDEX: torch 9.9 is built for CUDA; name an index of CPU builds"),
        ("cuda", "13.0", ""),
        ("cuda", None, "CUDA_TORCH_INDEX: torch 9.9 is built without CUDA; name another index"),
    ],
)
def test_the_wrong_kind_of_torch_ends_the_build(parsed, tmp_path, target, cuda, words):
    (tmp_path / "torch.py").write_text(
        f"from types import SimpleNamespace\n__version__ = '9.9'\nversion = SimpleNamespace(cuda={cuda!r})\n"
    )
    (check,) = [text for text in parsed[f"packages-{target}"].all("RUN") if "import sys, torch" in text]
    command = [sys.executable, *shlex.split(check)[1:]]
    done = subprocess.run(command, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert done.returncode == (1 if words else 0)
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_the_build_sees_what_it_copies_and_nothing_else(parsed):
    lines = (REPOSITORY / ".dockerignore").read_text("utf-8").splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    copied = [word for text in parsed["project"].all("COPY") for word in text.split()[:-1]]
    assert rules == ["*", *sorted(f"!{name}" for name in copied), "**/__pycache__"]
    assert all((REPOSITORY / name).exists() for name in copied)
