"""What can be known of a user's Ray Train loop before any worker starts: how it is called, pickled and fed.

Nothing of it is run but the import of its module.
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from types import FunctionType
from typing import Any

from scalestudy.experiments.spec.study_spec import StudySpec
from scalestudy.orchestration.base.errors import RequestError
from scalestudy.orchestration.groups.failures import describe
from scalestudy.training.registry import resolve

SHARD = "get_dataset_shard"
USUAL_SHARD = "train"
"""The data set that `get_dataset_shard()` gives."""


def check_loop(spec: StudySpec) -> None:
    """Check a study's loop and the functions of its data sets, which can be imported. Raises RequestError."""
    workload = spec.workload
    if workload.loop is None:
        return
    loop = resolve(workload.loop, {})
    _check_function(loop, f"workload.loop: {workload.loop}", "Ray Train's config", ({},))
    for name, path in workload.datasets.items():
        _check_function(resolve(path, {}), f"workload.datasets.{name}: {path}", "no argument", ())
    _check_shards(loop, workload.loop, workload.datasets)


def refuse_loop(spec: StudySpec, where: str, remedy: str) -> None:
    """Raise RequestError for a study with a loop of the user's. where: what only a study of the built-in loop has."""
    if spec.workload.loop is not None:
        raise RequestError(f"{where}: {spec.name} trains by {spec.workload.loop}, a Ray Train loop", remedy)


def _check_function(function: Any, where: str, takes: str, given: tuple[Any, ...]) -> None:
    """Check that a worker can call a callable with the given arguments, and gets it. takes: these in words."""
    remedy = f"name a function that takes {takes}"
    if inspect.isclass(function):
        raise RequestError(f"{where}: is a class", remedy)
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise RequestError(f"{where}: is a coroutine or generator, which a call does not run", remedy)
    signature: inspect.Signature | None = None
    with suppress(ValueError):  # a callable written in C does not tell
        signature = inspect.signature(function)
    if signature is not None:
        try:
            signature.bind(*given)
        except TypeError as error:
            raise RequestError(f"{where}: {_named(function)}{signature}: {error}", remedy) from None
    if not _found_by_name(function):
        import ray

        try:
            ray.cloudpickle.dumps(function)
        except Exception as error:  # the user's objects may raise anything
            problem = f"{where}: can't be pickled, and so reaches no worker: {describe(error)}"
            raise RequestError(problem, "open files, connections and locks inside the function") from error


def _named(function: Any) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _found_by_name(function: Any) -> bool:
    """Whether a worker imports it by its name: pickle then keeps the name alone."""
    home = sys.modules.get(getattr(function, "__module__", None) or "")
    return isinstance(function, FunctionType) and getattr(home, function.__qualname__, None) is function


def _check_shards(loop: Callable[..., Any], name: str, datasets: Mapping[str, str]) -> None:
    """Check that the study has each data set that the loop's module asks for. Raises RequestError."""
    for shard in _shards(loop):
        if shard not in datasets and (shard is not None or not datasets):
            asks = f"{SHARD}({shard!r})" if shard is not None else SHARD
            has = f"has {', '.join(datasets)} alone" if datasets else "has none"
            wanted = f"{{{shard or USUAL_SHARD}: package.module:function}}"
            problem = f"workload.datasets: {has}, and {name} calls {asks}"
            raise RequestError(problem, f"add {wanted}, a function that returns a Ray Data set")


def _shards(loop: Callable[..., Any]) -> Iterator[str | None]:
    """Yield the names of data sets that a loop, or what it uses of its own module, asks for. None: it is computed."""
    function = inspect.unwrap(loop)
    while isinstance(function, functools.partial):
        function = inspect.unwrap(function.func)
    function = getattr(function, "__func__", function)  # of a bound method
    own = function if hasattr(function, "__qualname__") else type(function)
    try:
        tree = ast.parse(inspect.getsource(sys.modules[own.__module__]))
    except (OSError, TypeError, SyntaxError, KeyError):  # no source that Python finds
        return
    parts = {
        node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }
    parts |= {
        target.id: node  # type: ignore[misc]  # `loop = lambda config: …`, or a constant that it uses
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    waiting, seen = [own.__qualname__.partition(".")[0]], set[str]()
    while waiting:
        part = waiting.pop()
        if part in seen or part not in parts:
            continue
        seen.add(part)
        for node in ast.walk(parts[part]):
            if isinstance(node, ast.Name):
                waiting.append(node.id)
            if isinstance(node, ast.Call) and SHARD in (getattr(node.func, "attr", ""), getattr(node.func, "id", "")):
                given = [*node.args, *(each.value for each in node.keywords)]
                match given:
                    case []:
                        yield USUAL_SHARD
                    case [ast.Constant(value=str(name)), *_]:
                        yield name
                    case _:
                        yield None
