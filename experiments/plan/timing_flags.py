"""What puts the timings of a trial in doubt. Pure.

No law is fitted to timings in doubt, unless it is asked for or a search knows no others of a num_gpus. A report shows a
flag of another name too, and nothing else depends on it.
"""

from collections.abc import Iterable
from enum import StrEnum


class TimingFlag(StrEnum):
    """A flag, as `trials.jsonl` has it. `FLAG_WORDS` of the analysis says what each means."""

    OVERSUBSCRIBED = "oversubscribed"
    RESUMED = "resumed"
    SHARED_GPU = "shared_gpu"
    SHARED_NODE = "shared_node"
    STARVED = "starved"
    THROTTLED = "throttled"
    WARM_UP_INCLUDED = "warm_up_included"


def doubts(flags: Iterable[str]) -> list[str]:
    """Return the flags of a trial, or of a row, that put its timings in doubt, sorted."""
    return sorted(set(TimingFlag).intersection(flags))
