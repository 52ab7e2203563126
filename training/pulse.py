"""What a training does at this moment, and how far it is, for another thread to read.

No torch here: the driver knows the same activities.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Literal

Activity = Literal[
    "loading", "compiling", "training", "evaluating", "checkpointing", "in the user's loop", "at a report"
]
"""Loading: data, model, strategy, a checkpoint. Checkpointing: also writing the model at the end. At a report: a user's
loop waits there for the other ranks."""
AT_A_REPORT: Activity = "at a report"
COUNTED: Mapping[Activity, tuple[str, str]] = {"training": ("step", "steps"), "evaluating": ("batch", "batches")}
"""Activities whose counter keeps moving while all is well, and the word for what it counts: one, several."""


@dataclass
class Stage:
    """A stretch of one activity."""

    activity: Activity
    number: int = 1  # among the trial's stages, from 1
    count: int = 0  # steps or batches made in it
    since: float = field(default_factory=time.monotonic)


class Pulse:
    """The stage that a training is in. A reader reads `stage` once; its fields then belong together.

    The loop counts by adding to an attribute, which costs a step nothing that could be measured.
    """

    def __init__(self) -> None:
        self.stage = Stage("loading")
        self._last = 1
        self._compiled: set[Hashable] | None = None

    def turn_to(self, activity: Activity) -> None:
        """Begin a new stage."""
        self._last += 1
        self.stage = Stage(activity, self._last)

    @contextmanager
    def during(self, activity: Activity) -> Iterator[None]:
        """Insert a stage inside another, which goes on afterwards."""
        earlier = self.stage
        self.turn_to(activity)
        try:
            yield
        finally:
            self.stage = earlier

    def will_compile(self) -> None:
        """Expect a compilation, by `torch.compile`, whenever inputs of a new shape first meet the model."""
        self._compiled = set()

    def is_new(self, *shape: Hashable) -> bool:
        """Return whether the model is about to be compiled for inputs of that shape: True once a shape."""
        if self._compiled is None or shape in self._compiled:
            return False
        self._compiled.add(shape)
        return True

    def compiling(self, *shape: Hashable) -> AbstractContextManager[None]:
        """Wrap what the model does with inputs of that shape: the first time the activity is `compiling`."""
        return self.during("compiling") if self.is_new(*shape) else nullcontext()
