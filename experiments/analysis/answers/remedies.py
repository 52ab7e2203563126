"""What a remedy is predicted to bring, by the law of a step's time (docs/formulas.md §4, §8).

A larger batch makes more examples a second and mostly needs more of them, so that where the steps to a target are known
remedies go by the time to it, T(K, B) = S(B) · T_iter(K, B/K).
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scalestudy.experiments.analysis.answers.throughput import part_of, times_of
from scalestudy.experiments.analysis.laws.step_time import Constants, StepTimes
from scalestudy.experiments.analysis.measures.parts import Part, number_of, present
from scalestudy.experiments.plan.plan import label

Row = Mapping[str, Any]
WORTH_TELLING = 1.05
"""Predicted gains below are not told: repeated timings on a quiet machine differ by as much."""
USUAL = ("num_gpus", "batch_size", "learning_rate", "seed")


@dataclass(frozen=True, kw_only=True)
class RowLaw:
    """The law of a step's time that a timing row lies on. across_nodes: whether the row's workers were on several
    nodes. largest_share: of examples a worker, as timed.
    """

    times: StepTimes
    across_nodes: bool
    data_seconds: float
    largest_share: float
    fixed_cost_known: bool

    @classmethod
    def of(cls, throughput: Part | None, row: Row) -> "RowLaw | None":
        """throughput: of `throughput.throughput_part`, or None. None where it has no law for the row."""
        part = part_of(throughput, _settings_of(row)) if throughput is not None else None
        if part is None:
            return None
        return cls(
            times=times_of(part),
            across_nodes=bool(row.get("across_nodes")),
            data_seconds=part["data_seconds"]["value"] or 0.0,
            largest_share=max(point["batch_size"] / point["num_gpus"] for point in part["points"]),
            fixed_cost_known=present(part["alpha_c"]) and part["alpha_c"].get("identified", True),
        )

    @property
    def constants(self) -> Constants:
        """Of the law."""
        return self.times.constants

    def seconds(self, num_gpus: int, batch_size: float) -> float:
        """Of a step."""
        share = batch_size / num_gpus
        found = self.times.seconds(num_gpus, share, data_seconds=self.data_seconds, across_nodes=self.across_nodes)
        return found.value

    def sync_share(self, num_gpus: int, batch_size: float) -> float:
        """The exposed part of summing gradients, of a step."""
        seconds = self.seconds(num_gpus, batch_size)
        gradient = float(self.constants.gradient_seconds(batch_size / num_gpus))
        return max(seconds - self.data_seconds - gradient, 0.0) / seconds

    def fixed_share(self, per_worker_batch: float) -> float:
        """alpha_c, of T_grad."""
        gradient = float(self.constants.gradient_seconds(per_worker_batch))
        return self.constants.alpha_c / gradient if gradient > 0 else 0.0

    def gain(self, row: Row, batch_size: float) -> float:
        """Examples a second at another batch size, over those at the row's."""
        workers, now = row["params"]["num_gpus"], row["params"]["batch_size"]
        return batch_size / now * self.seconds(workers, now) / self.seconds(workers, batch_size)


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Steps to the target of a study by batch size, of the settings of a timing row. measured: None of a batch size
    that was tried and has none. s_min, b_crit: of the law of batch sizes; None where it is not identified.
    """

    target: float
    measured: Mapping[int, float | None]
    s_min: float | None
    b_crit: float | None

    @classmethod
    def of(cls, efficiency: Part | None, row: Row) -> "Steps | None":
        """efficiency: of `statistical_efficiency`, or None. None where it knows no steps for the row."""
        part = part_of(efficiency, _settings_of(row)) if efficiency is not None else None
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
        """Steps with this batch size; None where they are not known, or it was tried and does not reach the target."""
        if batch_size in self.measured:
            return self.measured[batch_size]
        reached = [size for size, steps in self.measured.items() if steps is not None]
        given_up = any(max(reached, default=0) < size < batch_size for size in self.measured)
        if self.s_min is None or self.b_crit is None or given_up:
            return None
        return self.s_min * (1 + self.b_crit / batch_size)


def raise_batch(
    law: RowLaw | None, row: Row, enough: Callable[[RowLaw, int, float], bool], efficiency: Part | None = None
) -> str | None:
    """`Raise the batch to 512 (256 a worker): predicted 1.6× as fast to 0.9.`

    Where steps to the target are known, the doubling of the row's batch that reaches it soonest, or that none does.
    Else the smallest that is enough, or the largest whose share a worker was timed, and its gain in examples a second.
    None where there is no law, or no such batch is predicted to bring much.
    """
    batches = list(_doublings(law, row)) if law is not None else []
    if law is None or not batches:
        return None
    steps = Steps.of(efficiency, row)
    gains = _gains(law, row, batches, steps) if steps is not None else {}
    workers = row["params"]["num_gpus"]
    fewer = " Use fewer workers." if workers > 1 else ""
    if steps is not None:
        if gains:
            return _soonest(gains, row, steps.target) + ("" if max(gains.values()) >= WORTH_TELLING else fewer)
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


def _gains(law: RowLaw, row: Row, batches: Sequence[int], steps: Steps) -> dict[int, float]:
    """Time to the target over that of each batch, those left out whose steps are not known."""
    now = steps.at(row["params"]["batch_size"])
    known = {batch: then for batch in batches if (then := steps.at(batch)) is not None}
    if now is None:
        return {}
    by_rate = {batch: law.gain(row, batch) * row["params"]["batch_size"] / batch for batch in known}
    return {batch: now / then * by_rate[batch] for batch, then in known.items()}


def _soonest(gains: Mapping[int, float], row: Row, target: float) -> str:
    batch = max(gains, key=lambda batch: gains[batch])
    if gains[batch] < WORTH_TELLING:
        return f"A larger batch is no remedy: it is predicted to reach {target:g} no sooner, needing more examples."
    share = batch / row["params"]["num_gpus"]
    return f"Raise the batch to {batch} ({share:g} a worker): predicted {gains[batch]:.1f}× as fast to {target:g}."


def _doublings(law: RowLaw, row: Row) -> Iterator[int]:
    """Of the row's batch, while a worker's share was timed and the training set has as many examples."""
    batch, most = 2 * row["params"]["batch_size"], row.get("examples") or math.inf
    while batch <= most and batch / row["params"]["num_gpus"] <= law.largest_share:
        yield batch
        batch *= 2


def _settings_of(row: Row) -> str:
    return label({key: value for key, value in row["params"].items() if key not in USUAL})
