"""Predictions beyond what was measured, and where they end.

T(K, B) = S(B) · T_iter(K, B/K) (docs/formulas.md §4): steps to the target do not depend on the workers, and the time of
a step does not depend on the target. Predictions end where something that they need was not measured.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scalestudy.experiments.analysis.answers.target_times import Option, TargetTimes
from scalestudy.experiments.analysis.answers.throughput import part_of_combination, times_of
from scalestudy.experiments.analysis.laws.batch_size import steps_of_law
from scalestudy.experiments.analysis.laws.least_squares import Estimate
from scalestudy.experiments.analysis.laws.step_time import MEASURE, StepTimes
from scalestudy.experiments.analysis.measures.cells import combination_of
from scalestudy.experiments.analysis.measures.parts import Figure, finite, identified, missing, present
from scalestudy.experiments.analysis.measures.targets import cost_of

NODE_WORKERS = 8
"""Workers that one node is assumed to hold if no study spanned two: the GPUs of a usual server."""
WIDEST_RATIO = 2.0
"""Upper over lower limit of a step's time. From this ratio on, the time is no prediction."""
MOST_WORKERS = 4096
FURTHEST = 4
"""Up to how many times the workers timed is predicted.

Beyond, laws that fit the timings equally well say anything.
"""
LEAST_WORKER_COUNTS = 4
"""Distinct numbers of workers that a prediction beyond those timed needs."""
LARGEST_BATCHES = 6
"""How many doublings beyond the largest batch measured are tried."""
WORTH_TELLING = 1.05
"""Smaller predicted gains are not reported: repeated timings on a quiet machine differ by as much."""
LARGEST_SPREAD = 700.0
"""The largest spread of logarithms whose exponential is a float."""
COLUMNS = (
    "num_gpus",
    "per_worker_batch",
    "batch_size",
    "learning_rate",
    "step_seconds",
    "seconds_to_target",
    "worker_seconds",
    "cost",
    "low",
    "high",
)


