"""What a remedy is predicted to bring, by the law of a step's time (docs/formulas.md §4, §8).

A larger batch makes more examples a second, and mostly needs more of them. So if the steps to the target are known,
remedies are judged by the time to it, T(K, B) = S(B) · T_iter(K, B/K).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from scalestudy.experiments.analysis.answers.efficiency import Tuning
from scalestudy.experiments.analysis.answers.posterior import Posterior, Timed, Told, steps_untried, time_of_steps
from scalestudy.experiments.analysis.answers.predictions import WORTH_TELLING, gain_text
from scalestudy.experiments.analysis.laws.step_figures import why_no_law
from scalestudy.experiments.analysis.laws.step_terms import LEAST_SECONDS, Vector, features_of
from scalestudy.experiments.analysis.measures.cells import combination_of
from scalestudy.experiments.analysis.measures.parts import Row


@dataclass(frozen=True, kw_only=True)
class RowLaw:
    """The seconds of a step at and beside a timing row."""

    timed: Timed
    across_nodes: bool  # whether the row's workers were on several nodes

    @classmethod
    def of(cls, posterior: Posterior | None, row: Row) -> "RowLaw | None":
        """Return the row's law; None without a posterior, where its places can't show one, or the timings reject it."""
        timed = posterior.timed(combination_of(row["params"])) if posterior is not None else None
        if timed is None or not timed.steps.lawful or timed.found.misfit or why_no_law(timed.found.lawful):
            return None
        return cls(timed=timed, across_nodes=bool(row.get("across_nodes")))

    @property
    def largest_share(self) -> float:
        """The most examples a worker, as timed."""
        return max(size.batch_size / size.num_gpus for size in self.timed.steps.lawful)

    def time_to_target(self, steps: "Steps", num_gpus: int, batch_size: int) -> Told | None:
        """Return the seconds to a target at the best rate, None if the steps are not known."""
        count = steps.at(batch_size)
        if count is None:
            return None
        return time_of_steps(count, self.timed, batch_size, num_gpus, across_nodes=self.across_nodes)

    def gain(self, num_gpus: int, batch_size: int, base_num_gpus: int, base_batch_size: int) -> Told:
        """Return the examples a second over those of another place."""
        step, base = self._step(num_gpus, batch_size), self._step(base_num_gpus, base_batch_size)
        share, faster = batch_size / base_batch_size, base.over(step)
        return Told(value=share * faster.value, logs=math.log(share) + faster.logs)

    def _step(self, num_gpus: int, batch_size: int) -> Told:
        draws = self.timed.draws(num_gpus, batch_size, across_nodes=self.across_nodes)
        return Told(value=self.timed.seconds(num_gpus, batch_size, across_nodes=self.across_nodes), logs=draws)

    def gradient_seconds(self, per_worker_batch: float) -> float:
        """Return T_grad."""
        return float(np.median(self.timed.found.laws.gradient_seconds(per_worker_batch)))

    def sync_share(self, num_gpus: int, batch_size: float) -> float:
        """Return the exposed part of summing gradients, as a share of a step."""
        share, laws = batch_size / num_gpus, self.timed.found.laws
        nodes = self.timed.nodes(num_gpus, across_nodes=self.across_nodes)
        seconds = laws.step_seconds(features_of(num_gpus, share, nodes))
        return float(np.median((seconds - laws.gradient_seconds(share)) / (seconds + self.timed.data_seconds)))

    def fixed_shares(self, per_worker_batch: float) -> Vector:
        """Draw alpha_c as a share of T_grad (l,)."""
        gradient = self.timed.found.laws.gradient_seconds(per_worker_batch)
        return self.timed.found.laws.coefficients[:, 0] / np.maximum(gradient, LEAST_SECONDS)


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Steps to a study's target by batch size, each at its best rate, for one combination of settings."""

    target: float
    tried: Mapping[int, Told | None]  # None for a batch size that was tried without success
    untried: Callable[[int], Told] | None  # by the law of batch sizes; None if it is not identified

    @classmethod
    def of(cls, posterior: Posterior, tuning: Tuning) -> "Steps | None":
        """Return the steps of a combination, or None if no batch size reached a target."""
        learnt = posterior.learnt(tuning.combination.of, tuning.target) if tuning.target is not None else None
        if learnt is None or tuning.target is None:
            return None
        tried: dict[int, Told | None] = {}
        for point in tuning.points:
            size, best = point.measured.batch_size, point.measured.best
            tried[size] = None
            if best is not None and point.estimate is not None:
                tried[size] = learnt.beside(size, best.rate, tuning.num_gpus[0])
        law = tuning.law if tuning.law is not None and tuning.law.identified else None
        return cls(target=tuning.target, tried=tried, untried=None if law is None else partial(steps_untried, law))

    def missed(self, batch_size: int) -> bool:
        """Whether trainings with this batch size missed the target, or with a smaller one above all that reached it."""
        most = max((size for size, steps in self.tried.items() if steps is not None), default=0)
        missed = [size for size, steps in self.tried.items() if steps is None]
        return any(size == batch_size or most < size < batch_size for size in missed)

    def at(self, batch_size: int) -> Told | None:
        """Return the steps with this batch size. None if they are unknown, or it missed the target."""
        if batch_size in self.tried or self.missed(batch_size) or self.untried is None:
            return self.tried.get(batch_size)
        return self.untried(batch_size)


