"""What a run of the tests costs besides seconds: how often the dear things are done, against `tests/bounds.toml`.

A pytest plugin (conftest loads it). With `--bounds unit` the counts of all processes of the run are compared with that
part's bounds, and more than one allows fails the run: a test that starts a process, or works out a posterior, that
another test has at hand is seen on any machine, however fast it is. Tests above three seconds that the file does not
list are printed; no test fails by the clock. What children do is not counted: each of them is a process started.
"""

from __future__ import annotations

import functools
import multiprocessing.util
import os
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.support.project_files import REPOSITORY

BOUNDS = REPOSITORY / "tests" / "bounds.toml"
LONG_SECONDS = 3.0
WATCHED = {
    "worker groups": ("scalestudy.orchestration.groups.host", "GroupHost", "_run"),
    "posteriors": ("scalestudy.experiments.analysis.laws.steps_to_target", "StepsToTarget", "__init__"),
    "reports": ("jinja2", "Template", "render"),
    "stores": ("mlflow.store.tracking.sqlalchemy_store", "SqlAlchemyStore", "__init__"),
    "gloo groups": ("tests.support.gloo", "GlooPool", "run"),
}
"""A count's name → the module, class and method whose calls it is. A posterior: the draws of one law of steps."""


def read_bounds() -> dict[str, Any]:
    """Read `tests/bounds.toml`."""
    return tomllib.loads(BOUNDS.read_text("utf-8"))


def above(counts: Mapping[str, int], bounds: Mapping[str, int]) -> list[str]:
    """Return a line for each count that its bound does not allow. A count without a bound may not happen at all."""
    return [
        f"{name}: {count}, at most {bounds.get(name, 0)} (tests/bounds.toml)"
        for name, count in sorted(counts.items())
        if count > bounds.get(name, 0)
    ]


class Costs:
    """The counts of this process, and in the one that leads the run those of all."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.seconds: Counter[str] = Counter()  # by test, set-up and tear-down included
        self._unseen = dict(WATCHED)
        os.register_at_fork(after_in_parent=lambda: self._add("process starts"))
        self._count(subprocess.Popen, "__init__", "process starts")
        self._count(multiprocessing.util, "spawnv_passfds", "process starts")

    def _add(self, name: str) -> None:
        self.counts[name] += 1

    def _count(self, owner: Any, attribute: str, name: str) -> None:
        function: Callable[..., Any] = getattr(owner, attribute)

        @functools.wraps(function)
        def counted(*args: Any, **keywords: Any) -> Any:
            self._add(name)
            return function(*args, **keywords)

        setattr(owner, attribute, counted)

    def watch(self) -> None:
        """Count the calls of what has been imported by now."""
        for name, (module, owner, method) in list(self._unseen.items()):
            if found := getattr(sys.modules.get(module), owner, None):
                del self._unseen[name]
                self._count(found, method, name)

    def too_many(self, config: pytest.Config) -> list[str]:
        """Return a line for each count above the bound of the run's part, if it has one and no more processes."""
        bounds, part = read_bounds(), config.getoption("bounds")
        held = part and len(config.getoption("tx", ())) <= bounds["processes"]
        return above(self.counts, bounds[part]) if held else []

    # hooks

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        self.watch()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.counts.update(getattr(node, "workeroutput", {}).get("costs", {}))

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["costs"] = dict(self.counts)
        elif self.too_many(session.config):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any, config: pytest.Config) -> None:
        part = config.getoption("bounds")
        if not part:
            return
        bounds, say = read_bounds(), terminalreporter.write_line
        say("counted: " + ", ".join(f"{count} {name}" for name, count in sorted(self.counts.items())))
        for line in self.too_many(config):
            say(f"above the bound: {line}", red=True)
        for test, seconds in self.seconds.most_common():
            if seconds > LONG_SECONDS and test.partition("[")[0] not in bounds["long"]["tests"]:
                say(f"{seconds:.1f} s, and not listed as long in tests/bounds.toml: {test}")
