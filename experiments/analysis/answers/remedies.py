"""What a remedy is predicted to bring, by the law of a step's time (docs/formulas.md §4, §8).

A larger batch makes more examples a second, and mostly needs more of them. So if the steps to the target are known,
remedies are judged by the time to it, T(K, B) = S(B) · T_iter(K, B/K).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from scalestudy.experiments.analysis.answers.predictions import WORTH_TELLING
from scalestudy.experiments.analysis.answers.throughput import part_of_combination, times_of
from scalestudy.experiments.analysis.laws.step_time import Constants, StepTimes
from scalestudy.experiments.analysis.measures.cells import combination_of
from scalestudy.experiments.analysis.measures.parts import Figure, Row, identified, number_of


@dataclass(frozen=True, kw_only=True)
class RowLaw:
    """The law of a step's time that a timing row lies on.

    across_nodes: whether the row's workers were on several nodes. largest_share: of examples a worker, as timed.
    """

    times: StepTimes
    across_nodes: bool
    data_seconds: float
    largest_share: float
    fixed_cost_known: bool

    @classmethod
    def of(cls, throughput: Figure | None, row: Row) -> "RowLaw | None":
        """The row's law, or None if there is none. throughput: from `throughput.throughput_part`, or None."""
        part = part_of_combination(throughput, combination_of(row["params"])) if throughput is not None else None
        if part is None:
            return None
        return cls(
            times=times_of(part),
            across_nodes=bool(row.get("across_nodes")),
            data_seconds=part["data_seconds"]["value"] or 0.0,
            largest_share=max(point["batch_size"] / point["num_gpus"] for point in part["points"]),
            fixed_cost_known=identified(part["alpha_c"]),
        )

    @property
    def constants(self) -> Constants:
        """The law's constants."""
        return self.times.constants

    def seconds(self, num_gpus: int, batch_size: float) -> float:
        """Seconds of a step."""
        share = batch_size / num_gpus
        step = self.times.seconds(num_gpus, share, data_seconds=self.data_seconds, across_nodes=self.across_nodes)
        return step.value

    def sync_share(self, num_gpus: int, batch_size: float) -> float:
        """The exposed part of summing gradients, as a share of a step."""
        seconds = self.seconds(num_gpus, batch_size)
        gradient = float(self.constants.gradient_seconds(batch_size / num_gpus))
        return max(seconds - self.data_seconds - gradient, 0.0) / seconds

    def fixed_share(self, per_worker_batch: float) -> float:
        """alpha_c as a share of T_grad."""
        gradient = float(self.constants.gradient_seconds(per_worker_batch))
        return self.constants.alpha_c / gradient if gradient > 0 else 0.0

    def gain(self, row: Row, batch_size: float) -> float:
        """Examples a second at another batch size, over those at the row's."""
        workers, now = row["params"]["num_gpus"], row["params"]["batch_size"]
        return batch_size / now * self.seconds(workers, now) / self.seconds(workers, batch_size)


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Steps to a study's target by batch size, for the settings of a timing row.

    measured: None for a batch size that was tried without success. s_min, b_crit: of the law of batch sizes; None if it
    is not identified.
    """

    target: float
    measured: Mapping[int, float | None]
    s_min: float | None
    b_crit: float | None

    @classmethod
    def of(cls, efficiency: Figure | None, row: Row) -> "Steps | None":
        """The steps for a row, or None if unknown. efficiency: from `efficiency.statistical_efficiency`, or None."""
        part = part_of_combination(efficiency, combination_of(row["params"])) if efficiency is not None else None
        if part is None or part.get("target") is None:
            return None
        s_min, b_crit = (number_of(part[name]) for name in ("s_min", "b_crit"))
        known = s_min is not None and b_crit is not None
        return cls(
            target=part["target"],
            measured={point["batch_size"]: point.get("fitted_steps") or point["steps"] for point in part["points"]},
            s_min=s_min if known else None,
            b_crit=b_crit if known else None,
        )

    def at(self, batch_size: int) -> float | None:
        """Steps with this batch size. None if they are unknown, or it was tried and does not reach the target."""
        if batch_size in self.measured:
            return self.measured[batch_size]
        reached = [size for size, steps in self.measured.items() if steps is not None]
        given_up = any(max(reached, default=0) < size < batch_size for size in self.measured)
        if self.s_min is None or self.b_crit is None or given_up:
            return None
        return self.s_min * (1 + self.b_crit / batch_size)


def raise_batch(
    law: RowLaw | None, row: Row, enough: Callable[[RowLaw, int, float], bool], efficiency: Figure | None = None
) -> str | None:
    """`Raise the batch to 512 (256 a worker): predicted 1.6× as fast to 0.9.`

    If steps to the target are known, it names the doubling of the row's batch that reaches it soonest, or says that
    none does. Else it names the smallest that is enough, or the largest whose share a worker was timed, with its gain
    in examples a second. None if there is no law, or no such batch is predicted to bring much.
    """
    if law is None:
        return None
    workers, now = row["params"]["num_gpus"], row["params"]["batch_size"]
    # doublings for which the training set has examples, and a worker's share was timed
    batches = [
        batch
        for batch in (now * 2**doubling for doubling in range(1, 64))
        if batch <= (row.get("examples") or math.inf) and batch / workers <= law.largest_share
    ]
    if not batches:
        return None
    fewer = " Use fewer workers." if workers > 1 else ""
    steps = Steps.of(efficiency, row)
    if steps is not None:
        steps_now = steps.at(now)
        gains = {
            batch: steps_now / then * (law.gain(row, batch) * now / batch)
            for batch in batches
            if steps_now is not None and (then := steps.at(batch)) is not None
        }
        if gains:
            best = max(gains, key=lambda batch: gains[batch])
            if gains[best] < WORTH_TELLING:
                return (
                    f"A larger batch is no remedy: it is predicted to reach {steps.target:g} no sooner, needing more "
                    f"examples.{fewer}"
                )
            raised = f"Raise the batch to {best} ({best / workers:g} a worker)"
            return f"{raised}: predicted {gains[best]:.1f}× as fast to {steps.target:g}."
        batches = [batch for batch in batches if steps.measured.get(batch, math.inf) is not None]
        if not batches:
            return f"A larger batch is no remedy: those tried have not reached {steps.target:g}.{fewer}"
    chosen = next((batch for batch in batches if enough(law, workers, batch)), batches[-1])
    if (gain := law.gain(row, chosen)) < WORTH_TELLING:
        return None
    return (
        f"Raise the batch to {chosen} ({chosen / workers:g} a worker): predicted {gain:.1f}× the examples a second; "
        "a target may take more of them."
    )
