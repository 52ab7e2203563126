"""Beyond what was measured, and where that ends.

T(K, B) = S(B) · T_iter(K, B/K) (docs/formulas.md §4): steps to the target do not depend on the workers, the time of a
step does not depend on the target. Predictions end where something that they need was not measured.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scalestudy.experiments.analysis.answers.throughput import part_of, times_of
from scalestudy.experiments.analysis.laws.least_squares import Estimate
from scalestudy.experiments.analysis.laws.speedup import LEAST_USL_SIZES as LEAST_SIZES
from scalestudy.experiments.analysis.laws.step_time import MEASURE, StepTimes
from scalestudy.experiments.analysis.measures.intervals import ENOUGH_SEEDS
from scalestudy.experiments.analysis.measures.parts import Part, finite, missing, present
from scalestudy.experiments.analysis.measures.targets import cost_of

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


MOST_WORKERS = 4096
LARGEST_BATCHES = 6
"""Doublings beyond the largest batch measured that are looked at."""
WORTH_TELLING = 1.05
"""Predicted gains below are not told: repeated timings on a quiet machine differ by as much."""
LARGEST_SPREAD = 700.0
"""Of logarithms that still have an exponential."""

COLUMNS = (
    "num_gpus", "per_worker_batch", "batch_size", "learning_rate", "step_seconds", "seconds_to_target", "gpu_seconds",
    "cost", "low", "high",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A batch size of which trainings reached the target. examples: of a step. spread: half the interval of the
    logarithm of steps; None where none can be had: below five seeds, whose range is no interval, and where a seed met
    the target within its first epoch, so that its steps are a bound.
    """

    batch_size: int
    examples: float
    learning_rate: float | None
    steps: float
    spread: float | None


def predictions_part(
    throughput: Part,
    efficiency: Part,
    price_per_gpu_hour: float | None = None,
    *,
    most_workers: int = MOST_WORKERS,
    node_workers: int = NODE_WORKERS,
) -> Part:
    """The `predictions` of `summary.json`.

    Args:
        throughput: of `throughput.throughput_part`.
        efficiency: of `statistical_efficiency.statistical_efficiency`; the predictions are for its target and its
            combination of swept keys.
        price_per_gpu_hour: for the cost; None: no cost.
        most_workers: up to which predictions go.
        node_workers: that one node holds, where no study spanned two.

    Returns:
        `{of, target, batch_size, rows, breaks_at, best, flagged, why}`, or missing with a why. A row a number of
        workers, as timed and then doubled: `num_gpus`, the `batch_size` that is soonest there among those whose steps
        were measured, its `learning_rate`, `per_worker_batch`, `step_seconds`, `seconds_to_target` with `low` and
        `high` (90 %, of the step's time and of the steps together; null where either is not known), `gpu_seconds`,
        `cost`, `beyond` (more workers than timed), `valid`, `why` (of what is not valid; of a valid row, what a larger
        batch might bring). The first row beyond that is not valid is the last, and `breaks_at` repeats its num_gpus and
        why. best: the rows that are `fastest` and `cheapest` of the valid ones. why: what the steps to the target stand
        in doubt for, if anything.
    """
    if not present(efficiency):
        return missing(f"steps to a target are not known: {efficiency['why']}")
    of, target = efficiency["of"], efficiency.get("target")
    batches = measured_batches(efficiency)
    if not batches or target is None:
        return missing(f"steps to a target are not known: {efficiency.get('why') or 'no batch size reached one'}")
    part = part_of(throughput, of)
    if part is None:
        return missing(f"the time of a step is not known: {throughput.get('why') or 'not for this combination'}")
    reach = Reach.of(part, node_workers)
    rows = list(_rows(reach, batches, efficiency, price_per_gpu_hour, most_workers))
    valid = [row for row in rows if row["valid"]]
    broken = next((row for row in rows if row["beyond"] and not row["valid"]), None)
    why = next((row["why"] for row in rows if not row["valid"]), "nothing was predicted")
    return {
        "of": of,
        "target": target,
        "batch_size": _batch_words(batches),
        "rows": rows,
        "breaks_at": {key: broken[key] for key in ("num_gpus", "why")} if broken else None,
        "best": {
            "fastest": _best(valid, "seconds_to_target", why),
            "cheapest": _best(valid, "gpu_seconds", why),
        },
        "flagged": part["flagged"],
        "why": efficiency.get("why"),
    }


def measured_batches(efficiency: Mapping[str, Any]) -> list[Batch]:
    """The batch sizes whose steps to the target were measured; steps by the law of batch sizes where there is one."""
    found = []
    for point in efficiency["points"]:
        if point["steps"] is not None:
            steps = point.get("fitted_steps") or point["steps"]
            known = point["n"] >= ENOUGH_SEEDS and not point.get("upper_bound") and point["low"] and point["high"]
            found.append(
                Batch(
                    batch_size=point["batch_size"],
                    examples=point.get("examples_per_step") or point["batch_size"],
                    learning_rate=point["learning_rate"],
                    steps=steps,
                    spread=math.log(point["high"] / point["low"]) / 2 if known else None,
                )
            )
    return found


