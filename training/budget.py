"""How long a training is and when it is evaluated, in steps: pure functions.

A length in tokens becomes steps before the first one, by the mean tokens of an example. So rates and evaluations are
planned, every batch size sees as many examples, and no step waits for a count. Rejected: to end at the exact count,
which every step would have to sum over the workers and wait for.

A *period* is the steps from one evaluation to the next. By default it is an epoch, a pass over the training set.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction

from scalestudy.training.config import TrainConfig
from scalestudy.training.exceptions import InputError


@dataclass(frozen=True, kw_only=True)
class Budget:
    """A training of `steps` steps that is evaluated each `every` steps, on average, and after the last one."""

    steps: int
    every: Fraction  # at least 1

    def begin(self, period: int) -> int:
        """Steps that are made before a period, from 1 without end."""
        return min(math.floor((period - 1) * self.every), self.steps)

    def steps_of(self, period: int) -> int:
        """Steps of a period; 0: the training has ended before it."""
        return self.begin(period + 1) - self.begin(period)

    def cut(self, most: int | None) -> Budget:
        """The same evaluations, of a training that ends after at most so many steps; None: as it is."""
        return self if most is None else replace(self, steps=min(self.steps, most))


def budget_of(config: TrainConfig, steps_per_epoch: int, tokens_an_example: float = math.nan) -> Budget:
    """The budget of a config where a pass over the training set takes so many steps.

    tokens_an_example: of a training in tokens. `max_steps` of a training that is timed is left out: its rates are those
    of the whole training. Raises InputError for evaluations that are more frequent than steps.
    """
    if config.unit == "tokens":
        a_step = tokens_an_example * config.batch_size
        if config.period < a_step:
            raise InputError(
                f"eval_every: {config.period} tokens are fewer than the {a_step:.0f} of a step",
                "evaluate less often, or train longer or with smaller batches",
            )
        steps = math.ceil(config.length / a_step)
        return Budget(steps=steps, every=Fraction(steps * config.period, config.length))
    steps = steps_per_epoch if config.unit == "epochs" else 1
    return Budget(steps=config.length * steps, every=Fraction(config.period * steps))
