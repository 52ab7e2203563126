"""How long a training is and when it is evaluated, in steps: pure functions.

A *period* is the steps from one evaluation to the next. By default it is an epoch, a pass over the training set.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from scalestudy.training.config import TrainKnobs


@dataclass(frozen=True, kw_only=True)
class Budget:
    """A training of `steps` steps that is evaluated each `every` steps, and after the last one."""

    steps: int
    every: int

    def begin(self, period: int) -> int:
        """Steps that are made before a period, from 1 without end."""
        return min((period - 1) * self.every, self.steps)

    def steps_of(self, period: int) -> int:
        """Steps of a period; 0: the training has ended before it."""
        return self.begin(period + 1) - self.begin(period)

    def cut(self, most: int | None) -> Budget:
        """The same evaluations, of a training that ends after at most so many steps; None: as it is."""
        return self if most is None else replace(self, steps=min(self.steps, most))


def budget_of(config: TrainKnobs, steps_per_epoch: int) -> Budget:
    """The budget of a config where a pass over the training set takes so many steps.

    `max_steps` of a training that is timed is left out: its rates are those of the whole training.
    """
    steps = steps_per_epoch if config.unit == "epochs" else 1
    return Budget(steps=config.length * steps, every=config.period * steps)
