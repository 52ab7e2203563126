"""Predictions beyond what was measured, and where they end.

T(K, B) = S(B) · T_iter(K, B/K) (docs/formulas.md §4): steps to the target do not depend on the workers, and the time of
a step does not depend on the target. Predictions end where something that they need was not measured.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scalestudy.experiments.analysis.answers.posterior import (
    Learnt,
    Posterior,
    Timed,
    Told,
    seconds_untried,
    steps_untried,
    time_of_steps,
    time_untried,
)
from scalestudy.experiments.analysis.answers.target_times import Option, TargetTimes
from scalestudy.experiments.analysis.answers.throughput import part_of_combination
from scalestudy.experiments.analysis.laws.estimate import ENDS
from scalestudy.experiments.analysis.laws.step_figures import MEASURE
from scalestudy.experiments.analysis.measures.cells import combination_of
from scalestudy.experiments.analysis.measures.parts import NO_INTERVAL, Figure, identified, missing, present
from scalestudy.experiments.analysis.measures.targets import cost_of
from scalestudy.experiments.analysis.measures.units import plural, three_digits

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


def gain_text(gain: Told) -> str:
    """Return `2.50× (2.10 to 3.00)`, a ratio with the interval of its draws."""
    low, high = np.exp(np.quantile(gain.logs, ENDS)).tolist()
    return f"{three_digits(gain.value)}× ({three_digits(low)} to {three_digits(high)})"


def predictions_part(
    posterior: Posterior,
    throughput: Figure,
    efficiency: Figure,
    price_per_gpu_hour: float | None = None,
    *,
    times: TargetTimes | None = None,
    most_workers: int = MOST_WORKERS,
) -> Figure:
    """Return the `predictions` of `summary.json`.

    Args:
        posterior: of the study.
        throughput: from `throughput.throughput_part`.
        efficiency: from `efficiency.statistical_efficiency`. Its target and its combination of swept keys
            are predicted.
        price_per_gpu_hour: for the cost; None: no cost.
        times: of the cells to the same target. A number of workers that was tried has the time of its soonest cell.
        most_workers: up to which predictions go.

    Returns:
        `{of, target, batch_size, rows, breaks_at, best, flagged, why}`, or missing with a why.

        There is a row for each number of workers timed, then for its doublings. It has `num_gpus`, the `batch_size` and
        `learning_rate` that are soonest there, among the cells that were tried with so many workers, or else with any;
        `per_worker_batch`, `step_seconds`, `seconds_to_target` with `low` and `high` (90 %), `worker_seconds`, `cost`,
        `beyond` (more workers than timed), `valid`, and `why` (it is not valid; of a valid row, what a larger batch
        might bring).

        The first row beyond that is not valid is the last, and `breaks_at` repeats its num_gpus and why. best: the
        `fastest` and the `cheapest` of the valid rows. why: what puts the steps to the target in doubt, if anything.
    """
    if not present(efficiency):
        return missing(f"steps to a target are not known: {efficiency['why']}")
    of, target = efficiency["of"], efficiency.get("target")
    learnt = posterior.learnt(of, target) if target is not None else None
    if learnt is None or not learnt.reached:
        return missing(f"steps to a target are not known: {efficiency.get('why') or 'no batch size reached one'}")
    part = part_of_combination(throughput, of)
    timed = posterior.timed(of) if part is not None else None
    if part is None or timed is None:
        return missing(f"the time of a step is not known: {throughput.get('why') or 'not for this combination'}")
    tried = times.rows if times is not None and times.target == target else []
    predicting = _Predicting(
        valid_range=ValidRange.of(part, timed),
        timed=timed,
        learnt=learnt,
        efficiency=efficiency,
        price=price_per_gpu_hour,
        tried=[option for option in tried if combination_of(option["params"]) == of],
    )
    rows = list(predicting.rows(most_workers))
    valid = [row for row in rows if row["valid"]]
    broken = next((row for row in rows if row["beyond"] and not row["valid"]), None)
    why = next((row["why"] for row in rows if not row["valid"]), "nothing was predicted")
    sizes = predicting.batch_sizes
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
class ValidRange:
    """Where the seconds of a step are known well enough."""

    timed: Timed
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
    def of(cls, part: Mapping[str, Any], timed: Timed) -> "ValidRange":
        """Return the range of a combination. part: from `throughput.throughput_part`, and there."""
        sizes = timed.steps.lawful
        shares = [size.batch_size / size.num_gpus for size in sizes]
        within = tuple(sorted({size.num_gpus for size in sizes if not size.across_nodes}))
        return cls(
            timed=timed,
            node_workers=max((*within[-1:], NODE_WORKERS)),
            within=within,
            across=tuple(sorted({size.num_gpus for size in sizes if size.across_nodes})),
            nodes=frozenset(size.nodes for size in sizes) - {1},
            least_share=min(shares),
            most_share=max(shares),
            fixed_cost_known=identified(part["alpha_c"]),
            misfit=_misfit(timed) if part["misfit"] else None,
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

    def seconds(self, num_gpus: int, batch_size: int) -> float:
        """Return the seconds of a step."""
        return self.timed.seconds(num_gpus, batch_size, across_nodes=self.spans_nodes(num_gpus))

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
            more = f"to predict further, time at least {LEAST_WORKER_COUNTS} numbers of workers {where}, 1 among them"
            return f"{timed} timed {where}, too few to go beyond them; {more}"
        if spans and len(self.nodes) < 2:
            return f"steps across nodes were timed with {min(self.nodes)} nodes only; {MEASURE['beta_n']}"
        if num_gpus > FURTHEST * self.counted[-1]:
            return (
                f"{num_gpus} workers are more than {FURTHEST} times the {self.counted[-1]} timed; time steps with "
                f"{num_gpus // FURTHEST} workers or more"
            )
        return self.misfit

    def why_not_step(self, num_gpus: int, batch_size: int) -> str | None:
        """Return why the time of a step can't be predicted; None if it can, or was timed."""
        share = batch_size / num_gpus
        if share < self.least_share and not self.fixed_cost_known:
            return (
                f"{share:g} examples a worker are fewer than the {self.least_share:g} timed, and the fixed cost of a "
                f"step is not known; {MEASURE['alpha_c']}"
            )
        if num_gpus in self.counted:
            return None
        draws = self.timed.draws(num_gpus, batch_size, across_nodes=self.spans_nodes(num_gpus))
        low, high = np.exp(np.quantile(draws, ENDS)).tolist()
        if high > WIDEST_RATIO * low:
            return (
                f"a step may take anything from {low:.3g} to {high:.3g} s: laws that fit the timings equally well "
                f"differ there; time steps with more than {self.counted[-1]} workers"
            )
        return None


