"""What a remedy is predicted to bring, by the law of a step's time (docs/formulas.md §4, §8).

A larger batch makes more examples a second, and mostly needs more of them. So if the steps to the target are known,
remedies are judged by the time to it, T(K, B) = S(B) · T_iter(K, B/K).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from scalestudy.experiments.analysis.answers.predictions import WORTH_TELLING
from scalestudy.experiments.analysis.answers.throughput import part_of_combination, times_of
from scalestudy.experiments.analysis.laws.batch_size import steps_of_law
from scalestudy.experiments.analysis.laws.step_terms import Constants
from scalestudy.experiments.analysis.laws.step_time import StepTimes
from scalestudy.experiments.analysis.measures.cells import combination_of
from scalestudy.experiments.analysis.measures.parts import Figure, Row, identified, number_of


@dataclass(frozen=True, kw_only=True)
class RowLaw:
    """The law of a step's time that a timing row lies on."""

    times: StepTimes
    across_nodes: bool  # whether the row's workers were on several nodes
    data_seconds: float
    largest_share: float  # of examples a worker, as timed
    least_fixed: float | None  # lower end of alpha_c; None if alpha_c is not identified

    @classmethod
    def of(cls, throughput: Figure | None, row: Row) -> "RowLaw | None":
        """Return the row's law, or None if there is none, or the timings reject it.

        throughput: from `throughput.throughput_part`, or None.
        """
        part = part_of_combination(throughput, combination_of(row["params"])) if throughput is not None else None
        if part is None or part["misfit"]:
            return None
        return cls(
            times=times_of(part),
            across_nodes=bool(row.get("across_nodes")),
            data_seconds=part["data_seconds"]["value"] or 0.0,
            largest_share=max(point["batch_size"] / point["num_gpus"] for point in part["points"]),
            least_fixed=(part["alpha_c"]["low"] or 0.0) if identified(part["alpha_c"]) else None,
        )

    @property
    def constants(self) -> Constants:
        """The law's constants."""
        return self.times.constants

    def seconds(self, num_gpus: int, batch_size: float) -> float:
        """Return the seconds of a step."""
        share = batch_size / num_gpus
        nodes = self.times.nodes(num_gpus, self.across_nodes)
        return float(self.constants.step_seconds(num_gpus, share, nodes)) + self.data_seconds

    def sync_share(self, num_gpus: int, batch_size: float) -> float:
        """Return the exposed part of summing gradients, as a share of a step."""
        seconds = self.seconds(num_gpus, batch_size)
        gradient = float(self.constants.gradient_seconds(batch_size / num_gpus))
        return max(seconds - self.data_seconds - gradient, 0.0) / seconds

    def fixed_share(self, per_worker_batch: float) -> float:
        """Return alpha_c as a share of T_grad."""
        gradient = float(self.constants.gradient_seconds(per_worker_batch))
        return self.constants.alpha_c / gradient if gradient > 0 else 0.0


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Steps to a study's target by batch size, for the settings of a timing row."""

    target: float
    known: Mapping[int, float | None]  # of the best rate; None for a batch size that was tried without success
    s_min: float | None  # of the law of batch sizes; None if it is not identified
    b_crit: float | None  # the same

    @classmethod
    def of(cls, efficiency: Figure | None, row: Row, target: float) -> "Steps | None":
        """Return the steps for a row, or None if the steps to this target are unknown.

        efficiency: from `efficiency.statistical_efficiency`, or None.
        """
        part = part_of_combination(efficiency, combination_of(row["params"])) if efficiency is not None else None
        if part is None or part.get("target") != target:
            return None
        s_min, b_crit = (number_of(part[name]) for name in ("s_min", "b_crit"))
        lawful = s_min is not None and b_crit is not None
        return cls(
            target=target,
            known={
                point["batch_size"]: None if point["estimate"] is None else point["estimate"]["value"]
                for point in part["points"]
            },
            s_min=s_min if lawful else None,
            b_crit=b_crit if lawful else None,
        )

    def missed(self, batch_size: int) -> bool:
        """Whether trainings with this batch size missed the target, or with a smaller one above all that reached it."""
        most = max((size for size, steps in self.known.items() if steps is not None), default=0)
        missed = [size for size, steps in self.known.items() if steps is None]
        return any(size == batch_size or most < size < batch_size for size in missed)

    def at(self, batch_size: int) -> float | None:
        """Return the steps with this batch size. None if they are unknown, or it missed the target."""
        if batch_size in self.known or self.missed(batch_size) or self.s_min is None or self.b_crit is None:
            return self.known.get(batch_size)
        return steps_of_law(self.s_min, self.b_crit, batch_size)


def raise_batch(
    law: RowLaw, row: Row, base: Row, enough: Callable[[RowLaw, int, float], bool], steps: Steps | None = None
) -> str | None:
    """Say `Raise the batch to 512 (256 a worker): predicted 1.6× as fast to 0.9 as the recommended cell.`

    If steps to the target are known, it names the doubling of the row's batch that reaches it soonest, or says that
    none is sooner than the recommended cell, whose timing row is the base. Else it names the smallest that is enough,
    or the largest whose share a worker was timed, with its gain in examples a second. It never names one that missed
    the target. None if no such batch is predicted to bring much.
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
    base_seconds = law.seconds(base_workers, base_batch)
    if steps is not None:
        batches = [batch for batch in batches if not steps.missed(batch)]
        if not batches:
            return f"A larger batch does not help: those tried have not reached {steps.target:g}.{fewer}"
        base_steps = steps.at(base_batch)
        gains = {
            batch: base_steps * base_seconds / (then * law.seconds(workers, batch))
            for batch in batches
            if base_steps is not None and (then := steps.at(batch)) is not None
        }
        if gains:
            best = max(gains, key=lambda batch: gains[batch])
            if gains[best] < WORTH_TELLING:
                return (
                    f"A larger batch does not help: it is predicted to reach {steps.target:g} no sooner than the "
                    f"recommended cell, needing more examples.{fewer}"
                )
            return (
                f"{raised} to {best} ({best / workers:g} a worker): predicted {gains[best]:.1f}× as fast to "
                f"{steps.target:g} as the recommended cell."
            )
    chosen = next((batch for batch in batches if enough(law, workers, batch)), batches[-1])
    gain = (chosen / law.seconds(workers, chosen)) / (base_batch / base_seconds)
    if gain < WORTH_TELLING:
        return None
    return (
        f"{raised} to {chosen} ({chosen / workers:g} a worker): predicted {gain:.1f}× the examples a second of the "
        "recommended cell; a target may take more of them."
    )
