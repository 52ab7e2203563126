"""Pairs of keys of a training whose values do not go together. Loads neither torch nor numpy."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from scalestudy.training.registry import INEXACT_SYNCS, OPTIMIZERS
from scalestudy.training.section import name_of

WARM_UPS = {"warmup_epochs": "0", "warmup_steps": "null", "warmup_tokens": "null", "warmup_share": "null"}
"""The keys that say how long the rate rises, each with its value where another one does."""


@dataclass(frozen=True, kw_only=True)
class Contradiction:
    """Two keys of a training whose values do not go together. The problem is reported at the first."""

    key: str
    applies: Callable[[Any], bool]
    other_key: str
    other_applies: Callable[[Any], bool]
    reason: str
    remedy: str

    def what(self, other: str) -> str:
        """Return what is wrong, a phrase that follows the first key's value. other: the other key's value, as text."""
        return f"does not go with {self.other_key} {other}: {self.reason}"


RISING = ("one_cycle", "OneCycleLR")
"""Schedules that rise first."""

CONTRADICTIONS = (
    Contradiction(
        key="lr_rule",
        applies=lambda rule: rule == "adascale",
        other_key="optimizer.name",
        other_applies=lambda name: name != "sgd",
        reason="adascale is derived for sgd",
        remedy="choose sgd or another rule",
    ),
    Contradiction(
        key="lr_rule",
        applies=lambda rule: rule == "adascale",
        other_key="gradient_sync",
        other_applies=lambda sync: sync in INEXACT_SYNCS,
        reason="adascale needs the exact gradient of the whole batch in each step",
        remedy="choose another rule or strategy",
    ),
    *(
        Contradiction(
            key=key,
            applies=bool,
            other_key=other,
            other_applies=other_applies,
            reason=reason,
            remedy=f"set {key} to {nothing}, or choose another {word}",
        )
        for other, other_applies, word, reason in (
            ("lr_rule", lambda rule: rule == "adascale", "rule", "the gain of adascale is a warm-up already"),
            ("schedule", lambda value: name_of(value) in RISING, "schedule", "it has its own warm-up"),
        )
        for key, nothing in WARM_UPS.items()
    ),
    *(
        Contradiction(
            key=key,
            applies=bool,
            other_key=other,
            other_applies=bool,
            reason="both say how long the rate rises",
            remedy="keep one of the two",
        )
        for other, key in itertools.combinations(WARM_UPS, 2)
    ),
    Contradiction(
        key="warmup_tokens",
        applies=bool,
        other_key="task",
        other_applies=lambda task: task is None,
        reason="only a task counts tokens",
        remedy="give the warm-up in steps, epochs or as a share, or name a task with a method tokens",
    ),
    *(
        Contradiction(
            key=key,
            applies=bool,
            other_key=other,
            other_applies=bool,
            reason="both say how long a training is",
            remedy="keep one of the two; if it is swept, write one of its values in train too",
        )
        for key, other in (("steps", "epochs"), ("tokens", "epochs"), ("tokens", "steps"))
    ),
    *(
        Contradiction(
            key="eval_every",
            applies=lambda every, length=length: bool(every) and length not in every,  # type: ignore[misc]
            other_key=length,
            other_applies=bool,
            reason=f"a training of {length} is evaluated by {length}",
            remedy=f"write eval_every: {{{length}: N}}",
        )
        for length in ("epochs", "steps", "tokens")
    ),
    Contradiction(
        key="tokens",
        applies=bool,
        other_key="task",
        other_applies=lambda task: task is None,
        reason="only a task counts tokens",
        remedy="give the length in epochs or steps, or name a task with a method tokens",
    ),
    Contradiction(
        key="loss",
        applies=lambda loss: loss != "cross_entropy",
        other_key="task",
        other_applies=bool,
        reason="the task has its own loss",
        remedy="remove loss, or task",
    ),
    Contradiction(
        key="task_args",
        applies=bool,
        other_key="task",
        other_applies=lambda task: task is None,
        reason="there is no task to call",
        remedy="name the task, or remove task_args",
    ),
    Contradiction(
        key="augment",
        applies=lambda augment: augment != "none",
        other_key="task",
        other_applies=bool,
        reason="a task's batches have a form of their own",
        remedy="set augment to none, and augment in the task's forward or in the data set",
    ),
    *(
        Contradiction(
            key=f"optimizer.{key}",
            applies=bool,
            other_key="optimizer.name",
            other_applies=lambda name: name != "sgd",
            reason="only sgd uses it",
            remedy=f"set {key} to {nothing}, or choose sgd",
        )
        for key, nothing in (("momentum", "0"), ("dampening", "0"), ("nesterov", "false"))
    ),
    *(
        Contradiction(
            key=f"optimizer.{key}",
            applies=bool,
            other_key="optimizer.name",
            other_applies=lambda name: name not in ("adam", "adamw"),
            reason="only adam and adamw use it",
            remedy=f"remove {key}, or choose adam or adamw",
        )
        for key in ("betas", "eps", "amsgrad")
    ),
    Contradiction(
        key="optimizer.weight_decay",
        applies=bool,
        other_key="optimizer.name",
        other_applies=lambda name: name not in OPTIMIZERS,
        reason="your own optimizer has arguments of its own",
        remedy="put it into optimizer.args",
    ),
    Contradiction(
        key="optimizer.args",
        applies=bool,
        other_key="optimizer.name",
        other_applies=lambda name: name in OPTIMIZERS,
        reason="a built-in optimizer has keys in place of them",
        remedy="write each as a key of optimizer, or name an optimizer of your own",
    ),
    Contradiction(
        key="optimizer.nesterov",
        applies=bool,
        other_key="optimizer.momentum",
        other_applies=lambda momentum: momentum == 0,
        reason="it looks ahead by the momentum",
        remedy="set a momentum, or nesterov to false",
    ),
    Contradiction(
        key="optimizer.nesterov",
        applies=bool,
        other_key="optimizer.dampening",
        other_applies=bool,
        reason="PyTorch has no such rule",
        remedy="set dampening to 0, or nesterov to false",
    ),
)
