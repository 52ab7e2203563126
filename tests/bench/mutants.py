"""What a suite catches: mutants of the product, drawn by a seed, each given to the tests that run its line.

    python -m tests.bench.mutants lines SUITE --into lines.json
    python -m tests.bench.mutants draw --seed COMMIT --lines lines.json --into mutants.json
    python -m tests.bench.mutants run SUITE --lines lines.json --mutants mutants.json --into caught.json

SUITE is a clone or worktree: two suites over one product are compared by the same mutants. A mutant changes one place:
a comparison, a number by one, `and` for `or`, a default, two arguments swapped, a call dropped whose result nobody
takes, `return None`. `lines` runs the unit tests under coverage, in processes that they start too, and notes which test
runs which line. A line that none of them runs is run by Ray's workers: tests/ray is asked. Tests that fail without a
mutant count for nothing. A mutant is caught when a test fails, or when the tests take longer than `SECONDS`, where they
took less than half of it without the mutant.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.support.project_files import REPOSITORY, project_files

PACKAGES = ("orchestration", "training", "experiments")
COUNT, MOST_IN_WORKERS = 100, 25
SECONDS, RAY_SECONDS = 60.0, 300.0
NO_TESTS = 5  # pytest's status
COMPARED: Mapping[type, str] = {
    **{ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "=="},
    **{ast.In: "not in", ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is"},
}
COVERAGE = """
[run]
source = {source}
parallel = true
patch = subprocess, fork, _exit
context = ${{PYTEST_CURRENT_TEST-}}
data_file = {folder}/coverage
"""


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One place of the source, and what stands there instead."""

    file: str
    lines: tuple[int, int]  # the first and last of its statement, from 1; of a block its head
    kind: str
    start: int  # offsets in the file's characters
    end: int
    instead: str

    def of(self, text: str) -> str:
        """Return the file's text with the mutant in it."""
        return text[: self.start] + self.instead + text[self.end :]


class Source:
    """A file's text, and where its syntax tree stands in it."""

    def __init__(self, file: str, text: str) -> None:
        self.file, self.text, self._tree = file, text, ast.parse(text)
        self._statements = [
            (node.lineno, node.body[0].lineno - 1 if getattr(node, "body", None) else node.end_lineno or node.lineno)
            for node in ast.walk(self._tree)
            if isinstance(node, ast.stmt)
        ]
        self._starts = [0]
        for line in text.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Return the offsets of a node."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._at(node.lineno, node.col_offset), self._at(node.end_lineno, node.end_col_offset)

    def _at(self, line: int, column: int) -> int:
        row = self.text[self._starts[line - 1] : self._starts[line]]  # ast counts bytes
        return self._starts[line - 1] + len(row.encode()[:column].decode())

    def of(self, node: ast.expr) -> str:
        """Return a node's text."""
        return self.text[slice(*self.span(node))]

    def mutant(self, kind: str, span: tuple[int, int], instead: str) -> Mutant:
        """Return what stands between two offsets as a mutant."""
        line = self.text.count("\n", 0, span[0]) + 1
        lines = max((each for each in self._statements if each[0] <= line <= each[1]), default=(line, line))
        return Mutant(file=self.file, lines=lines, kind=kind, start=span[0], end=span[1], instead=instead)

    def mutants(self) -> Iterator[Mutant]:
        """Yield every mutant of the file."""
        tree = self._tree
        hints = [getattr(node, name, None) for node in ast.walk(tree) for name in ("annotation", "returns")]
        annotated = {id(inner) for hint in hints if hint is not None for inner in ast.walk(hint)}
        for node in ast.walk(tree):
            if id(node) not in annotated:
                yield from self._mutants_of(node)

    def _mutants_of(self, node: ast.AST) -> Iterator[Mutant]:
        match node:
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in COMPARED:
                yield self.mutant("compare", self.span(node), f"{self.of(left)} {COMPARED[type(op)]} {self.of(right)}")
            case ast.Constant(value=int() as value) if not isinstance(value, bool):
                yield self.mutant("one more", self.span(node), f"({value + 1})")
                yield self.mutant("one less", self.span(node), f"({value - 1})")
            case ast.BoolOp(op=op, values=values):
                word = " or " if isinstance(op, ast.And) else " and "
                yield self.mutant(
                    "and, or", self.span(node), "(" + word.join(f"({self.of(each)})" for each in values) + ")"
                )
            case ast.Call(args=[first, second, *_]) if not isinstance(first, ast.Starred | ast.Slice):
                if not isinstance(second, ast.Starred):
                    (start, middle), (after, end) = self.span(first), self.span(second)
                    swapped = self.of(second) + self.text[middle:after] + self.of(first)
                    yield self.mutant("swapped", (start, end), swapped)
            case ast.Expr(value=ast.Call()):
                yield self.mutant("dropped call", self.span(node), "pass")
            case ast.Return(value=ast.expr() as value) if self.of(value) != "None":
                yield self.mutant("return None", self.span(node), "return None")
            case ast.FunctionDef(args=arguments) | ast.AsyncFunctionDef(args=arguments):
                yield from self._other_defaults([*arguments.defaults, *filter(None, arguments.kw_defaults)])
            case ast.ClassDef(body=body):
                fields = [each.value for each in body if isinstance(each, ast.AnnAssign) and each.value is not None]
                yield from self._other_defaults(fields)

    def _other_defaults(self, defaults: Iterable[ast.expr]) -> Iterator[Mutant]:
        for default in defaults:
            match default:
                case ast.Constant(value=None):
                    yield self.mutant("default", self.span(default), "0")
                case ast.Constant(value=bool() as value):
                    yield self.mutant("default", self.span(default), str(not value))
                case ast.Constant(value=float() as value):
                    yield self.mutant("default", self.span(default), repr(value * 2 or 1.0))
                case ast.Constant(value=str() as value):
                    yield self.mutant("default", self.span(default), repr(value + "x"))


