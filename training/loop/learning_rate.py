"""The learning rate of each update, from rule, warm-up and schedule (docs/formulas.md §2).

S = batch_size / base_batch_size. A rate is a pure function of the progress: the number of updates made, or with
AdaScale the sum of their gains. So a training that resumes at any step continues with the same rates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scalestudy.training.batches import steps_per_epoch as count_steps
from scalestudy.training.config import TrainConfig
from scalestudy.training.exceptions import InputError
from scalestudy.training.loop.schedules import Schedule, make_schedule

LEAST_TRACE_COV = 1e-6  # AdaScale's gain needs some variance
MOST_LOOKED_AT = 20_000  # rates of a training, for its outline
LOW = 1e-3  # of the peak: what trains hardly anything
MEMORY_SCALE = 1000.0  # AdaScale's averages lose a share S / 1000 of their weight each step


def scaled_rate(rule: str, learning_rate: float, scale: float) -> float:
    """Return the rule's rate for the nominal rate at S = `scale`. AdaScale's factor, its gain, is applied later."""
    factors = {"none": 1.0, "linear": scale, "sqrt": math.sqrt(scale), "adascale": 1.0}
    return learning_rate * factors[rule]


def gain(sq_norm: float, trace_cov: float, base_batch_size: int, scale: float) -> float:
    """Return AdaScale's gain r (Johnson et al. 2020, arXiv 2007.05105), between 1 and S, from |G|² and tr Σ.

    r = (σ² + μ²) / (σ²/S + μ²) with σ² = tr Σ / B0 and μ² = |G|². It is 1 without noise, and S with noise alone.
    """
    variance = max(trace_cov, LEAST_TRACE_COV) / base_batch_size
    square = max(sq_norm, 0.0)
    exact = (variance + square) / (variance / scale + square)
    return min(max(exact, min(1.0, scale)), max(1.0, scale))  # rounding may leave the range by a bit


class GainEstimator:
    """AdaScale's gain from moving averages of |G|² and tr Σ, whose noisy estimates arrive once a step.

    Each step keeps max(0, 1 - S/1000) of the earlier estimates' weight. The averages are weighted means of all
    estimates. Rejected: to start from the first estimate, which would dominate some 1000/S steps.
    """

    def __init__(self, base_batch_size: int, scale: float) -> None:
        self.base_batch_size = base_batch_size
        self.scale = scale
        self._keep = max(0.0, 1 - scale / MEMORY_SCALE)
        self._weight = self._sq_norm = self._trace_cov = 0.0
        self._has_measured = False

    @property
    def gain(self) -> float:
        """r from the estimates so far; 1 if none was finite. Raises ValueError before the first."""
        if not self._has_measured:
            raise InputError(
                "lr_rule: adascale has no estimate of the gradient's noise yet",
                "train with the hook scalestudy.training.loop.noise_scale.AdaScale",
            )
        if not self._weight:
            return 1.0
        return gain(self._sq_norm / self._weight, self._trace_cov / self._weight, self.base_batch_size, self.scale)

    def update(self, sq_norm: float, trace_cov: float) -> None:
        """Add one step's estimates; skip them if they are not finite."""
        self._has_measured = True
        if math.isfinite(sq_norm) and math.isfinite(trace_cov):  # a square may overflow where its norm does not
            self._weight = self._keep * self._weight + 1
            self._sq_norm = self._keep * self._sq_norm + sq_norm
            self._trace_cov = self._keep * self._trace_cov + trace_cov

    def state(self) -> dict[str, float]:
        """Return plain numbers for a checkpoint."""
        return {"weight": self._weight, "sq_norm": self._sq_norm, "trace_cov": self._trace_cov}

    def load_state(self, state: Mapping[str, float]) -> None:
        """Continue from another estimator's `state`."""
        self._weight, self._sq_norm, self._trace_cov = state["weight"], state["sq_norm"], state["trace_cov"]
        self._has_measured = self._weight > 0


@dataclass(frozen=True, kw_only=True)
class RatePlan:
    """The rate at any progress, before AdaScale's gain."""

    first: float | None  # rate of the warm-up's first update; None: 1/warm_up of the peak
    peak: float  # rate after the warm-up, with which the schedule was made
    warm_up: int  # updates over which the rate rises; 0: none
    steps: int  # progress at the training's end
    schedule: Schedule  # of what comes after the warm-up
    epoch: int | None = None  # progress of an epoch, where the schedule counts these; None: it counts updates

    def at(self, progress: float) -> float:
        """Return the rate of the update that follows `progress`."""
        if progress < self.warm_up:
            if self.first is None:
                return self.peak * (progress + 1) / self.warm_up
            return self.first + (self.peak - self.first) * progress / self.warm_up
        since, steps = progress - self.warm_up, self.steps - self.warm_up
        if self.epoch:  # one that the warm-up ends in counts as the first
            skipped = self.warm_up // self.epoch
            since, steps = progress // self.epoch - skipped, math.ceil(self.steps / self.epoch) - skipped
        return self.schedule(min(since, max(steps, 1)), max(steps, 1))  # a timed training may go on beyond its end


