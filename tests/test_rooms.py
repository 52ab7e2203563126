"""Who may import whom: the rooms of the three packages, without circles between files or rooms."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.support.project_files import project_files

ROOT = Path(__file__).parents[1]
MOST_LINES = 700

BASE = {"orchestration.base"}
GROUND = {"training"}
SPEC, PLAN, STUDY = "experiments.spec", "experiments.plan", "experiments.study"
LAWS, MEASURES, ANSWERS, TEXT, ANALYSIS = (
    "experiments.analysis.laws",
    "experiments.analysis.measures",
    "experiments.analysis.answers",
    "experiments.analysis.text",
    "experiments.analysis",
)
ANY_ANALYSIS = {LAWS, MEASURES, ANSWERS, TEXT, ANALYSIS}

MAY_IMPORT: dict[str, set[str]] = {
    "training.models": GROUND,
    "training.data": GROUND,
    "training.gradient_sync": GROUND,
    "training.loop": GROUND | {"training.models", "training.data", "training.gradient_sync"},
    "training.checkpoint": GROUND | {"training.loop"},
    "training.chapter": GROUND | {"training.models"},
    SPEC: {"training.config", "training.registry"},
    PLAN: {SPEC},
    STUDY: {SPEC, PLAN},
    LAWS: set(),
    MEASURES: {SPEC, PLAN, LAWS},
    TEXT: {PLAN, MEASURES},
    ANSWERS: {SPEC, PLAN, LAWS, MEASURES},
    ANALYSIS: {SPEC, PLAN} | ANY_ANALYSIS,
    "experiments.report": {SPEC, PLAN, STUDY} | ANY_ANALYSIS,
    "orchestration.base": {"experiments.spec.addresses"},
    "orchestration.cluster": BASE | {SPEC},
    "orchestration.storage": BASE | {"orchestration.cluster", SPEC, STUDY, "training.checkpoint"},
    "orchestration.groups": BASE
    | {"orchestration.cluster", "orchestration.storage", STUDY, "training", "training.checkpoint", "training.loop"}
    | {"training.data", "training.models", "training.gradient_sync"},
    "orchestration.progress": BASE | {"orchestration.groups", PLAN, MEASURES},
    "orchestration.sweep": BASE | {"orchestration.groups", SPEC, PLAN} | ANY_ANALYSIS,
    "orchestration.tracking": BASE
    | {"orchestration.cluster", "orchestration.storage", "orchestration.groups", "experiments.report"}
    | {SPEC, PLAN, STUDY, "training"}
    | ANY_ANALYSIS,
}
"""Rooms and single files that a room may import beside itself. `training` is the ground floor, its files alone. Rooms
that are not here (orchestration.study, orchestration.commands, training's own ground floor) have rules of their own."""


@cache
def modules() -> dict[str, ast.Module]:
    """Every module of the three packages by its name below `scalestudy`, with its syntax tree."""
    found = {}
    for package in ("orchestration", "training", "experiments"):
        for name in project_files(f"{package}/*.py"):
            dotted = name.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
            found[dotted] = ast.parse((ROOT / name).read_text("utf-8"))
    return found


def room_of(module: str) -> str:
    """`orchestration.groups.pool` lies in `orchestration.groups`; a file beside the rooms lies in its package."""
    known = [name for name in modules() if is_package(name)]
    inside = [name for name in known if module == name or module.startswith(name + ".")]
    return max(inside, key=len)


def is_package(module: str) -> bool:
    return (ROOT / module.replace(".", "/")).is_dir()


def imported(module: str) -> Iterator[tuple[str, int]]:
    """Modules of ours that a module names: at its top, in functions, under TYPE_CHECKING, and in quoted annotations."""
    for node in ast.walk(modules()[module]):
        if isinstance(node, ast.Import):
            yield from ((alias.name.removeprefix("scalestudy."), node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = (node.module or "").removeprefix("scalestudy.").removeprefix("scalestudy")
            for alias in node.names:
                full = f"{source}.{alias.name}".lstrip(".")
                yield (full if full in modules() else source), node.lineno


@cache
def imports_of(module: str) -> frozenset[str]:
    return frozenset(name for name, _ in imported(module) if name in modules() and name != module)