def raise_batch(
    law: RowLaw,
    row: Row,
    base: Row,
    enough: Callable[[RowLaw, int, float], bool],
    steps: Steps | None = None,
    base_seconds: float | None = None,
) -> str | None:
    """Say `Raise the batch to 512 (256 a worker): predicted 1.6× (1.3 to 1.9) as fast to 0.9 as the recommended cell.`

    If steps to the target are known, it names the doubling of the row's batch that reaches it soonest, or says that
    none is sooner than the row's own batch or than the recommended cell, whose timing row is the base and whose time to
    the target is base_seconds (None: not known). Else it names the smallest that is enough, or the largest whose share
    a worker was timed, with its gain in examples a second. It never names one that missed the target. None if no such
    batch is predicted to bring much.
    """
    workers, now = row["params"]["num_gpus"], row["params"]["batch_size"]
    base_workers, base_batch = base["params"]["num_gpus"], base["params"]["batch_size"]
    # doublings for which the training set has examples, and a worker's share was timed
    batches = [
        batch
        for batch in (now * 2**doubling for doubling in range(1, 64))
        if batch <= (row.get("examples") or math.inf) and batch / workers <= law.largest_share
    ]
    if not batches:
        return None
    fewer = " Use fewer workers." if base_workers > 1 else " Stay with one worker." if workers > 1 else ""
    raised = "Raise the batch" if workers == base_workers else f"With {workers} workers raise the batch"
    if steps is not None:
        batches = [batch for batch in batches if not steps.missed(batch)]
        if not batches:
            return f"A larger batch does not help: those tried have not reached {steps.target:g}.{fewer}"
        base_time = law.time_to_target(steps, base_workers, base_batch)
        if base_time is not None and base_seconds is not None:
            base_time = replace(base_time, value=base_seconds)
        times = {
            batch: time
            for batch in batches
            if base_time is not None and (time := law.time_to_target(steps, workers, batch)) is not None
        }
        if base_time is not None and times:
            best = min(times, key=lambda batch: times[batch].value)
            soonest, own = times[best], law.time_to_target(steps, workers, now)
            gain = base_time.over(soonest)
            if gain.value < WORTH_TELLING or (own is not None and soonest.value >= own.value):
                than = " than the recommended cell" if gain.value < WORTH_TELLING else ""
                return (
                    f"A larger batch does not help: it is predicted to reach {steps.target:g} no sooner{than}, "
                    f"needing more examples.{fewer}"
                )
            return (
                f"{raised} to {best} ({best / workers:g} a worker): predicted {gain_text(gain)} as fast to "
                f"{steps.target:g} as the recommended cell."
            )
    chosen = next((batch for batch in batches if enough(law, workers, batch)), batches[-1])
    faster = law.gain(workers, chosen, base_workers, base_batch)
    if faster.value < WORTH_TELLING:
        return None
    return (
        f"{raised} to {chosen} ({chosen / workers:g} a worker): predicted {gain_text(faster)} the "
        "examples a second of the recommended cell; a target may take more of them."
    )
