"""The time of a training step with K workers of m examples each, on M nodes (docs/formulas.md §4).

T_step = (T_grad^gamma + T_sync^gamma)^(1/gamma) + T_data, gamma 1 for no overlap and 10 for a full one (Pollux, Qiao et
al. 2021, arXiv 2008.12260). T_data, the exposed wait for data, is measured, not fitted.

T_grad = alpha_c + beta_c · m + (H(K) − 1) · (delay_c + delay_m · m), H(K) = 1 + 1/2 + … + 1/K: the slowest of K workers
whose delays are exponential. T_sync is a sum of terms over the k workers of a node, and of such terms over the nodes:

    launch   1 from two on    a cost as soon as there are several
    ring     (k − 1)/k        bytes over each link of a ring
    levels   log2 k           levels of a tree, or of halving and doubling
    linear   k − 1            one after the other, or the hops of a ring

(Thakur, Rabenseifner and Gropp 2005.) All coefficients are zero or above, as in Ernest (Venkataraman et al. 2016,
NSDI).

Shapes: n places, c coefficients, l laws.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

Vector = NDArray[np.float64]

OVERLAPS = (1.0, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0)
"""The gammas that are tried, from no overlap to a full one."""
LEAST_SECONDS = 1e-15

COMPUTE = ("alpha_c", "beta_c", "delay_c", "delay_m")
WITHIN = ("launch", "ring", "levels", "linear")
ACROSS = ("node_launch", "node_ring", "node_levels", "node_linear")
COEFFICIENTS = (*COMPUTE, *WITHIN, *ACROSS)


@dataclass(frozen=True, kw_only=True)
class StepLaws:
    """Laws of a step's time, each of them a set of coefficients in seconds and a gamma from 1 to 10."""

    coefficients: Vector  # (l, c)
    gamma: Vector  # (l,)

    def gradient_seconds(self, per_worker_batch: float) -> Vector:
        """Return T_grad of a worker that is not delayed (l,)."""
        return np.asarray(self.coefficients[:, 0] + self.coefficients[:, 1] * per_worker_batch)

    def sync_seconds(self, num_gpus: int, nodes: int = 1) -> Vector:
        """Return T_sync without overlap (l,)."""
        return parts(self.coefficients, features_of(num_gpus, 1.0, nodes))[1]

    def step_seconds(self, features: Vector) -> Vector:
        """Return T_step without T_data (l,), at a place (c,); or (l, n), at places (c, n)."""
        return step(self.coefficients, features, self.gamma if features.ndim == 1 else self.gamma[:, None])


def features_of(num_gpus: ArrayLike, per_worker_batch: ArrayLike, nodes: ArrayLike) -> Vector:
    """Return what each coefficient multiplies: (c,), or (c, n) for n places."""
    count, share, many = np.broadcast_arrays(*(np.asarray(each, float) for each in (num_gpus, per_worker_batch, nodes)))
    behind = special.digamma(count + 1) + np.euler_gamma - 1  # H(K) − 1
    sync = [
        term for k in (np.ceil(count / many), many) for term in ((k > 1).astype(float), (k - 1) / k, np.log2(k), k - 1)
    ]
    return np.stack([np.ones_like(count), share, behind, behind * share, *sync])


def step(coefficients: Vector, features: Vector, gamma: ArrayLike) -> Vector:
    """Return (T_grad^gamma + T_sync^gamma)^(1/gamma), without overflow. coefficients: (c,) or (l, c)."""
    gradient, sync = parts(coefficients, features)
    larger = np.maximum(np.maximum(gradient, sync), LEAST_SECONDS)
    power = np.asarray(gamma)
    return np.asarray(larger * (1 + (np.minimum(gradient, sync) / larger) ** power) ** (1 / power))


def parts(coefficients: Vector, features: Vector) -> tuple[Vector, Vector]:
    """Return T_grad and T_sync."""
    compute = len(COMPUTE)
    return (
        np.asarray(coefficients[..., :compute] @ features[:compute]),
        np.asarray(coefficients[..., compute:] @ features[compute:]),
    )


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where steps were timed."""

    num_gpus: int
    per_worker_batch: float
    seconds: tuple[float, ...]  # of a step, a value a repeat
    data_seconds: float = 0.0  # the part of them that waited for data
    nodes: int = 1  # on how many the workers were

    @property
    def on_a_node(self) -> int:
        """Workers on the node that has most."""
        return math.ceil(self.num_gpus / self.nodes)


def told_apart(places: Sequence[Place]) -> tuple[str, ...]:
    """Return the coefficients that the places can tell apart."""
    names: list[str] = ["alpha_c", "beta_c"]
    if len({place.num_gpus for place in places} - {1}) > 1:
        names += ["delay_c", "delay_m"]
    for terms, counts in zip((WITHIN, ACROSS), counts_of(places), strict=True):
        names += terms if len(counts) > 1 else terms[: len(counts)]  # at one count all terms are the same
    return tuple(names)


def counts_of(places: Sequence[Place]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the numbers of workers of a node, and numbers of nodes, above 1."""
    within, across = {place.on_a_node for place in places}, {place.nodes for place in places}
    return tuple(sorted(within - {1})), tuple(sorted(across - {1}))
