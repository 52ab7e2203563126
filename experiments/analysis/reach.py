"""Stage 8, analysis: how far the law of a step's time reaches beyond the places timed, and why no further."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments.analysis.laws.least_squares import Estimate
from experiments.analysis.laws.step_time import MEASURE, StepTimes
from experiments.analysis.laws.usl import LEAST_SIZES
from experiments.analysis.throughput import times_of

NODE_WORKERS = 8
"""Workers that one node is taken to hold where no study spanned two: the GPUs of a usual server."""
WIDEST_RATIO = 2.0
"""Upper over lower limit of a step's time from which on it is no prediction."""


@dataclass(frozen=True, kw_only=True)
class Reach:
    """The law of a step's time, and the places where it was timed.

    node_workers: taken to fit one node. within, across: numbers of workers timed on one node and across nodes.
    least_share, most_share: examples a worker. doubts: by constant that is not identified, why. unbounded: constants
    of which no upper limit is known.
    """

    times: StepTimes
    data_seconds: float
    node_workers: int
    within: tuple[int, ...]
    across: tuple[int, ...]
    least_share: float
    most_share: float
    doubts: Mapping[str, str]
    unbounded: frozenset[str]

    @classmethod
    def of(cls, part: Mapping[str, Any], node_workers: int = NODE_WORKERS) -> "Reach":
        """part: of `throughput.throughput_part`, one that is there."""
        sizes = {(point["num_gpus"], point["across_nodes"]) for point in part["points"]}
        shares = [point["batch_size"] / point["num_gpus"] for point in part["points"]]
        fitted = {name: part[name] for name in MEASURE if part[name] is not None}
        within = tuple(sorted(count for count, across in sizes if not across))
        return cls(
            times=times_of(part),
            data_seconds=part["data_seconds"]["value"] or 0.0,
            node_workers=max((*within[-1:], node_workers)),
            within=within,
            across=tuple(sorted(count for count, across in sizes if across)),
            least_share=min(shares),
            most_share=max(shares),
            doubts={name: each["why"] for name, each in fitted.items() if not each.get("identified", True)},
            unbounded=frozenset(name for name, each in fitted.items() if each["high"] is None),
        )

    @property
    def counted(self) -> tuple[int, ...]:
        """All numbers of workers timed."""
        return tuple(sorted({*self.within, *self.across}))

    def worker_counts(self, most: int) -> Iterator[int]:
        """Those timed, then doubled from the largest on; none above `most`."""
        yield from (count for count in self.counted if count <= most)
        count = 2 * self.counted[-1]
        while count <= most:
            yield count
            count *= 2

    def spans_nodes(self, num_gpus: int) -> bool:
        """Whether so many workers are taken to be on several nodes."""
        return num_gpus > (max(self.within, default=0) if self.across else self.node_workers)

    def seconds(self, num_gpus: int, examples: float) -> Estimate:
        """Of a step, all workers together taking so many examples."""
        across = self.spans_nodes(num_gpus)
        return self.times.seconds(num_gpus, examples / num_gpus, data_seconds=self.data_seconds, across_nodes=across)

    def why_not_workers(self, num_gpus: int) -> str | None:
        """Why nothing can be said of so many workers, more than were timed; None where something can."""
        spans = self.spans_nodes(num_gpus)
        if spans and not self.across:
            return (
                f"{num_gpus} workers need several nodes (one is taken to hold {self.node_workers}), and nothing was "
                f"timed across nodes; {MEASURE['alpha_n']}"
            )
        name, where = ("beta_n", "across nodes") if spans else ("beta_r", "within a node")
        several = [size for size in (self.across if spans else self.within) if size > 1]
        sizes = [*(size for size in self.counted[:1] if size == 1), *several]  # one worker sums nothing, wherever it is
        if len(sizes) < LEAST_SIZES:
            timed = f"only {_listed(several)} workers were" if several else "no several workers were"
            more = f"time steps {where} with {LEAST_SIZES} numbers of workers or more, 1 among them"
            return f"{timed} timed {where}, too few numbers to go beyond them; {more}"
        if name in self.unbounded:
            return f"what each further worker takes is not known: {self.doubts[name]}"
        return None

    def why_not_step(self, num_gpus: int, batch_size: int, examples: float) -> str | None:
        """Why the time of a step is no prediction; None where it is one, or was timed. examples: of a step, the mean,
        below the batch size where an epoch ends in a smaller batch."""
        seconds, share = self.seconds(num_gpus, examples), batch_size / num_gpus
        if share < self.least_share and "alpha_c" in self.doubts:
            return (
                f"{share:g} examples a worker are fewer than the {self.least_share:g} timed, and the fixed cost of a "
                f"step is not known; {MEASURE['alpha_c']}"
            )
        if num_gpus in self.counted:
            return None
        if seconds.low is None or seconds.high is None:
            return f"the time of a step has no interval: {seconds.why}"
        if seconds.high > WIDEST_RATIO * seconds.low:
            name = self._least_known(num_gpus, examples)
            return (
                f"a step may take anything from {seconds.low:.3g} to {seconds.high:.3g} s, for {name} is not known "
                f"well enough; {MEASURE[name]}"
            )
        return None

    def _least_known(self, num_gpus: int, examples: float) -> str:
        """The constant that adds most to the uncertainty of a step's time."""
        slopes = self.times.constants.slopes(num_gpus, examples / num_gpus, self.spans_nodes(num_gpus))
        errors = dict(zip(self.times.names, np.sqrt(np.diag(self.times.covariance)), strict=True))
        return max(errors, key=lambda name: abs(slopes[name]) * float(errors[name]))


def _listed(sizes: Sequence[int]) -> str:
    """`1, 2 and 4`."""
    names = [str(size) for size in sizes]
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]
