"""The user's code behind a study: the files of the modules that its spec names, and of what these import in turn.

Imports are read from the text of a file: nothing is run, one inside a function counts too, and every process that finds
the same files gets the same result. Where a file puts names of modules together, all modules of its folder count. What
such a name, or a compiled extension, imports from elsewhere is missed.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import pkgutil
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib.machinery import SOURCE_SUFFIXES, ModuleSpec
from pathlib import Path
from typing import Any

OURS = "scalestudy"
DIGITS = 12
"""Hex digits of a hash."""
IMPORTERS = ("import_module", "__import__")
"""Functions that import a module by its name."""
SEARCHERS = ("iter_modules", "walk_packages", "spec_from_file_location", "run_path", "run_module")
"""Functions by which code finds modules whose names it does not have."""


def named_modules(*sections: Any) -> tuple[str, ...]:
    """Return the modules of all values `package.module:callable` in sections of a spec, as plain data, each once."""
    modules: list[str] = []
    for value in sections:
        if isinstance(value, Mapping):
            modules += named_modules(*value.values())
        elif isinstance(value, list | tuple):
            modules += named_modules(*value)
        elif isinstance(value, str):
            module, colon, name = value.partition(":")
            if colon and all(part.isidentifier() for part in (*module.split("."), *name.split("."))):
                modules.append(module)
    return tuple(dict.fromkeys(modules))


def own_files(module: str) -> dict[str, str]:
    """Return a hash of each of the user's files that importing a module may read, by the file's name.

    The name is that below the folder or archive where Python found it, such as `glue.py` or `net/__init__.py`: a copy
    of the code elsewhere has the same names. The hash is of the content alone, comments included. Empty for a module
    that is installed, Python's, ours, or not there.
    """
    files: dict[str, str] = {}
    waiting, seen = [module], set[str]()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        if parent := name.rpartition(".")[0]:
            waiting.append(parent)  # importing a.b.c runs a and a.b too
        with suppress(Exception):  # a file that is gone, text that is no Python, a finder of somebody else's
            spec = _find(name)
            if spec is None or not _is_users(spec):
                continue
            content, file = _content(spec), Path(str(spec.origin))
            is_package = spec.submodule_search_locations is not None
            folders = name.split(".") if is_package else name.split(".")[:-1]
            files["/".join([*folders, file.name])] = short_hash(content)
            waiting += _imported(content, file, name if is_package else parent)
    return files


def short_hash(content: bytes) -> str:
    """Return some digits of SHA-256."""
    return hashlib.sha256(content).hexdigest()[:DIGITS]


def is_installed(path: Path) -> bool:
    """Whether a file or folder belongs to Python or to an installed package."""
    if {"site-packages", "dist-packages"} & {*path.parts}:
        return True
    own = Path(sysconfig.get_path("stdlib"))
    return any(place.is_relative_to(own) or place.is_relative_to(own.resolve()) for place in (path, path.resolve()))


def own_place(error: BaseException) -> str:
    """Return the file, line and function of the user's that raised it: `mine.py:12, in load`; "": there is none.

    It is the innermost frame that belongs to no installed library and not to this package.
    """
    if elsewhere := getattr(error, "place_elsewhere", ""):  # another process raised it
        return str(elsewhere)
    for frame, line in reversed([*traceback.walk_tb(error.__traceback__)]):
        name = frame.f_code.co_filename
        file = Path(name)
        ours = str(frame.f_globals.get("__package__")).startswith(OURS)  # also of a module that was run
        if not (is_installed(file) or ours or name.startswith("<")):
            return f"{file.name}:{line}, in {frame.f_code.co_name}"
    return ""


def _find(name: str) -> ModuleSpec | None:
    """Return where Python has a module, or would find it; run nothing."""
    loaded = sys.modules.get(name)
    if loaded is not None:
        own = getattr(loaded, "__spec__", None)
        return own if isinstance(own, ModuleSpec) else None
    path, parent = None, name.rpartition(".")[0]
    if parent:
        above = _find(parent)
        path = above.submodule_search_locations if above is not None else None
        if path is None:
            return None
    return next(filter(None, (finder.find_spec(name, path) for finder in sys.meta_path)), None)


def _is_users(spec: ModuleSpec) -> bool:
    """Whether a module has a file, and that is the user's. A package without `__init__.py` has none."""
    if not spec.has_location or spec.origin is None or spec.name.partition(".")[0] == OURS:
        return False
    top, file = spec.name.partition(".")[0], Path(spec.origin)
    depth = spec.name.count(".") + (2 if spec.submodule_search_locations is not None else 1)
    return not is_installed(file) and top not in _installed_into(Path(*file.parts[:-depth]))


@cache
def _installed_into(folder: Path) -> frozenset[str]:
    """Return the modules that pip has installed into a folder of any name (`--target`)."""
    records = [record.read_text("utf-8") for record in folder.glob("*.dist-info/RECORD")]
    files = [line.partition(",")[0] for record in records for line in record.splitlines()]
    return frozenset(file.partition("/")[0].partition(".")[0] for file in files)


def _content(spec: ModuleSpec) -> bytes:
    """Return what is in a module's file, which may lie in an archive."""
    file = Path(str(spec.origin))
    return file.read_bytes() if file.is_file() else bytes(spec.loader.get_data(spec.origin))  # type: ignore[union-attr]


def _imported(content: bytes, file: Path, package: str) -> Iterator[str]:
    """Yield the names that a file imports, each of which may be a module. package: which its dots refer to."""
    if file.suffix not in SOURCE_SUFFIXES:
        return
    told: set[ast.AST] = set()  # names of functions that are called with a module's name
    for node in ast.walk(ast.parse(content)):
        match node:
            case ast.Import():
                yield from (alias.name for alias in node.names)
            case ast.ImportFrom():
                base = _absolute("." * node.level + (node.module or ""), package)
                yield from (base, *(f"{base}.{alias.name}" for alias in node.names))
            case ast.Call(func=function, args=[ast.Constant(value=str(name)), *_]) if _name(function) in IMPORTERS:
                told.add(function)
                yield _absolute(name, package)
            case ast.Name() | ast.Attribute() if _name(node) in (*IMPORTERS, *SEARCHERS) and node not in told:
                prefix = f"{package}." if package else ""
                yield from (each.name for each in pkgutil.iter_modules([str(file.parent)], prefix))


def _absolute(name: str, package: str) -> str:
    """Return an imported name without dots at its beginning; one that leads out of its package has no module."""
    try:
        return importlib.util.resolve_name(name, package)
    except ImportError:
        return name


def _name(node: ast.AST) -> str | None:
    """Return the name of a function in code: `import_module` of `importlib.import_module`."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else None
