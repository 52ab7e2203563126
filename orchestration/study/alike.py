"""Whether the first trials of a run fail in the same way: then the code is at fault, and the others would fail too."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from scalestudy.experiments.plan.plan import TrialPlan
from scalestudy.orchestration.groups.events import Ended, TrialError

FRAME = re.compile(r'^ *File "(?P<file>.+)", line (?P<line>\d+)', re.MULTILINE)


class Fault(NamedTuple):
    """An exception and where it was raised."""

    type: str
    place: str  # file and line of the innermost frame; "": unknown

    @classmethod
    def of(cls, error: TrialError) -> Fault:
        """Return the fault of an error whose message begins with the exception's type."""
        frames = FRAME.findall(error.traceback)
        return cls(re.split(r"[:; ]", error.message)[0], ":".join(frames[-1]) if frames else "")


class FirstTrials:
    """The ended trials of a run, for as long as none has a result. Every status but `failed` is a result."""

    def __init__(self, earlier: Iterable[str] = ()) -> None:
        """Begin with the statuses of trials that ended in earlier runs. A fault there may have been mended since."""
        self._has_result = any(status != "failed" for status in earlier)
        self._failed: defaultdict[Fault, list[TrialPlan]] = defaultdict(list)

    def alike(self, trial: TrialPlan, ended: Ended) -> str | None:
        """Take a trial's end; return what is wrong once trials of two cells met the same exception in the same place.

        None before that, if any trial has a result, and for an error that is no exception of the user's code.
        """
        self._has_result |= ended.status != "failed"
        if self._has_result or ended.error is None or ended.error.kind != "exception":
            return None
        same = self._failed[Fault.of(ended.error)]
        same.append(trial)
        if all(each.cell == trial.cell for each in same):
            return None
        return (
            f"{len(same)} trials of different cells failed with the same error, and none has a result: "
            f"{ended.error.message}"
        )
