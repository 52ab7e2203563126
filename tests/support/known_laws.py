"""Timings drawn from known laws of a step's time, to hold fits against the truth (docs/formulas.md §4).

An *identifying* design: 1, 2, 4 and 8 workers, five batches a worker, five seeds, timings that scatter by 5 %, and a
law whose every part matters everywhere: gamma in 1.2–3, T_sync over T_grad in 0.3–3 wherever there is more than one
worker. *Any other* law has an allreduce between a hundredth and thirty times the computation, and any overlap.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from scalestudy.experiments.analysis.laws.step_terms import (
    COEFFICIENTS,
    OVERLAPS,
    Place,
    Vector,
    features_of,
    parts,
    step,
)
from tests.support.step_worlds import between
from tests.support.trials import Law

WORKERS = (1, 2, 4, 8)
SHARES = (32, 64, 128, 256, 512)
SEEDS, NOISE = 5, 0.05
PER_EXAMPLE = 1e-5
SYNC_SHARES = (0.3, 3.0)


@dataclass(frozen=True, kw_only=True)
class Constants:
    """The constants of a step's time: seconds, beta_c and delay_m of an example; gamma from 1 to 10.

    num_gpus, per_worker_batch and nodes of the methods may be arrays (n,); the result then is one.
    """

    alpha_c: float = 0.0
    beta_c: float = 0.0
    delay_c: float = 0.0
    delay_m: float = 0.0
    launch: float = 0.0
    ring: float = 0.0
    levels: float = 0.0
    linear: float = 0.0
    node_launch: float = 0.0
    node_ring: float = 0.0
    node_levels: float = 0.0
    node_linear: float = 0.0
    gamma: float = OVERLAPS[0]

    @property
    def coefficients(self) -> Vector:
        """All but gamma (c,)."""
        return np.array([getattr(self, name) for name in COEFFICIENTS])

    def gradient_seconds(self, per_worker_batch: ArrayLike) -> Vector:
        """Return T_grad of a worker that is not delayed."""
        return np.asarray(self.alpha_c + self.beta_c * np.asarray(per_worker_batch, float))

    def sync_seconds(self, num_gpus: ArrayLike, nodes: ArrayLike = 1) -> Vector:
        """Return T_sync without overlap."""
        return parts(self.coefficients, features_of(num_gpus, 1.0, nodes))[1]

    def step_seconds(self, num_gpus: ArrayLike, per_worker_batch: ArrayLike, nodes: ArrayLike = 1) -> Vector:
        """Return T_step without T_data."""
        return step(self.coefficients, features_of(num_gpus, per_worker_batch, nodes), self.gamma)


@dataclass(frozen=True, kw_only=True)
class StepLaw(Law):
    """Synthetic trials whose steps follow a law of docs/formulas.md §4; T_sync is what the step has beyond T_grad."""

    constants: Constants
    samples: int = 61_440

    def phases(self, num_gpus: int, batch_size: int) -> dict[str, float]:
        """Seconds a step by phase, without noise."""
        gradient = float(self.constants.gradient_seconds(batch_size / num_gpus))
        step = float(self.constants.step_seconds(num_gpus, batch_size / num_gpus))
        return {
            "data": self.data,
            "forward_backward": 0.9 * gradient,
            "gradient_sync": step - gradient,
            "optimizer": 0.1 * gradient,
        }


def draw(generator: np.random.Generator, sync: tuple[float, float], overlap: tuple[float, float]) -> Constants:
    """A law with T_sync over T_grad (at 4 workers and the middle batch) and gamma in these ranges."""
    fixed = PER_EXAMPLE * between(generator, SHARES[0], SHARES[-1])
    whole = between(generator, *sync) * (fixed + PER_EXAMPLE * SHARES[len(SHARES) // 2])
    share = between(generator, 0.03, 1.0)  # what a further worker adds, over the sum of two
    alpha = whole / (1 + 2 * share)
    gamma = generator.uniform(*overlap)
    return Constants(alpha_c=fixed, beta_c=PER_EXAMPLE, launch=(1 - share) * alpha, linear=share * alpha, gamma=gamma)


def figures(law: Constants, most: int = WORKERS[-1]) -> dict[str, float]:
    """The figures of a law within a node, as `StepFigures.estimate` names them."""
    two, all_ = float(law.sync_seconds(2)), float(law.sync_seconds(most))
    each = (all_ - two) / (most - 2)
    return {"alpha_c": law.alpha_c, "beta_c": law.beta_c, "alpha_r": two, "beta_r": each, "gamma": law.gamma}


def identified_law(generator: np.random.Generator) -> Constants:
    """A law that the identifying design identifies."""
    while True:
        law = draw(generator, SYNC_SHARES, (1.2, 3.0))
        shares = [float(law.sync_seconds(k) / law.gradient_seconds(m)) for k in WORKERS if k > 1 for m in SHARES]
        if min(shares) >= SYNC_SHARES[0] and max(shares) <= SYNC_SHARES[1]:
            return law


def any_law(generator: np.random.Generator) -> Constants:
    """A law of which parts may hardly matter."""
    return draw(generator, (0.01, 30.0), (1.0, 10.0))


def timings(
    law: Constants,
    generator: np.random.Generator,
    workers: Sequence[int] = WORKERS,
    shares: Sequence[float] = SHARES,
    *,
    seeds: int = SEEDS,
    noise: float = NOISE,
) -> list[Place]:
    """Steps timed at every number of workers and batch a worker, `seeds` times, with scatter."""
    return [
        Place(
            num_gpus=count,
            per_worker_batch=share,
            seconds=tuple(float(law.step_seconds(count, share)) * np.exp(generator.normal(0, noise, seeds))),
        )
        for count in workers
        for share in shares
    ]
