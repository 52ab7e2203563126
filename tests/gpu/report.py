"""What a part of the suite finds: checks that it passes or fails, figures beside their goals, and what it lacks.

This file loads no torch. The process that runs the parts must not take the GPU that it lends to them.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Status = Literal["passed", "failed", "lacks", "time limit", "not run"]
BAD: tuple[Status, ...] = ("failed", "time limit", "not run")


class LacksError(Exception):
    """Raised by a part that can do nothing more here; its text says what is missing."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What every part is told."""

    device: Literal["cpu", "cuda"]
    small: bool  # sizes that prove that a part works, and whose figures mean nothing
    data_root: str | None = None  # folder with FashionMNIST/; None: the digits of the package

    def to_json(self) -> str:
        """One line, for another process."""
        return json.dumps(dataclasses.asdict(self))


@dataclass(frozen=True, kw_only=True)
class Check:
    """Something that must hold."""

    what: str
    value: str
    wanted: str  # "at most 1e-06"
    passed: bool


@dataclass(frozen=True, kw_only=True)
class Figure:
    """Something measured."""

    what: str
    value: float | None  # None: it was not reached
    unit: str  # "s", "images/s"; "": a ratio
    goal: str = ""  # "at most 0.06"; empty: there is none
    met: bool | None = None  # None: without a goal, or not comparable with it
    how: str = ""  # model, recipe and data


@dataclass
class Report:
    """Filled by a part while it runs, so that what it found is kept if it fails later."""

    settings: Settings
    checks: list[Check] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    lacks: list[str] = field(default_factory=list)  # what could not be done here, and why
    details: dict[str, Any] = field(default_factory=dict)  # plain data beside them

    def at_most(self, what: str, value: float, limit: float) -> None:
        """Check a number; NaN fails."""
        self.checks.append(Check(what=what, value=f"{value:.4g}", wanted=f"at most {limit:g}", passed=value <= limit))

    def at_least(self, what: str, value: float, limit: float) -> None:
        """Check a number; NaN fails."""
        self.checks.append(Check(what=what, value=f"{value:.4g}", wanted=f"at least {limit:g}", passed=value >= limit))

    def equal(self, what: str, value: object, wanted: object) -> None:
        """Check any value."""
        self.checks.append(Check(what=what, value=str(value), wanted=str(wanted), passed=value == wanted))

    def figure(
        self,
        what: str,
        value: float | None,
        unit: str,
        *,
        at_most: float | None = None,
        at_least: float | None = None,
        comparable: bool = True,
        how: str = "",
    ) -> None:
        """Keep a figure. Its goal, if any, is for a GPU: it is judged there only, and if `comparable`."""
        limit = at_least if at_most is None else at_most
        if limit is None:
            self.figures.append(Figure(what=what, value=value, unit=unit, how=how))
            return
        goal = f"at {'least' if at_most is None else 'most'} {limit:g} {unit}".strip()
        met = None
        if comparable and self.settings.device == "cuda" and not self.settings.small:
            met = value is not None and (value >= limit if at_most is None else value <= limit)
        self.figures.append(Figure(what=what, value=value, unit=unit, goal=goal, met=met, how=how))

    def need_cuda(self, what: str) -> None:
        """Say what the part left out on a CPU."""
        self.lacks.append(f"needs CUDA: {what}")

    @property
    def status(self) -> Status:
        """Of a part that came to its end."""
        if any(not check.passed for check in self.checks):
            return "failed"
        return "passed" if self.checks or self.figures else "lacks"


@dataclass(frozen=True, kw_only=True)
class PartResult:
    """One part's file, `OUT/<part>.json`."""

    part: str
    title: str
    status: Status
    seconds: float  # of its process, imports included
    settings: Settings
    checks: tuple[Check, ...] = ()
    figures: tuple[Figure, ...] = ()
    lacks: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    message: str = ""  # why it failed

    def write(self, folder: Path) -> None:
        """Write the file."""
        text = json.dumps(dataclasses.asdict(self), indent=1, default=str)
        (folder / f"{self.part}.json").write_text(text + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> PartResult:
        """Read what `write` wrote."""
        plain = json.loads(path.read_text(encoding="utf-8"))
        plain["settings"] = Settings(**plain["settings"])
        plain["checks"] = tuple(Check(**each) for each in plain["checks"])
        plain["figures"] = tuple(Figure(**each) for each in plain["figures"])
        return cls(**{**plain, "lacks": tuple(plain["lacks"])})

    @property
    def first_problem(self) -> str:
        """What to read first of a part that is not well; otherwise what it lacks."""
        failed = [f"{each.what}: {each.value}, not {each.wanted}" for each in self.checks if not each.passed]
        return "; ".join([*([self.message] if self.message else []), *failed] or self.lacks)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def parts_table(results: Sequence[PartResult]) -> str:
    """A row a part."""
    rows = []
    for result in results:
        passed = sum(check.passed for check in result.checks)
        count = f"{passed} of {len(result.checks)}" if result.checks else "–"
        rows.append([result.part, result.status, count, f"{result.seconds:.1f}", result.first_problem])
    return table(["part", "result", "checks passed", "seconds", "what is wrong, or lacks"], rows)


def figures_table(results: Sequence[PartResult]) -> str:
    """A row a figure; empty without figures."""
    rows = []
    for figure in [figure for result in results for figure in result.figures]:
        value = "not reached" if figure.value is None else f"{figure.value:,.4g} {figure.unit}".strip()
        judged = {True: "yes", False: "NO", None: "not judged" if figure.goal else "–"}[figure.met]
        rows.append([figure.what, value, figure.goal or "–", judged, figure.how])
    return table(["figure", "measured", "goal on one H200", "met", "how"], rows) if rows else ""


def checks_table(results: Sequence[PartResult]) -> str:
    """A row a check."""
    rows = [
        [result.part, check.what, check.value, check.wanted, "yes" if check.passed else "NO"]
        for result in results
        for check in result.checks
    ]
    return table(["part", "check", "found", "wanted", "passed"], rows) if rows else ""


def page(machine: Mapping[str, Any], settings: Settings, results: Sequence[PartResult]) -> str:
    """The whole of `OUT/gpu.md`."""
    name = machine.get("gpu") or f"{machine.get('cpu')} (no GPU)"
    lines = [
        f"# The GPU suite on {name}",
        "Written by `make gpu`. The JSON files beside this page have everything.",
        table(["machine", ""], [[key, str(value)] for key, value in machine.items() if value is not None]),
    ]
    if settings.small:
        lines.append("**Small sizes: the parts work, and the figures mean nothing.**")
    lines += ["## Parts", parts_table(results)]
    if figures := figures_table(results):
        lines += ["## Figures", figures]
    if checks := checks_table(results):
        lines += ["## Checks", checks]
    return "\n\n".join(lines) + "\n"
