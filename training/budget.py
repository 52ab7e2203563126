"""How long a training is and when it is evaluated, in steps: pure functions.

A length in tokens becomes steps before the first one, by the mean tokens of an example. So rates and evaluations are
planned, every batch size sees as many examples, and no step waits for a count. Rejected: to end at the exact count,
which every step would have to sum over the workers and wait for.

A *period* is the steps from one evaluation to the next. By default it is an epoch, a pass over the training set.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from scalestudy.training.config import TrainConfig
from scalestudy.training.exceptions import InputError
from scalestudy.training.records import EpochRecord

MARGIN = 1.05  # of further steps, which may be faster than those before
FEWEST = 10  # further steps after their warm-up; a period with less than five such steps has no rate
MOST_PERIODS = 3  # of further steps
MOST_TIMES = 1_000  # as many further steps as were planned


@dataclass(frozen=True, kw_only=True)
class Budget:
    """A training of `steps` steps that is evaluated each `every` steps, on average, and after the last one."""

    steps: int
    every: Fraction  # at least 1
    more: tuple[int, ...] = ()
    """Steps of further periods, part of `steps`: a timed training that was too short gets them."""

    @property
    def planned(self) -> int:
        """Steps before those of `more`."""
        return self.steps - sum(self.more)

    def begin(self, period: int) -> int:
        """Return how many steps come before a period. Periods count from 1, without end."""
        steps, periods = self.every.as_integer_ratio()  # whole numbers, because each step asks
        planned = min((period - 1) * steps // periods, self.planned)
        if not self.more:
            return planned
        further = max(0, period - 1 - math.ceil(self.planned / self.every))  # periods of `more` before it
        return planned + sum(self.more[:further])

    def steps_of(self, period: int) -> int:
        """Return the steps of a period; 0 if the training has ended before it."""
        return self.begin(period + 1) - self.begin(period)

    def cut(self, most: int | None) -> Budget:
        """Return the budget with the same evaluations that ends after at most `most` steps; None: as it is."""
        return self if most is None else replace(self, steps=min(self.steps, most))

    def with_more(self, steps: int) -> Budget:
        """Return the budget with a further period of `steps` steps."""
        return replace(self, steps=self.steps + steps, more=(*self.more, steps))

    def timed_seconds(self, records: Sequence[EpochRecord], warm_up_steps: int) -> float:
        """Return the seconds of the steps after the warm-up, at the rates of their periods; 0 without a rate.

        Each period of `more` starts with another warm-up.
        """
        cold = [0, *itertools.accumulate(self.more, initial=self.planned)]  # steps before each warm-up
        seconds = 0.0
        for period, record in enumerate(records, start=1):
            begin = self.begin(period)
            warm = max(start for start in cold if start <= begin) + warm_up_steps
            timed = min(record.steps, max(begin + record.steps - warm, 0))
            if record.samples_per_second:
                seconds += timed * record.samples / record.steps / record.samples_per_second
        return seconds

    def further_steps(self, records: Sequence[EpochRecord], warm_up_steps: int, least_seconds: float) -> int:
        """Return the steps to add, with a warm-up, after all steps are made; 0 once `least_seconds` were timed.

        Every rank finds the same number, as the records are the same. It is bounded, whatever the clock has said.
        """
        rates = [record for record in records if record.samples_per_second]
        lacking = least_seconds - self.timed_seconds(records, warm_up_steps)
        if lacking <= 0 or not rates or len(self.more) == MOST_PERIODS:
            return 0
        last = rates[-1]
        wanted = MARGIN * lacking * (last.samples_per_second or 0.0) * last.steps / last.samples
        return math.ceil(min(warm_up_steps + max(wanted, FEWEST), MOST_TIMES * self.planned - sum(self.more)))


def budget_of(config: TrainConfig, steps_per_epoch: int, tokens_an_example: float = math.nan) -> Budget:
    """Return the budget of a config, given the steps of a pass over the training set.

    tokens_an_example: needed by a training in tokens. A timed training ignores `max_steps`: its rates are the whole
    training's. Raises InputError for evaluations that are more frequent than steps.
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