def _misfit(timed: Timed) -> str:
    """Return the words on the size that is farthest from its law, measured by its repeats."""
    found = timed.found
    away = np.where(found.apart, 0.0, np.abs(found.off_law) * np.sqrt(found.counts))
    worst = int(np.argmax(away))
    size, off = timed.steps.sizes[worst], math.expm1(found.off_law[worst])
    return (
        f"no law fits the steps timed: with {size.num_gpus} workers and batch {size.batch_size} they take "
        f"{abs(off):.0%} {'more' if off > 0 else 'less'} than the nearest one says, which repeats do not explain; time "
        "that size again, and sizes beside it"
    )


@dataclass(frozen=True)
class _Predicting:
    """What the rows of predictions are made from."""

    valid_range: ValidRange
    timed: Timed
    learnt: Learnt
    efficiency: Figure
    price: float | None
    tried: Sequence[Option]  # the cells, with their time to the target if it is known

    @property
    def batch_sizes(self) -> list[int]:
        """The batch sizes that reached the target."""
        return sorted({batch_size for batch_size, _ in self.learnt.reached})

    def rows(self, most_workers: int) -> Iterator[Figure]:
        """Return a row for each number of workers, up to the first, beyond those timed, without a prediction."""
        for count in self.valid_range.worker_counts(most_workers):
            beyond = count > self.valid_range.counted[-1]
            cells = [row for row in self.tried if row["params"]["num_gpus"] == count and row["seconds"] is not None]
            if cells:
                yield {**self._tried_row(min(cells, key=lambda option: float(option["seconds"]))), "beyond": beyond}
                continue
            found = self._soonest(count)
            if not isinstance(found, str):
                yield {**self._row(count, *found), "beyond": beyond, "valid": True}
                continue
            yield {**dict.fromkeys(COLUMNS), "num_gpus": count, "beyond": beyond, "valid": False, "why": found}
            if beyond:
                return

    def _tried_row(self, option: Option) -> Figure:
        """Return the row of a cell that was tried: what the table of times has."""
        params, interval = option["params"], option["interval"] or NO_INTERVAL
        count, batch_size = params["num_gpus"], params["batch_size"]
        return {
            "num_gpus": count,
            "per_worker_batch": batch_size / count,
            "batch_size": batch_size,
            "learning_rate": params["learning_rate"],
            "step_seconds": self.valid_range.seconds(count, batch_size),
            "seconds_to_target": option["seconds"],
            "worker_seconds": option["worker_seconds"],
            "cost": cost_of(option["worker_seconds"], self.price),
            "low": interval["low"],
            "high": interval["high"],
            "valid": True,
            "why": self._larger(count, self._time(count, batch_size, params["learning_rate"])),
        }

    def _soonest(self, count: int) -> tuple[int, float] | str:
        """Return the batch size and rate that reach the target soonest with so many workers, or why none does."""
        valid, most = self.valid_range, self.batch_sizes[-1]
        if count > valid.counted[-1] and (why := valid.why_not_workers(count)):
            return why
        lost = {
            (row["params"]["batch_size"], row["params"]["learning_rate"])
            for row in self.tried
            if row["params"]["num_gpus"] == count and row["n_seeds"]
        }
        # each worker needs an example, and no more than were timed, which might not fit its memory
        fitting = [
            (batch_size, rate)
            for batch_size, rate in self.learnt.reached
            if (batch_size, rate) not in lost
            and self.timed.examples(batch_size) >= count
            and batch_size / count <= valid.most_share
        ]
        if fitting:
            spans = valid.spans_nodes(count)
            soonest = min(
                fitting,
                key=lambda each: seconds_untried(self.learnt, self.timed, each[0], each[1], count, across_nodes=spans),
            )
            return valid.why_not_step(count, soonest[0]) or soonest
        if lost:
            return f"no cell of {plural(count, 'worker')} has a time to {self.efficiency['target']:g}"
        if most >= count:
            return f"{count} workers would need more than the {valid.most_share:g} examples a worker that were timed"
        why = f"{count} workers are more than the largest batch measured has examples ({most})"
        critical = self.efficiency["b_crit"].get("value")
        if critical is None or not self.efficiency["b_crit"].get("identified", True):
            return f"{why}; train with larger batches"
        if critical < most:
            return f"{why}, and beyond {critical:.3g} (B_crit) a larger batch hardly needs fewer steps"
        return f"{why}; up to {critical:.3g} (B_crit) larger ones may pay: train with them"

    def _time(self, count: int, batch_size: int, rate: float) -> Told:
        spans = self.valid_range.spans_nodes(count)
        return time_untried(self.learnt, self.timed, batch_size, rate, count, across_nodes=spans)

    def _row(self, count: int, batch_size: int, rate: float) -> Figure:
        time = self._time(count, batch_size, rate)
        low, high = np.exp(np.quantile(time.logs, ENDS)).tolist()
        return {
            "num_gpus": count,
            "per_worker_batch": batch_size / count,
            "batch_size": batch_size,
            "learning_rate": rate,
            "step_seconds": self.valid_range.seconds(count, batch_size),
            "seconds_to_target": time.value,
            "worker_seconds": time.value * count,
            "cost": cost_of(time.value * count, self.price),
            "low": low,
            "high": high,
            "why": self._larger(count, time),
        }

    def _larger(self, count: int, now: Told) -> str | None:
        """Say what a batch beyond those measured is predicted to bring. None if unknown or nothing.

        now: the time of the soonest batch that was measured.
        """
        s_min, b_crit = self.efficiency["s_min"], self.efficiency["b_crit"]
        if self.valid_range.misfit or not identified(s_min) or not identified(b_crit):
            return None
        largest = self.batch_sizes[-1]
        if any(point["batch_size"] > largest for point in self.efficiency["points"]):
            return None  # a larger one was tried, and did not reach the target
        most = self.efficiency.get("training_examples") or math.inf
        spans = self.valid_range.spans_nodes(count)
        law = self.learnt.law(count)
        gains = {
            size: now.over(time_of_steps(steps_untried(law, size), self.timed, size, count, across_nodes=spans))
            for size in (largest * 2**doubling for doubling in range(1, LARGEST_BATCHES + 1))
            if size <= most and size / count <= self.valid_range.most_share
        }
        best = max(gains, key=lambda size: gains[size].value, default=None)
        if best is None or gains[best].value < WORTH_TELLING:
            return None
        return f"a batch of {best}, beyond those measured, is predicted to be {gain_text(gains[best])} as fast"
