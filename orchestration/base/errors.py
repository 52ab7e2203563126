"""The ways in which a command can end, and the errors that carry them to the command line."""

from __future__ import annotations

from enum import IntEnum

from scalestudy.orchestration.base.environment import without_secrets


class ExitCode(IntEnum):
    """What a command's exit status means."""

    DONE = 0  # diverged and out-of-memory trials are results
    SOME_FAILED = 1  # some trials failed; for `doctor`: something is broken
    BAD_REQUEST = 2  # bad command, spec or data not there, or a request that the cluster can never meet
    UNREACHABLE = 3  # cluster, storage or tracking out of reach
    INTERRUPTED = 130  # stopped by Ctrl-C
    TERMINATED = 143  # stopped by SIGTERM


class StudyError(Exception):
    """A study that can't go on: what is wrong with which field or place, and what to do about it; without secrets.

    Attributes:
        exit_code: the command's exit status.
    """

    exit_code = ExitCode.BAD_REQUEST

    def __init__(self, problem: str, remedy: str) -> None:
        self.problem = without_secrets(problem)
        self.remedy = without_secrets(remedy)
        super().__init__(self.problem, self.remedy)

    def __str__(self) -> str:
        return f"{self.problem}; {self.remedy}"


class RequestError(StudyError):
    """The request can't be met, now or ever: exit 2."""


class UnreachableError(StudyError):
    """A cluster, storage or tracking store is out of reach: exit 3."""

    exit_code = ExitCode.UNREACHABLE


class RefusedError(UnreachableError):
    """It answers, and refuses who asks: waiting, or spooling, will not help. Exit 3."""


def request_error(error: Exception, remedy: str, where: str = "") -> RequestError:
    """An error of the other packages, whose text is "problem; remedy", as a RequestError.

    remedy: for a text that has none. where: what the problem is about, put before it.
    """
    problem, _, given = str(error).rpartition("; ")
    about = f"{where}: " if where else ""
    return RequestError(about + (problem or given), given if problem else remedy)