def draw(seed: str, count: int, in_tests: Mapping[str, Mapping[str, Any]]) -> list[Mutant]:
    """Draw mutants over the lines of the product, at most `MOST_IN_WORKERS` in lines that no test's process runs.

    in_tests: file → line → its tests.
    """
    chance = random.Random(seed)
    texts = {
        name: (REPOSITORY / name).read_text("utf-8") for name in project_files("*.py") if name.startswith(PACKAGES)
    }
    lines = [(name, number) for name, text in texts.items() for number in range(1, text.count("\n") + 1)]
    known: dict[str, list[Mutant]] = {}
    found: list[Mutant] = []
    in_workers = 0
    for name, number in chance.sample(lines, len(lines)):
        if name not in known:
            known[name] = list(Source(name, texts[name]).mutants())
        here = [mutant for mutant in known[name] if texts[name].count("\n", 0, mutant.start) + 1 == number]
        is_in_workers = bool(here) and not tests_of(here[0], in_tests)
        if not here or (is_in_workers and in_workers == MOST_IN_WORKERS):
            continue
        kind = chance.choice(sorted({mutant.kind for mutant in here}))
        mutant = chance.choice([each for each in here if each.kind == kind])
        try:
            compile(mutant.of(texts[name]), name, "exec")
        except SyntaxError:
            continue
        in_workers += is_in_workers
        found.append(mutant)
        if len(found) == count:
            break
    return found


def tests_of(mutant: Mutant, in_tests: Mapping[str, Mapping[str, Sequence[str]]]) -> list[str]:
    """Return the tests that run a mutant's statement, in their order; of one that imports run, all of the file."""
    by_line = in_tests.get(mutant.file, {})
    first, last = mutant.lines
    whole = [test for tests in by_line.values() for test in tests]
    ran = [by_line[str(line)] for line in range(first, last + 1) if str(line) in by_line]
    return list(dict.fromkeys([test for tests in ran for test in tests] or (whole if ran else [])))


