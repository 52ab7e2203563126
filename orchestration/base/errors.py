"""The ways in which a command can end, and the errors that carry them to the command line."""

from __future__ import annotations

from enum import IntEnum

from scalestudy.orchestration.base.environment import without_secrets
from scalestudy.training.exceptions import InputError, what_happened


class ExitCode(IntEnum):
    """What a command's exit status means."""

    DONE = 0  # diverged and out-of-memory trials are results
    SOME_FAILED = 1  # some trials failed; `doctor`: something is broken
    BAD_REQUEST = 2  # bad command, bad spec, missing data, or a request that the cluster can never meet
    UNREACHABLE = 3  # cluster, storage or tracking out of reach
    INTERRUPTED = 130  # stopped by Ctrl-C
    TERMINATED = 143  # stopped by SIGTERM, or by the end of its terminal


class StudyError(Exception):
    """A study that can't go on. The problem names a field or place, the remedy says what to do; secrets are hidden."""

    exit_code = ExitCode.BAD_REQUEST  # the command's exit status

    def __init__(self, problem: str, remedy: str) -> None:
        self.problem = without_secrets(problem)
        self.remedy = without_secrets(remedy)
        super().__init__(self.problem, self.remedy)

    def __str__(self) -> str:
        return f"{self.problem}; {self.remedy}"


class RequestError(StudyError):
    """The request can never be met: exit 2."""


class StudyFailedError(StudyError):
    """A study that ran but did not end cleanly: see `StudyResult.raise_on_failure`."""

    def __init__(self, problem: str, remedy: str, exit_code: ExitCode = ExitCode.SOME_FAILED) -> None:
        super().__init__(problem, remedy)
        self.exit_code = exit_code

    def __reduce__(self) -> tuple[type, tuple[str, str, ExitCode]]:
        return type(self), (self.problem, self.remedy, self.exit_code)


class UnreachableError(StudyError):
    """A cluster, storage or tracking store is out of reach: exit 3."""

    exit_code = ExitCode.UNREACHABLE


class RefusedError(UnreachableError):
    """A service answers but refuses us, so waiting or spooling will not help: exit 3."""


def first_line(said: BaseException | str) -> str:
    """Return the line of a text, or of an error's message, that says what happened, at most 300 characters.

    An error without a message gives the name of its type, an empty text an empty text.
    """
    line = what_happened(str(said)) or ("" if isinstance(said, str) else type(said).__name__)
    return line[:300]


def request_error(error: Exception, remedy: str, where: str = "") -> RequestError:
    """Turn an error of another package into a RequestError.

    remedy: for an error that brings none. where: the subject of the problem, put before it.
    """
    problem, given = (error.what, error.remedy) if isinstance(error, InputError) else (str(error), "")
    return RequestError(f"{where}: {problem}" if where else problem, given or remedy)
