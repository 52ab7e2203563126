"""Worlds of step times whose truth is known: compute, and one way in which n workers wait for one another.

| kind | what a step takes beside its compute |
|---|---|
| compute | nothing |
| ring | bytes over each link, (n − 1)/n, and a small latency a hop, n − 1 |
| tree | a whole message a level, log2 n |
| log-latency | halving and doubling: a latency a level, log2 n, and bytes, (n − 1)/n |
| spine | a ring within each node, and over slower links a ring of the nodes |
| stragglers | the slowest of n exponential delays, H(n) − 1 times their mean, a share of the compute; and a ring |
| launch | a constant cost as soon as there are several workers |

Ring, tree, halving and doubling: Thakur, Rabenseifner and Gropp 2005.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

PER_EXAMPLE_SECONDS = (1e-5, 1e-3)
FIXED_EXAMPLES = (8, 128)
"""The fixed part of a step's compute takes as long as so many examples."""
WAIT_SHARES = (0.01, 1.0)
"""What 8 workers of one node wait, as a share of their compute of 16 examples each."""
SECOND_OVER_FIRST = {"ring": (1e-4, 3e-3), "log-latency": (0.1, 10.0), "spine": (1.0, 8.0), "stragglers": (0.1, 10.0)}
"""Coefficient of a kind's second wait over that of its first."""
KINDS = ("compute", "ring", "tree", "log-latency", "spine", "stragglers", "launch")


@dataclass(frozen=True, kw_only=True)
class StepWorld:
    """A law of a step's time. Seconds: `fixed` a step, `per_example` of a worker, `first` and `second` of the waits.

    The first wait of stragglers is a share of the compute.
    """

    kind: str
    fixed: float
    per_example: float
    first: float
    second: float
    workers_a_node: int

    @classmethod
    def draw(cls, generator: np.random.Generator, kind: str | None = None, *, workers_a_node: int = 8) -> "StepWorld":
        """A world of a kind, of any if None. Its workers wait from hardly at all to about as long as they compute."""
        kind = kind or str(generator.choice(KINDS))
        per_example = between(generator, *PER_EXAMPLE_SECONDS)
        fixed = per_example * between(generator, *FIXED_EXAMPLES)
        compute = fixed + 16 * per_example
        ratio = between(generator, *SECOND_OVER_FIRST[kind]) if kind in SECOND_OVER_FIRST else 0.0
        one, other = _waits(kind, 8, 8, 1)
        first = between(generator, *WAIT_SHARES) * compute / (one + ratio * other) if kind != "compute" else 0.0
        return cls(
            kind=kind,
            fixed=fixed,
            per_example=per_example,
            first=first / compute if kind == "stragglers" else first,
            second=ratio * first,
            workers_a_node=workers_a_node,
        )

    def nodes(self, num_gpus: int) -> int:
        """On how many nodes so many workers are."""
        return math.ceil(num_gpus / self.workers_a_node)

    def features(self, num_gpus: int, batch_size: int) -> tuple[float, ...]:
        """What each of the law's coefficients multiplies, whatever their values."""
        share, nodes = batch_size / num_gpus, self.nodes(num_gpus)
        one, other = _waits(self.kind, num_gpus, min(num_gpus, self.workers_a_node), nodes)
        return (1.0, share, one, share * one, other) if self.kind == "stragglers" else (1.0, share, one, other)

    def seconds(self, num_gpus: int, batch_size: int) -> float:
        """Seconds of a step, without noise."""
        compute, waits = (self.fixed, self.per_example), (self.first, self.second)
        if self.kind == "stragglers":
            waits = (self.first * self.fixed, self.first * self.per_example, self.second)
        return float(np.dot((*compute, *waits), self.features(num_gpus, batch_size)))

    def timings(
        self, generator: np.random.Generator, num_gpus: int, batch_size: int, *, repeats: int, noise: float
    ) -> NDArray[np.float64]:
        """Seconds of a step, timed so often (repeats,), whose logarithms scatter by the noise around the truth."""
        return self.seconds(num_gpus, batch_size) * np.exp(generator.normal(0, noise, repeats))


def _waits(kind: str, workers: int, of_a_node: int, nodes: int) -> tuple[float, float]:
    """What the coefficients of a kind's two waits multiply. of_a_node: workers on one node."""
    ring, levels = (workers - 1) / workers, math.log2(workers)
    waits = {
        "compute": (0.0, 0.0),
        "ring": (ring, workers - 1.0),
        "tree": (levels, 0.0),
        "log-latency": (levels, ring),
        "spine": ((of_a_node - 1) / of_a_node, (nodes - 1) / nodes),
        "stragglers": (sum(1 / rank for rank in range(2, workers + 1)), ring),
        "launch": (float(workers > 1), 0.0),
    }
    return waits[kind]


def between(generator: np.random.Generator, low: float, high: float) -> float:
    """A number drawn evenly in its logarithm."""
    return math.exp(generator.uniform(math.log(low), math.log(high)))
