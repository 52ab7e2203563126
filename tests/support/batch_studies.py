"""Synthetic trainings whose steps to a target follow a known law of batch sizes and rates, seeds scattering around it.

The metric rises in proportion to the steps, through the target at the true number of them, so that interpolation
between epochs is exact. num_gpus changes nothing but the time of a step.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scalestudy.experiments.analysis.measures.trainings import Costs
from scalestudy.experiments.plan.plan import Plan
from tests.support.trials import Law, make_trials

TARGET = 0.8


@dataclass(frozen=True, kw_only=True)
class BatchTruth:
    """S(B) = s_min (1 + b_crit/B) steps at the best rate, rate·(B/b_crit)^exponent; another rate takes
    exp(curvature·(log2 of its ratio to the best)²) times as many. noise: standard deviation of the logarithm of a
    training's steps; deviation: of what all seeds of a batch size and rate share. noise_scale: B_noise, in examples.
    """

    s_min: float = 400.0
    b_crit: float = 256.0
    rate: float = 0.4
    exponent: float = 1.0
    curvature: float = 0.15
    noise: float = 0.05
    deviation: float = 0.0
    noise_scale: float = 300.0

    def best_rate(self, batch_size: int) -> float:
        """The rate that takes the fewest steps."""
        return self.rate * (batch_size / self.b_crit) ** self.exponent

    def steps(self, batch_size: int, rate: float | None = None) -> float:
        """Steps to the target, without noise; at the best rate unless one is named."""
        off = math.log2((rate or self.best_rate(batch_size)) / self.best_rate(batch_size))
        return self.s_min * (1 + self.b_crit / batch_size) * math.exp(self.curvature * off**2)

    def costs(
        self, batch_size: int, generator: random.Random, *, octaves: Sequence[float] = (-2, -1, 0, 1, 2)
    ) -> Costs:
        """`costs_at` rates so many octaves from the best one."""
        rates = [self.best_rate(batch_size) * 2.0**octave for octave in octaves]
        return self.costs_at(batch_size, rates, generator)

    def costs_at(self, batch_size: int, rates: Sequence[float], generator: random.Random) -> Costs:
        """Steps of a batch size by rate and by each of five seeds."""
        found = {}
        for rate in rates:
            shared = math.exp(generator.gauss(0, self.deviation)) if self.deviation else 1.0
            steps = shared * self.steps(batch_size, rate)
            found[rate] = {seed: steps * math.exp(generator.gauss(0, self.noise)) for seed in range(5)}
        return found


def batch_trials(plan: Plan, truth: BatchTruth, law: Law | None = None, *, draw: int = 0, **keywords: Any) -> list[Any]:
    """A record for each trial of the plan. law: of its times; draw: another one has other noise; keywords: of
    `make_trials`. Of a metric of which less is better the values are 1 minus those of the accuracy."""
    trials = make_trials(plan, law or Law(samples=20_480), **keywords)
    for planned, trial in zip(plan.trials, trials, strict=True):
        key, less = f"test_{planned.workload['metric']}", planned.workload["metric_mode"] == "min"
        params = trial["params"]
        batch_size, rate = params["batch_size"], params["learning_rate"]
        generator = random.Random(f"{draw} {batch_size} {rate} {params['seed']}")
        whole, made = truth.steps(batch_size, rate) * math.exp(generator.gauss(0, truth.noise)), 0
        for epoch in trial["epochs"]:
            made += epoch["steps"]
            if epoch[key] is not None:
                value = min(0.1 + (TARGET - 0.1) * made / whole, 0.99)
                epoch[key] = 1 - value if less else value
            squared = generator.gauss(1.0, 0.3)
            epoch["grad_sq_norm"], epoch["grad_trace_cov"] = squared, truth.noise_scale * generator.gauss(1.0, 0.1)
    return trials
