"""A spec that can't be used: all its problems at once, each with file, line, field, value and remedy."""

from dataclasses import dataclass, field
from typing import Any

from scalestudy.training.section import ABSENT, Problem


@dataclass
class SpecError(ValueError):
    """A spec that can't be used. Carries every problem, so the user can fix all of them at once."""

    problems: list[Problem]
    source: str = "study.yaml"
    args: tuple[Any, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.args = (self.problems, self.source)  # what pickle hands back to __init__

    def __str__(self) -> str:
        return "\n".join(problem.text(self.source) for problem in self.problems)


def one_problem(source: str, message: str, remedy: str, line: int | None = None, value: Any = ABSENT) -> SpecError:
    """Return the error for a file that can't be read as a spec at all."""
    return SpecError([Problem(field="", value=value, line=line, message=message, remedy=remedy)], source)