def _batch_words(batches: Sequence[Batch]) -> str:
    sizes = sorted(batch.batch_size for batch in batches)
    return f"constant at {sizes[0]}" if len(sizes) == 1 else f"the soonest of {', '.join(map(str, sizes))}"


def _best(valid: Sequence[Part], key: str, why: str) -> Part:
    return min(valid, key=lambda row: float(row[key])) if valid else missing(why)


def _rows(
    reach: Reach, batches: Sequence[Batch], efficiency: Part, price: float | None, most_workers: int
) -> Iterator[Part]:
    """A row a number of workers, up to the first beyond those timed of which nothing can be said."""
    for count in reach.worker_counts(most_workers):
        beyond = count > reach.counted[-1]
        batch, why = _soonest(reach, batches, efficiency, count)
        if batch is not None:
            note = _larger_batch(reach, batch, batches, efficiency, count)
            yield {**_row(reach, batch, count, price), "beyond": beyond, "valid": True, "why": note}
            continue
        yield {**dict.fromkeys(COLUMNS), "num_gpus": count, "beyond": beyond, "valid": False, "why": why}
        if beyond:
            return


def _soonest(reach: Reach, batches: Sequence[Batch], efficiency: Part, count: int) -> tuple[Batch | None, str | None]:
    """The batch size that reaches the target soonest with so many workers, or None, and why there is none."""
    if count > reach.counted[-1] and (why := reach.why_not_workers(count)):
        return None, why
    fitting = [batch for batch in batches if _fits(reach, batch, count)]
    if not fitting:
        return None, _why_no_batch(reach, batches, efficiency, count)
    batch = min(fitting, key=lambda batch: batch.steps * reach.seconds(count, batch.examples).value)
    why = reach.why_not_step(count, batch.batch_size, batch.examples)
    return (None, why) if why else (batch, None)


def _fits(reach: Reach, batch: Batch, count: int) -> bool:
    """Whether each worker has an example, and no more than were timed, which might not fit its memory."""
    return batch.examples >= count and batch.batch_size / count <= reach.most_share


def _why_no_batch(reach: Reach, batches: Sequence[Batch], efficiency: Part, count: int) -> str:
    largest = max(batch.batch_size for batch in batches)
    if largest >= count:
        return f"{count} workers would need more than the {reach.most_share:g} examples a worker that were timed"
    why = f"{count} workers are more than the largest batch measured has examples ({largest})"
    critical = efficiency["b_crit"].get("value")
    if critical is None or not efficiency["b_crit"].get("identified", True):
        return f"{why}; train with larger batches"
    if critical < largest:
        return f"{why}, and beyond {critical:.3g} (B_crit) a larger batch hardly needs fewer steps"
    return f"{why}; up to {critical:.3g} (B_crit) larger ones may pay: train with them"


def _row(reach: Reach, batch: Batch, count: int, price: float | None) -> Part:
    seconds = reach.seconds(count, batch.examples)
    total = batch.steps * seconds.value
    spread = _together(seconds, batch.spread)
    limits = (None, None) if spread is None else (finite(total * math.exp(-spread)), finite(total * math.exp(spread)))
    gpu_seconds = total * count
    return {
        "num_gpus": count,
        "per_worker_batch": batch.batch_size / count,
        "batch_size": batch.batch_size,
        "learning_rate": batch.learning_rate,
        "step_seconds": seconds.value,
        "seconds_to_target": total,
        "gpu_seconds": gpu_seconds,
        "cost": cost_of(gpu_seconds, price),
        "low": None if limits[1] is None else limits[0],
        "high": limits[1],
    }


def _together(seconds: Estimate, spread: float | None) -> float | None:
    """Half the interval of the logarithm of a product: the halves of its factors, which are measured apart, squared and
    added."""
    if not seconds.low or not seconds.high or spread is None:
        return None
    return min(math.hypot(math.log(seconds.high / seconds.low) / 2, spread), LARGEST_SPREAD)


def _larger_batch(reach: Reach, best: Batch, batches: Sequence[Batch], efficiency: Part, count: int) -> str | None:
    """What a batch beyond the measured is predicted to bring; None where the law of batch sizes does not tell, or it
    brings nothing."""
    s_min, b_crit = efficiency["s_min"], efficiency["b_crit"]
    if not all(present(each) and each.get("identified", True) for each in (s_min, b_crit)):
        return None
    largest = max(batch.batch_size for batch in batches)
    if any(point["batch_size"] > largest for point in efficiency["points"]):
        return None  # a larger one was tried, and did not reach the target
    most = efficiency.get("training_examples") or math.inf
    now = best.steps * reach.seconds(count, best.examples).value
    found: tuple[float, int] | None = None
    for size in (largest * 2**doubling for doubling in range(1, LARGEST_BATCHES + 1)):
        if size <= most and size / count <= reach.most_share:
            then = s_min["value"] * (1 + b_crit["value"] / size) * reach.seconds(count, size).value
            found = max(found or (0.0, 0), (now / then, size))
    if found is None or found[0] < WORTH_TELLING:
        return None
    return f"a batch of {found[1]}, beyond those measured, is predicted to be {found[0]:.2f}× as fast"
