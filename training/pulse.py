"""What a training does at this moment, for another thread to read: the activity, and how far it is in it.

No torch here: the driver knows the same activities.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Literal

Activity = Literal["loading", "compiling", "training", "evaluating", "checkpointing"]
"""Loading: data, model, strategy, a checkpoint. Checkpointing: also writing the model at the end."""
COUNTED: Mapping[Activity, tuple[str, str]] = {"training": ("step", "steps"), "evaluating": ("batch", "batches")}
"""Activities with a counter that moves as long as all is well, and what it counts: one, several."""


@dataclass
class Stage:
    """A stretch of one activity. number: of the trial's stages, from 1. since: by `time.monotonic`."""

    activity: Activity
    number: int = 1
    count: int = 0  # steps or batches made in it
    since: float = field(default_factory=time.monotonic)


class Pulse:
    """The stage that a training is in. A reader takes `stage` once; its fields then belong together.

    To count is to add to an attribute, so that it costs a step nothing that could be measured.
    """

    def __init__(self) -> None:
        self.stage = Stage("loading")
        self._last = 1
        self._compiled: set[Hashable] | None = None

    def turn_to(self, activity: Activity) -> None:
        """A new stage begins."""
        self._last += 1
        self.stage = Stage(activity, self._last)

    @contextmanager
    def during(self, activity: Activity) -> Iterator[None]:
        """A stage of its own inside another, which goes on afterwards."""
        earlier = self.stage
        self.turn_to(activity)
        try:
            yield
        finally:
            self.stage = earlier

    def will_compile(self) -> None:
        """The model is compiled, by `torch.compile`, when inputs of a new shape first meet it."""
        self._compiled = set()

    def is_new(self, *shape: Hashable) -> bool:
        """Whether the model is about to be compiled for inputs of that shape; only the first question says so."""
        if self._compiled is None or shape in self._compiled:
            return False
        self._compiled.add(shape)
        return True

    def compiling(self, *shape: Hashable) -> AbstractContextManager[None]:
        """Wrap what the model does with inputs of that shape: the first time the activity is `compiling`."""
        return self.during("compiling") if self.is_new(*shape) else nullcontext()
