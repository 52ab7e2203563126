"""What holds for the whole project: who imports whom, how long files are, that links lead somewhere."""

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from scalestudy.training.records import PHASES, find_metric
from tests.support.project_files import project_files

ROOT = Path(__file__).parents[1]
PACKAGES = ("orchestration", "training", "experiments")
TORCH = {"torch", "torchvision", "numpy"}
ANALYSIS = {"numpy", "scipy", "pandas", "pydantic", "pydantic_core", "yaml", "matplotlib", "jinja2", "markupsafe"}
MAY_IMPORT = {
    "training": {"training", *TORCH},
    "experiments": {"experiments", *ANALYSIS},
    "orchestration": {
        *PACKAGES,
        *TORCH,
        *ANALYSIS,
        "ray",
        "mlflow",
        "typer",
        "rich",
        "pyarrow",
        "optuna",
        "sqlalchemy",
    },
}
MOST_LINES = 750


@cache
def files(pattern):
    """The project's own files."""
    return [ROOT / name for name in project_files(pattern)]


def sources(package):
    return files(f"{package}/*.py")


def imports(file):
    """Every module that a file imports, at its top or later, with the line."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield ("." * node.level + (node.module or ""), node.lineno)


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_go_in_one_direction(package):
    wrong = [
        f"{file.relative_to(ROOT)}:{line} imports {module}"
        for file in sources(package)
        for module, line in imports(file)
        if (top := module.partition(".")[0]) not in MAY_IMPORT[package] and top not in sys.stdlib_module_names
    ]
    assert sources(package)
    assert not wrong, "\n".join(wrong)


def loaded(module):
    """What is in memory once a module has been imported by a process of its own."""
    code = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in done.stdout.split()}


@pytest.mark.parametrize(
    "module",
    [
        "scalestudy.orchestration.sweep.sweep",
        "scalestudy.orchestration.groups.worker",
        "scalestudy.orchestration.groups.actor",
        "scalestudy.orchestration.groups.ray_train",
    ],
)
def test_what_ray_unpickles_from_is_imported_fast(module):
    """Each of Ray's processes that touches these would else spend seconds on imports."""
    assert not loaded(module) & {"torch", "mlflow"}


@pytest.mark.parametrize(
    "module",
    [
        "scalestudy.orchestration.commands.cli",
        "scalestudy.training.data",
        "scalestudy.training.registry",
        "scalestudy.training.records",
    ],
)
def test_the_command_line_answers_fast(module):
    assert not loaded(module) & {"torch", "ray", "mlflow", "matplotlib", "scipy"}


def test_the_report_needs_no_cluster():
    assert not loaded("scalestudy.experiments.report") & {"torch", "ray", "mlflow"}


@pytest.mark.parametrize("folder", [*PACKAGES, "tests"])
def test_files_are_short(folder):
    lengths = {file.relative_to(ROOT): len(file.read_text("utf-8").splitlines()) for file in sources(folder)}
    long = {str(file): lines for file, lines in lengths.items() if lines > MOST_LINES}
    assert not long, f"split: {long}"


def test_metrics_are_in_the_table():
    """Those of a study's runs are checked where they are written, in the tests of the MLflow store."""
    for name in ("wall_seconds", *(f"phase_{phase}_seconds" for phase in PHASES), "time_to_accuracy_0.85"):
        find_metric(name)
    with pytest.raises(KeyError, match="METRICS"):
        find_metric("tset_accuracy")


LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)")
HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*$", re.MULTILINE)
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


def anchors(text):
    """The anchors of a Markdown page's headings, as GitHub makes them."""
    headings = HEADING.findall(re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def dead_links(page):
    """Links of a page to files or headings that are not there."""
    text = page.read_text("utf-8")
    for target in LINK.findall(CODE.sub("", text)):
        if re.match(r"[a-z][a-z+.-]*:", target):
            continue  # another site: tests stay off the network
        place, _, anchor = target.partition("#")
        file = (page.parent / place).resolve() if place else page
        if not file.exists():
            yield f"{target}: no such file"
        elif anchor and file.suffix == ".md" and anchor not in anchors(file.read_text("utf-8")):
            yield f"{target}: no such heading"


def test_links_in_markdown_lead_somewhere():
    dead = [f"{page.relative_to(ROOT)}: {problem}" for page in files("*.md") for problem in dead_links(page)]
    assert not dead, "\n".join(dead)


def test_dead_links_are_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A `b`: c\n[a](page.md#a-b-c) [b](none.md) ![c](page.md#d) [e](#a-b-c) `[f](g)` [h](https://x)\n")
    assert list(dead_links(page)) == ["none.md: no such file", "page.md#d: no such heading"]


MACHINE_PATH = re.compile(r"(?<![\w.$}])/(?:work|root|home/\w+|Users/\w+)/")


def test_no_paths_of_somebodys_machine():
    """A path that is there on one machine only."""
    texts = [file for file in files(".") if file.suffix not in (".npz", ".png") and file != Path(__file__)]
    found = [
        f"{file.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for file in texts
        for number, line in enumerate(file.read_text("utf-8").splitlines(), start=1)
        if MACHINE_PATH.search(line)
    ]
    assert len(texts) > 50
    assert not found, "\n".join(found)
