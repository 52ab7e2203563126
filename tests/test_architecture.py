"""What holds for the whole project: who imports whom, and that links lead somewhere."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.pages import anchors
from tests.support.project_files import REPOSITORY as ROOT
from tests.support.project_files import project_files

PACKAGES = ("orchestration", "training", "experiments")
TORCH = {"torch", "torchvision", "numpy"}
ANALYSIS = {
    "numpy",
    "scipy",
    "threadpoolctl",
    "pandas",
    "pydantic",
    "pydantic_core",
    "yaml",
    "jinja2",
    "markupsafe",
}
LIBRARIES = {
    "scalestudy": {"lightning", "pytorch_lightning", "transformers"},
    "training": {*TORCH, "pydantic", "pydantic_core", "pynvml"},
    "experiments": ANALYSIS,
    "orchestration": {*TORCH, *ANALYSIS, "ray", "mlflow", "typer", "rich", "pyarrow", "optuna", "sqlalchemy"},
}
"""What a package may import beside the standard library and this project."""


def within(parent: str, *names: str) -> set[str]:
    """The names below a package."""
    return {f"{parent}.{name}" for name in names}


MAY_IMPORT: Mapping[str, set[str]] = {
    # training: the files beside its rooms are the ground floor; three of them lie above the rooms
    "training": set(),
    "training.models": {"training"},
    "training.data": {"training"},
    "training.gradient_sync": {"training"},
    "training.loop": {"training", *within("training", "models", "data", "gradient_sync")},
    "training.checkpoint": {"training", "training.loop"},
    "training.rehearsal": {"training", *within("training", "models", "data", "loop", "checkpoint")},
    "training.arguments": {"training"},
    "training.__main__": {"training", *within("training", "arguments", "data", "loop", "checkpoint")},
    # experiments
    "experiments": set(),
    "experiments.spec": within("training", "config", "contradictions", "redaction", "registry", "section"),
    "experiments.plan": {"experiments.spec", "training.config"},
    "experiments.study": {*within("experiments", "spec", "plan"), "training.whole_file"},
    "experiments.analysis.laws": set(),
    "experiments.analysis.measures": {
        *within("experiments", "spec", "plan", "analysis.laws"),
        "training.config",
    },
    "experiments.analysis.text": within("experiments", "plan", "analysis.measures"),
    "experiments.analysis.answers": within("experiments", "spec", "plan", "analysis.laws", "analysis.measures"),
    "experiments.analysis": within("experiments.analysis", "text", "answers"),
    "experiments.report": {
        *within("experiments", "spec", "plan", "study"),
        *within("experiments.analysis", "measures", "text", "answers"),
    },
    "experiments.judging": {
        *within("experiments", "spec", "plan", "study", "analysis.measures"),
        *within("training", "config", "exceptions", "section"),
    },
    # orchestration
    "orchestration": set(),
    "orchestration.base": within("training", "exceptions", "process", "proxies", "redaction", "settings"),
    "orchestration.cluster": {"orchestration.base", "experiments.spec"},
    "orchestration.storage": {
        *within("orchestration", "base", "cluster"),
        *within("experiments", "spec", "study"),
        *within("training", "checkpoint", "redaction", "whole_file"),
    },
    "orchestration.groups": {
        *within("orchestration", "base", "cluster", "storage"),
        *within("experiments", "spec", "plan", "analysis.measures"),
        *("training", *within("training", "loop", "checkpoint")),
    },
    "orchestration.sweep": {
        *within("orchestration", "base", "groups"),
        *within("experiments", "spec", "plan", "analysis.measures", "analysis.answers"),
        "training.records",
    },
    "orchestration.tracking": {
        *within("orchestration", "base", "cluster", "storage", "groups"),
        *within("experiments", "spec", "plan", "study", "analysis.measures", "analysis.text", "report"),
        *("training", *within("training", "models", "data")),
    },
    "orchestration.progress": {
        "orchestration.groups",
        *within("experiments", "plan", "analysis.measures"),
        "training.records",
    },
    "orchestration.study": {
        *within("orchestration", "base", "cluster", "storage", "groups", "sweep", "tracking", "progress"),
        *within("experiments", "spec", "plan", "study"),
        *within("experiments.analysis", "measures", "text", "answers"),
        *("training", *within("training", "data", "loop", "checkpoint", "rehearsal")),
    },
    "orchestration.judging": {
        *within("orchestration", "base", "tracking", "study"),
        *within("experiments", "spec", "study", "judging", "report"),
        *within("experiments.analysis", "measures", "answers"),
        "training.exceptions",
    },
    "orchestration.commands": {
        *within("orchestration", "base", "cluster", "storage", "groups", "tracking", "progress", "study", "judging"),
        *within("experiments", "spec", "plan", "study", "judging", "report"),
        *within("experiments.analysis", "measures", "text"),
        *("training", *within("training", "arguments", "data", "loop")),
    },
    # the import name
    "scalestudy": {*within("orchestration", "base", "study", "judging"), *within("training", "steps", "trees")},
    "scalestudy.__main__": {"orchestration.commands"},
}
"""The rooms (and single files) that a room (or a single file that is one by itself) imports, beside itself."""


@cache
def files(pattern):
    """The project's own files."""
    return [ROOT / name for name in project_files(pattern)]


