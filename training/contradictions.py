"""Pairs of keys of a training whose values do not go together. Loads neither torch nor numpy."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from scalestudy.training.registry import INEXACT_SYNCS, OPTIMIZERS


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
            other_applies=functools.partial(operator.eq, with_warm_up),
            reason=reason,
            remedy=f"set {key} to {nothing}, or choose another {word}",
        )
        for other, with_warm_up, word, reason in (
            ("lr_rule", "adascale", "rule", "the gain of adascale is a warm-up already"),
            ("schedule", "one_cycle", "schedule", "one_cycle has its own warm-up"),
        )
        for key, nothing in (("warmup_epochs", "0"), ("warmup_steps", "null"))
    ),
    Contradiction(
        key="warmup_steps",
        applies=bool,
        other_key="warmup_epochs",
        other_applies=bool,
        reason="both say how long the rate rises",
        remedy="keep one of the two",
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