def predictions_part(
    throughput: Figure,
    efficiency: Figure,
    price_per_gpu_hour: float | None = None,
    *,
    times: TargetTimes | None = None,
    most_workers: int = MOST_WORKERS,
) -> Figure:
    """Return the `predictions` of `summary.json`.

    Args:
        throughput: from `throughput.throughput_part`.
        efficiency: from `efficiency.statistical_efficiency`. Its target and its combination of swept keys
            are predicted.
        price_per_gpu_hour: for the cost; None: no cost.
        times: of the cells to the same target. A number of workers that was tried has the time of its soonest cell.
        most_workers: up to which predictions go.

    Returns:
        `{of, target, batch_size, rows, breaks_at, best, flagged, why}`, or missing with a why.

        There is a row for each number of workers timed, then for its doublings. It has `num_gpus`, the `batch_size`
        that is soonest there, among the cells that were tried or else among those whose steps are known, its
        `learning_rate`, `per_worker_batch`, `step_seconds`, `seconds_to_target` with `low` and `high` (90 %, of the
        step's time and of the steps together; null if either is unknown), `worker_seconds`, `cost`, `beyond` (more
        workers than timed), `valid`, and `why` (it is not valid; of a valid row, what a larger batch might bring).

        The first row beyond that is not valid is the last, and `breaks_at` repeats its num_gpus and why. best: the
        `fastest` and the `cheapest` of the valid rows. why: what puts the steps to the target in doubt, if anything.
    """
    if not present(efficiency):
        return missing(f"steps to a target are not known: {efficiency['why']}")
    of, target = efficiency["of"], efficiency.get("target")
    batches = measured_batches(efficiency)
    if not batches or target is None:
        return missing(f"steps to a target are not known: {efficiency.get('why') or 'no batch size reached one'}")
    part = part_of_combination(throughput, of)
    if part is None:
        return missing(f"the time of a step is not known: {throughput.get('why') or 'not for this combination'}")
    tried = times.options if times is not None and times.target == target else []
    predicting = _Predicting(
        valid_range=ValidRange.of(part),
        batches=batches,
        efficiency=efficiency,
        price=price_per_gpu_hour,
        tried=[option for option in tried if combination_of(option["params"]) == of],
    )
    rows = list(predicting.rows(most_workers))
    valid = [row for row in rows if row["valid"]]
    broken = next((row for row in rows if row["beyond"] and not row["valid"]), None)
    why = next((row["why"] for row in rows if not row["valid"]), "nothing was predicted")
    sizes = sorted(batch.batch_size for batch in batches)
    batch_words = f"constant at {sizes[0]}" if len(sizes) == 1 else f"the soonest of {', '.join(map(str, sizes))}"

    def best(key: str) -> Figure:
        return min(valid, key=lambda row: float(row[key])) if valid else missing(why)

    return {
        "of": of,
        "target": target,
        "batch_size": batch_words,
        "rows": rows,
        "breaks_at": {key: broken[key] for key in ("num_gpus", "why")} if broken else None,
        "best": {"fastest": best("seconds_to_target"), "cheapest": best("worker_seconds")},
        "flagged": part["flagged"],
        "why": efficiency.get("why"),
    }


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A batch size whose trainings reached the target."""

    batch_size: int
    examples: float  # of a step
    learning_rate: float | None
    steps: float
    spread: float  # half the interval of the logarithm of steps


def measured_batches(efficiency: Mapping[str, Any]) -> list[Batch]:
    """Return the batch sizes whose steps to the target are known, at their best rates."""
    return [
        Batch(
            batch_size=point["batch_size"],
            examples=point.get("examples_per_step") or point["batch_size"],
            learning_rate=point["learning_rate"],
            steps=point["estimate"]["value"],
            spread=math.log(point["estimate"]["high"] / point["estimate"]["low"]) / 2,
        )
        for point in efficiency["points"]
        if point["estimate"] is not None
    ]


@dataclass(frozen=True, kw_only=True)
class ValidRange:
    """The law of a step's time, and the places where it was timed."""

    times: StepTimes
    data_seconds: float
    node_workers: int  # assumed to fit one node
    within: tuple[int, ...]  # numbers of workers timed on one node
    across: tuple[int, ...]  # numbers of workers timed across nodes
    nodes: frozenset[int]  # numbers of nodes timed, above 1
    least_share: float  # fewest examples a worker, as timed
    most_share: float  # most examples a worker, as timed
    fixed_cost_known: bool  # whether alpha_c is identified
    misfit: str | None
    """The words on the size that is farthest from the law, if sizes differ from it by more than their repeats explain.
    """

    @classmethod
    def of(cls, part: Mapping[str, Any]) -> "ValidRange":
        """Read the range from a part (`throughput.throughput_part`) that is there."""
        sizes = {(point["num_gpus"], point["across_nodes"]) for point in part["points"]}
        shares = [point["batch_size"] / point["num_gpus"] for point in part["points"]]
        within = tuple(sorted(count for count, across in sizes if not across))
        return cls(
            times=times_of(part),
            data_seconds=part["data_seconds"]["value"] or 0.0,
            node_workers=max((*within[-1:], NODE_WORKERS)),
            within=within,
            across=tuple(sorted(count for count, across in sizes if across)),
            nodes=frozenset(point["nodes"] for point in part["points"]) - {1},
            least_share=min(shares),
            most_share=max(shares),
            fixed_cost_known=identified(part["alpha_c"]),
            misfit=_misfit(part["points"]) if part["misfit"] else None,
        )

    @property
    def counted(self) -> tuple[int, ...]:
        """All numbers of workers timed."""
        return tuple(sorted({*self.within, *self.across}))

    def worker_counts(self, most: int) -> Iterator[int]:
        """Return the numbers of workers timed, then doublings of the largest, up to `most`."""
        yield from (count for count in self.counted if count <= most)
        count = 2 * self.counted[-1]
        while count <= most:
            yield count
            count *= 2

    def spans_nodes(self, num_gpus: int) -> bool:
        """Whether so many workers are assumed to be on several nodes."""
        return num_gpus > (max(self.within, default=0) if self.across else self.node_workers)

    def value(self, num_gpus: int, examples: float) -> float:
        """Return the seconds of a step by the best law. examples: of all workers together."""
        nodes = self.times.nodes(num_gpus, self.spans_nodes(num_gpus))
        return float(self.times.constants.step_seconds(num_gpus, examples / num_gpus, nodes)) + self.data_seconds

    def seconds(self, num_gpus: int, examples: float) -> Estimate:
        """Return the seconds of a step. Beyond the workers timed, the interval spans every law that is not rejected."""
        told = self.times.beyond if num_gpus > self.counted[-1] else self.times.seconds
        nodes = self.times.nodes(num_gpus, self.spans_nodes(num_gpus))
        return told(num_gpus, examples / num_gpus, data_seconds=self.data_seconds, nodes=nodes)

    def why_not_workers(self, num_gpus: int) -> str | None:
        """Return why nothing can be said about so many workers, more than were timed. None if something can."""
        spans = self.spans_nodes(num_gpus)
        if spans and not self.across:
            return (
                f"{num_gpus} workers need several nodes (one is taken to hold {self.node_workers}), and nothing was "
                f"timed across nodes; {MEASURE['alpha_n']}"
            )
        where = "across nodes" if spans else "within a node"
        several = [size for size in (self.across if spans else self.within) if size > 1]
        sizes = [*(size for size in self.counted[:1] if size == 1), *several]  # one worker sums nothing, wherever it is
        if len(sizes) < LEAST_WORKER_COUNTS:
            names = " and ".join(filter(None, (", ".join(map(str, several[:-1])), *map(str, several[-1:]))))
            timed = f"only {names} workers were" if several else "no more than one worker was"
            more = f"to predict further, time at least {LEAST_WORKER_COUNTS} values of num_gpus {where}, 1 among them"
            return f"{timed} timed {where}, too few to go beyond them; {more}"
        if spans and len(self.nodes) < 2:
            return f"steps across nodes were timed with {min(self.nodes)} nodes only; {MEASURE['beta_n']}"
        if num_gpus > FURTHEST * self.counted[-1]:
            return (
                f"{num_gpus} workers are more than {FURTHEST} times the {self.counted[-1]} timed; time steps with "
                f"{num_gpus // FURTHEST} workers or more"
            )
        return self.misfit

    def why_not_step(self, num_gpus: int, batch_size: int, examples: float) -> str | None:
        """Return why the time of a step can't be predicted; None if it can, or was timed.

        examples: of a step, the mean. It is below the batch size if an epoch ends in a smaller batch.
        """
        share = batch_size / num_gpus
        if share < self.least_share and not self.fixed_cost_known:
            return (
                f"{share:g} examples a worker are fewer than the {self.least_share:g} timed, and the fixed cost of a "
                f"step is not known; {MEASURE['alpha_c']}"
            )
        if num_gpus in self.counted:
            return None
        seconds = self.seconds(num_gpus, examples)
        if not seconds.high or not seconds.low or seconds.high > WIDEST_RATIO * seconds.low:
            return (
                f"a step may take anything from {seconds.low or 0:.3g} to {seconds.high or math.inf:.3g} s: laws that "
                f"fit the timings equally well differ there; time steps with more than {self.counted[-1]} workers"
            )
        return None