def sources(package):
    return files(f"{package}/*.py")


@cache
def modules() -> Mapping[str, ast.Module]:
    """Every module by its name below `scalestudy`, with its syntax tree; the package itself is `scalestudy`."""
    found = {}
    for file in [*sources("scalestudy"), *(file for package in PACKAGES for file in sources(package))]:
        name = ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        found[name] = ast.parse(file.read_text("utf-8"))
    return found


def imports(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Every module that a file imports, with the line: at its top, in functions, under TYPE_CHECKING and by text.

    `from package import module` is the module. An annotation in quotes needs an import under TYPE_CHECKING, or the
    linter refuses it.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield (whole if whole.removeprefix("scalestudy.") in modules() else str(node.module)), node.lineno
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "import_module":
            yield from ((arg.value, node.lineno) for arg in node.args if isinstance(arg, ast.Constant))


def ours(name: str) -> str | None:
    """The name below `scalestudy` of an imported module of ours."""
    if name == "scalestudy":
        return name
    return name.removeprefix("scalestudy.") if name.startswith("scalestudy.") else None


def room_of(module: str) -> str:
    """The room that a module lies in: the longest name of the table that leads to it."""
    parts = module.split(".")
    return next(room for end in range(len(parts), 0, -1) if (room := ".".join(parts[:end])) in MAY_IMPORT)


@cache
def graph() -> Mapping[str, frozenset[str]]:
    """The modules of ours that each module imports."""
    return {
        module: frozenset(
            other for name, _ in imports(tree) if (other := ours(name)) and other in modules() and other != module
        )
        for module, tree in modules().items()
    }


def circles(graph: Mapping[str, frozenset[str]]) -> list[str]:
    """One way round for each edge that closes a circle."""
    found, done = [], set()

    def visit(node: str, path: list[str]) -> None:
        if node in path:
            found.append(" -> ".join([*path[path.index(node) :], node]))
        elif node not in done:
            for other in sorted(graph.get(node, ())):
                visit(other, [*path, node])
            done.add(node)

    for node in sorted(graph):
        visit(node, [])
    return found


def rooms(graph: Mapping[str, frozenset[str]]) -> dict[str, frozenset[str]]:
    """The graph of modules as one of rooms."""
    joined: dict[str, set[str]] = {}
    for module, others in graph.items():
        mine = room_of(module)
        joined.setdefault(mine, set()).update(room for other in others if (room := room_of(other)) != mine)
    return {room: frozenset(others) for room, others in joined.items()}


@pytest.mark.parametrize("package", ["scalestudy", *PACKAGES])
def test_a_package_imports_its_own_libraries(package):
    wrong = [
        f"{module}:{line} imports {name}"
        for module, tree in modules().items()
        if module.partition(".")[0] == package
        for name, line in imports(tree)
        if name.partition(".")[0] not in {"scalestudy", *LIBRARIES[package], *sys.stdlib_module_names}
    ]
    assert not wrong, "\n".join(wrong)


def test_rooms_import_what_the_table_allows():
    wrong = [
        f"{module}:{line} imports {name}"
        for module, tree in modules().items()
        for name, line in imports(tree)
        if (other := ours(name))
        and (room := room_of(other)) != room_of(module)
        and not {room, other} & MAY_IMPORT[room_of(module)]
    ]
    assert len(modules()) > 100
    assert not wrong, "\n".join(wrong)


def test_the_table_of_rooms_has_no_permission_that_nobody_uses():
    edges = {
        (room_of(module), place)
        for module, others in graph().items()
        for other in others
        for place in (room_of(other), other)
    }
    assert {(room, place) for room, places in MAY_IMPORT.items() for place in places} <= edges


def test_every_room_says_what_lives_there():
    """Each folder of modules is in the table, and has a docstring that is more than a title."""
    folders = {module for module in modules() if (ROOT / module.replace(".", "/")).is_dir()} - {"scalestudy"}
    assert folders <= MAY_IMPORT.keys()
    silent = [room for room in folders if len(ast.get_docstring(modules()[room]) or "") < 40]
    assert not silent


def test_no_import_goes_in_a_circle():
    assert not circles(graph())
    assert not circles(rooms(graph()))


def test_circles_are_found():
    assert circles({"a": frozenset("b"), "b": frozenset("c"), "c": frozenset("a")}) == ["a -> b -> c -> a"]
    assert not circles({"a": frozenset("bc"), "b": frozenset("c"), "c": frozenset()})


SPEC = ["training", "training.config", "training.registry", "experiments.spec.reading", "experiments.plan.plan"]
COMMAND_LINE = ["orchestration.commands.cli", "orchestration.commands.studies", "training.data", "training.records"]
RAY_UNPICKLES_FROM = [
    f"orchestration.{name}" for name in ("sweep.sweep", "groups.worker", "groups.actor", "groups.ray_train")
]
IMPORTS = {
    "a spec": (SPEC, {*TORCH, "ray", "mlflow", "matplotlib", "scipy", "pandas"}),
    "the command line": (COMMAND_LINE, {"torch", "ray", "mlflow", "matplotlib", "scipy"}),
    "a report": (["experiments.report"], {"torch", "ray", "mlflow", "matplotlib"}),
    # each of Ray's processes would spend seconds on these
    "what Ray unpickles from": (RAY_UNPICKLES_FROM, {"torch", "mlflow"}),
}
"""Modules, and the libraries that they do not load. In an order in which no library is refused after it was allowed."""


@cache
def loaded() -> Mapping[str, set[str]]:
    """The libraries in memory after each module of IMPORTS, which one process imports in turn."""
    named = [name for modules, _ in IMPORTS.values() for name in modules]
    code = "import importlib, sys\nfor name in sys.argv[1:]:\n    importlib.import_module(name); print(*sys.modules)"
    command = [sys.executable, "-c", code, *(f"scalestudy.{name}" for name in named)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    libraries = ({each.partition(".")[0] for each in line.split()} for line in done.stdout.splitlines())
    return dict(zip(named, libraries, strict=True))


def test_one_process_can_tell_them_all():
    refused = [without for _, without in IMPORTS.values()]
    assert all(later <= earlier for earlier, later in pairwise(refused))


@pytest.mark.parametrize("part", IMPORTS)
def test_imports_are_fast(part):
    named, without = IMPORTS[part]
    found = {name: without & loaded()[name] for name in named}
    assert not any(found.values()), found


LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)")
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


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
