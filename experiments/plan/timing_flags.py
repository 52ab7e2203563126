"""What puts the timings of a trial in doubt. Pure.

Laws leave them out, unless `report --include-flagged` is given or an adaptive search has no others for a num_gpus. A
flag that is not listed here is shown, and decides nothing.
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


CAUSES_OF_SCATTER = frozenset({TimingFlag.SHARED_GPU, TimingFlag.SHARED_NODE, TimingFlag.STARVED, TimingFlag.THROTTLED})
"""The flags that say why timings of the same steps differ."""


def doubts(flags: Iterable[str]) -> list[str]:
    """Return the flags of a trial, or of a row, that put its timings in doubt, sorted."""
    return sorted(set(TimingFlag).intersection(flags))