def _misfit(points: Sequence[Mapping[str, Any]]) -> str:
    """Return the words on the point that is farthest from its law, measured by its repeats."""
    worst = max(
        points, key=lambda each: abs(math.log(each["measured_seconds"] / each["fitted_seconds"])) * each["n"] ** 0.5
    )
    off = worst["measured_seconds"] / worst["fitted_seconds"] - 1
    return (
        f"no law fits the steps timed: with {worst['num_gpus']} workers and batch {worst['batch_size']} they take "
        f"{abs(off):.0%} {'more' if off > 0 else 'less'} than the nearest one says, which repeats do not explain; time "
        "that size again, and sizes beside it"
    )


@dataclass(frozen=True)
class _Predicting:
    """What the rows of predictions are made from."""

    valid_range: ValidRange
    batches: Sequence[Batch]
    efficiency: Figure
    price: float | None
    tried: Sequence[Option]  # the cells with a time

    def rows(self, most_workers: int) -> Iterator[Figure]:
        """Return a row for each number of workers, up to the first, beyond those timed, without a prediction."""
        for count in self.valid_range.worker_counts(most_workers):
            beyond = count > self.valid_range.counted[-1]
            cells = [option for option in self.tried if option["params"]["num_gpus"] == count]
            if cells:
                yield {**self._tried_row(min(cells, key=lambda option: float(option["seconds"]))), "beyond": beyond}
                continue
            batch, why = self._soonest(count)
            if batch is not None:
                yield {**self._row(batch, count), "beyond": beyond, "valid": True, "why": self._larger(batch, count)}
                continue
            yield {**dict.fromkeys(COLUMNS), "num_gpus": count, "beyond": beyond, "valid": False, "why": why}
            if beyond:
                return

    def _tried_row(self, option: Option) -> Figure:
        """Return the row of a cell that was tried: what the table of times has."""
        count, batch_size = option["params"]["num_gpus"], option["params"]["batch_size"]
        batch = next((batch for batch in self.batches if batch.batch_size == batch_size), None)
        return {
            "num_gpus": count,
            "per_worker_batch": batch_size / count,
            "batch_size": batch_size,
            "learning_rate": option["params"]["learning_rate"],
            "step_seconds": self.valid_range.value(count, batch.examples if batch else batch_size),
            "seconds_to_target": option["seconds"],
            "worker_seconds": option["worker_seconds"],
            "cost": cost_of(option["worker_seconds"], self.price),
            "low": option["interval"]["low"],
            "high": option["interval"]["high"],
            "valid": True,
            "why": self._larger(batch, count) if batch is not None else None,
        }

    def _soonest(self, count: int) -> tuple[Batch | None, str | None]:
        """Return the batch size that reaches the target soonest with so many workers, or why there is none."""
        valid = self.valid_range
        if count > valid.counted[-1] and (why := valid.why_not_workers(count)):
            return None, why
        # each worker needs an example, and no more than were timed, which might not fit its memory
        fitting = [
            batch for batch in self.batches if batch.examples >= count and batch.batch_size / count <= valid.most_share
        ]
        if fitting:
            batch = min(fitting, key=lambda batch: batch.steps * valid.value(count, batch.examples))
            why = valid.why_not_step(count, batch.batch_size, batch.examples)
            return (None, why) if why else (batch, None)
        largest = max(batch.batch_size for batch in self.batches)
        if largest >= count:
            return (
                None,
                f"{count} workers would need more than the {valid.most_share:g} examples a worker that were timed",
            )
        why = f"{count} workers are more than the largest batch measured has examples ({largest})"
        critical = self.efficiency["b_crit"].get("value")
        if critical is None or not self.efficiency["b_crit"].get("identified", True):
            return None, f"{why}; train with larger batches"
        if critical < largest:
            return None, f"{why}, and beyond {critical:.3g} (B_crit) a larger batch hardly needs fewer steps"
        return None, f"{why}; up to {critical:.3g} (B_crit) larger ones may pay: train with them"

    def _row(self, batch: Batch, count: int) -> Figure:
        seconds = self.valid_range.seconds(count, batch.examples)
        total = batch.steps * seconds.value
        low = high = None
        if seconds.low and seconds.high:
            # both factors are measured separately, so halves of their intervals' logarithms are squared and added
            spread = min(math.hypot(math.log(seconds.high / seconds.low) / 2, batch.spread), LARGEST_SPREAD)
            low, high = finite(total * math.exp(-spread)), finite(total * math.exp(spread))
        worker_seconds = total * count
        return {
            "num_gpus": count,
            "per_worker_batch": batch.batch_size / count,
            "batch_size": batch.batch_size,
            "learning_rate": batch.learning_rate,
            "step_seconds": seconds.value,
            "seconds_to_target": total,
            "worker_seconds": worker_seconds,
            "cost": cost_of(worker_seconds, self.price),
            "low": None if high is None else low,
            "high": high,
        }

    def _larger(self, best: Batch, count: int) -> str | None:
        """Say what a batch beyond those measured is predicted to bring. None if unknown or nothing."""
        s_min, b_crit = self.efficiency["s_min"], self.efficiency["b_crit"]
        if self.valid_range.misfit or not identified(s_min) or not identified(b_crit):
            return None
        largest = max(batch.batch_size for batch in self.batches)
        if any(point["batch_size"] > largest for point in self.efficiency["points"]):
            return None  # a larger one was tried, and did not reach the target
        most = self.efficiency.get("training_examples") or math.inf
        now = best.steps * self.valid_range.value(count, best.examples)
        most_gain: tuple[float, int] | None = None
        for size in (largest * 2**doubling for doubling in range(1, LARGEST_BATCHES + 1)):
            if size <= most and size / count <= self.valid_range.most_share:
                then = steps_of_law(s_min["value"], b_crit["value"], size) * self.valid_range.value(count, size)
                most_gain = max(most_gain or (0.0, 0), (now / then, size))
        if most_gain is None or most_gain[0] < WORTH_TELLING:
            return None
        return f"a batch of {most_gain[1]}, beyond those measured, is predicted to be {most_gain[0]:.2f}× as fast"