class Contexts:
    """A pytest plugin: coverage's context is the test that runs, in gloo's ranks too; notes seconds and failures."""

    def __init__(self, into: Path) -> None:
        self._into, self.seconds, self.failed = into, defaultdict[str, float](float), set[str]()

    def pytest_configure(self) -> None:
        from tests.support.gloo import GlooPool

        run = GlooPool.run

        def in_context(pool: GlooPool, world_size: int, function: Any, *arguments: Any) -> list[Any]:
            return run(pool, world_size, run_in_context, os.environ["PYTEST_CURRENT_TEST"], function, *arguments)

        GlooPool.run = in_context  # type: ignore[method-assign]

    def pytest_runtest_setup(self, item: Any) -> None:
        switch_context(item.nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.seconds[report.nodeid] += report.duration
        if report.failed:
            self.failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self._into.write_text(json.dumps({"seconds": self.seconds, "failed": sorted(self.failed)}))


def switch_context(test: str) -> None:
    """Tell coverage which test runs. test: as pytest names it, or as PYTEST_CURRENT_TEST has it."""
    from coverage import Coverage

    current = Coverage.current()
    if current is not None:
        current.switch_context(test.rsplit(" (", 1)[0])


def run_in_context(worker: Any, test: str, function: Any, *arguments: Any) -> Any:
    """Run a job of the gloo pool under its test's context."""
    switch_context(test)
    return function(worker, *arguments)


def lines(suite: Path) -> dict[str, Any]:
    """Run the unit tests under coverage.

    Returns: seconds by test; failed, the tests that do; lines: file → line → its tests, fastest first.
    """
    from coverage import CoverageData

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sources = ", ".join(str(suite / package) for package in PACKAGES)
        (folder / "rc").write_text(COVERAGE.format(source=sources, folder=folder))
        code = (
            "import sys, pytest; from pathlib import Path; from tests.bench.mutants import Contexts;"
            "sys.exit(pytest.main(sys.argv[2:], plugins=[Contexts(Path(sys.argv[1]))]))"
        )
        (folder / "run.py").write_text(code)
        tests = ["-q", "-p", "no:cacheprovider", "-m", "not slow and not chaos"]  # the suite's own testpaths
        command = [
            "-m",
            "coverage",
            "run",
            "--rcfile",
            str(folder / "rc"),
            str(folder / "run.py"),
            str(folder / "told"),
        ]
        subprocess.run([sys.executable, *command, *tests], cwd=suite, env=environment(suite), check=False)
        told = json.loads((folder / "told").read_text())
        found: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        for file in folder.glob("coverage.*"):
            data = CoverageData(str(file))
            data.read()
            for measured in data.measured_files():
                for line, contexts in data.contexts_by_lineno(measured).items():
                    named = {context.rsplit(" (", 1)[0] for context in contexts}
                    found[str(Path(measured).relative_to(suite))][line] |= named & set(told["seconds"])
    failed = set(told["failed"])
    fastest = {test: place for place, test in enumerate(sorted(told["seconds"], key=told["seconds"].get))}
    return told | {
        "lines": {
            file: {line: sorted(tests - failed, key=fastest.__getitem__) for line, tests in by_line.items()}
            for file, by_line in found.items()
        }
    }


def environment(suite: Path) -> dict[str, str]:
    """Return the variables of a suite's processes: its own product, one thread for small matrices."""
    return {**os.environ, "PYTHONPATH": str(suite), "OPENBLAS_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def run_tests(suite: Path, tests: Sequence[str], seconds: float, marks: str = "not slow and not chaos") -> str:
    """Run tests until one fails: "caught", "passed", or "slow" where they take longer."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", marks]
    process = subprocess.Popen(
        [*command, *tests],
        cwd=suite,
        env=environment(suite),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return "passed" if process.wait(seconds) in (0, NO_TESTS) else "caught"
    except subprocess.TimeoutExpired:
        return "slow"
    finally:
        os.killpg(process.pid, signal.SIGKILL) if process.poll() is None else None
        process.wait()


def outcome(suite: Path, mutant: Mutant, known: Mapping[str, Any]) -> dict[str, Any]:
    """Put a mutant into the suite's product, ask the tests that run its line, and take it out."""
    tests = sorted(tests_of(mutant, known["lines"]), key=known["seconds"].__getitem__)
    usual = sum(known["seconds"][test] for test in tests)
    file = suite / mutant.file
    text, begun = file.read_text("utf-8"), time.monotonic()
    file.write_text(mutant.of(text), "utf-8")
    try:
        told = run_tests(suite, tests, SECONDS) if tests else run_tests(suite, ["tests/ray"], RAY_SECONDS)
    finally:
        file.write_text(text, "utf-8")
    if told == "slow" and tests and usual < SECONDS / 2:
        told = "caught"
    return {**asdict(mutant), "tests": len(tests), "outcome": told, "seconds": round(time.monotonic() - begun, 1)}


def main() -> None:
    """Do one of the three steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=["lines", "draw", "run"])
    parser.add_argument("suite", nargs="?", type=Path, default=REPOSITORY)
    parser.add_argument("--seed")
    parser.add_argument("--count", type=int, default=COUNT)
    for name in ("lines", "mutants", "into"):
        parser.add_argument(f"--{name}", type=Path, required=name == "into")
    given = parser.parse_args()
    suite = given.suite.resolve()
    known = json.loads(given.lines.read_text()) if given.lines else {}
    if given.step == "lines":
        found: Any = lines(suite)
    elif given.step == "draw":
        found = [asdict(each) for each in draw(given.seed, given.count, known["lines"])]
    else:
        found = []
        for plain in json.loads(given.mutants.read_text()):
            found.append(outcome(suite, Mutant(**plain), known))
            print(*(found[-1][key] for key in ("outcome", "seconds", "file", "lines", "kind", "instead")), flush=True)
            given.into.write_text(json.dumps(found, indent=1))
    given.into.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