@dataclass(frozen=True, kw_only=True)
class Outline:
    """The rates of a whole training in a few numbers, before AdaScale's gain."""

    rates: Mapping[str, float]  # at the start, the end of the warm-up, a quarter, half, three quarters, the end
    peak: float  # the largest of all
    low_share: float  # of the updates whose rate is under LOW of the peak


def outline(plan: RatePlan) -> Outline:
    """Return a plan's outline, from all of its rates; of more than MOST_LOOKED_AT, from evenly spaced ones.

    Raises InputError for a schedule that gives no rate, or none above 0.
    """
    places = {
        "the start": 0,
        "the warm-up's end": plan.warm_up,
        "1/4": plan.steps // 4,
        "1/2": plan.steps // 2,
        "3/4": 3 * plan.steps // 4,
        "the end": plan.steps - 1,
    }
    if not 0 < plan.warm_up < plan.steps:
        del places["the warm-up's end"]
    apart = math.ceil(plan.steps / MOST_LOOKED_AT)
    looked_at = {step: plan.at(step) for step in sorted({*range(0, plan.steps, apart), *places.values()})}
    peak = max(looked_at.values())
    if not peak:
        raise InputError("schedule: every rate of the training is 0", "correct the schedule or its args")
    low = sum(rate < LOW * peak for rate in looked_at.values()) / len(looked_at)
    return Outline(rates={word: looked_at[step] for word, step in places.items()}, peak=peak, low_share=low)


class LearningRate:
    """The rate of each update: the loop asks `rate` before it, and calls `advance` after it."""

    def __init__(self, plan: RatePlan, estimator: GainEstimator | None = None) -> None:
        self.plan = plan
        self.estimator = estimator  # AdaScale's, unless S is 1; None: the gain is always 1
        self.progress = 0.0

    @property
    def gain(self) -> float:
        """The number of updates at the base batch size that the next update counts for."""
        return 1.0 if self.estimator is None else self.estimator.gain

    def rate(self) -> float:
        """Return the effective learning rate of the next update."""
        return self.gain * self.plan.at(self.progress)

    def advance(self) -> None:
        """Count the update that was just made."""
        self.progress += self.gain

    def state(self) -> dict[str, Any]:
        """Return plain data for a checkpoint, equal on every rank."""
        return {"progress": self.progress, "estimator": self.estimator and self.estimator.state()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from the `state` of a training of the same config."""
        self.progress = state["progress"]
        if self.estimator is not None:
            self.estimator.load_state(state["estimator"])


def make_rate(
    config: TrainConfig, samples: int | None, steps: int, tokens_an_example: float = math.nan
) -> LearningRate:
    """Make the config's rates for `steps` updates, where an epoch is `samples` examples; None: a stream, without any.

    Warm-up: with `linear` and S > 1 the rate rises from the nominal rate to S times it (Goyal et al. 2017, arXiv
    1706.02677): update i (from 0) of W has η0 + (S - 1)·η0·i/W. Otherwise it rises from 0: update i has (i + 1)/W of
    the rule's rate. The schedule covers the updates after the warm-up. AdaScale's schedules cover the progress that
    as many examples would make at the base batch size. Its gain seldom reaches S, so they may end early. Raises
    InputError for a schedule that can't be called, and for one of epochs where the data have none.
    """
    scale = config.batch_size / config.base_batch_size
    peak = scaled_rate(config.lr_rule, config.learning_rate, scale)
    adascale = config.lr_rule == "adascale"
    if config.schedule.per == "epoch" and samples is None:
        raise InputError(
            f"schedule.per: {config.data!r} is an iterable data set, which has no epochs", "set schedule.per to step"
        )
    samples = steps * config.batch_size if samples is None else samples
    an_epoch, base_steps = (count_steps(samples, size) for size in (config.batch_size, config.base_batch_size))
    plan = RatePlan(
        first=config.learning_rate if config.lr_rule == "linear" and scale > 1 else None,
        peak=peak,
        warm_up=warm_up_updates(config, an_epoch, steps, tokens_an_example),
        steps=round(steps * base_steps / an_epoch) if adascale else steps,
        schedule=make_schedule(config.schedule, peak),
        epoch=(base_steps if adascale else an_epoch) if config.schedule.per == "epoch" else None,
    )
    return LearningRate(plan, GainEstimator(config.base_batch_size, scale) if adascale and scale != 1 else None)


def warm_up_updates(config: TrainConfig, an_epoch: int, steps: int, tokens_an_example: float = math.nan) -> int:
    """Return W, the nearest whole number of updates; at least 1 if there is any warm-up.

    an_epoch: updates of an epoch. steps: of the training. tokens_an_example: needed by a warm-up in tokens.
    """
    if config.warmup_steps:
        return config.warmup_steps
    if config.warmup_tokens:
        return max(round(config.warmup_tokens / (tokens_an_example * config.batch_size)), 1)
    updates = config.warmup_share * steps if config.warmup_share else config.warmup_epochs * an_epoch
    return max(round(updates), 1) if updates else 0
