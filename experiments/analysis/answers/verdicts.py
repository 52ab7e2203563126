"""Why it does not get faster: verdicts, each with its evidence, threshold and remedy (docs/formulas.md §8).

Verdicts on the timings themselves (`DOUBTS`) judge all of them. Causes (`CAUSES`) are searched where the recommended
cell was timed, or, where none is recommended, the cell of the best metric. Where that cell has one worker, they are
looked for also at the next larger num_gpus at its batch size, which shows why more workers are not recommended. The
worst of many noisy places would always show some cause. Places whose workers were starved show none: what took their
cores may look like any cause.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scalestudy.experiments.analysis.answers.posterior import Posterior
from scalestudy.experiments.analysis.answers.remedies import RowLaw, Steps, raise_batch
from scalestudy.experiments.analysis.laws.estimate import ENDS_AND_MEDIAN
from scalestudy.experiments.analysis.measures.cells import combination_of, key_of
from scalestudy.experiments.analysis.measures.intervals import Scatter
from scalestudy.experiments.analysis.measures.parts import Figure, Row, present
from scalestudy.experiments.analysis.measures.units import FLAG_VERDICTS, flag_verdict_words, metric_of
from scalestudy.experiments.analysis.measures.usable import PHASES
from scalestudy.experiments.plan.timing_flags import CAUSES_OF_SCATTER, TimingFlag, doubts

DATA_SHARE = 0.15
SYNC_SHARE = 0.15
SMALL_BATCH_RATIO = 1.25
CONTENTION_RATIO = 1.25
FIXED_SHARE = 0.5
STRAGGLER_RATIO = 1.15
UNSTEADINESS = 0.2
SURE = 0.96
"""Level of the intervals. At 94 %, with so many figures judged, 6 % of healthy studies get a verdict (20 % noise)."""
SHARDED_HALFWAY = 0.5
"""Above this point between falling with the workers and staying constant, steps count as not falling."""
Verdict = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Case:
    """What verdicts are judged by."""

    rows: Sequence[Row]  # all timing rows that have a time
    places: Sequence[Row]
    """Where causes are searched, the judged cell's first: the recommended cell, or else the cell of the best metric."""
    judged: str  # the words for that cell
    recommendation: Figure
    posterior: Posterior | None  # of the study, for laws of a step
    steps: Mapping[str, Steps]  # to targets, by combination
    in_steps: bool = False
    """A period has the same steps for any number of workers, so it does not show that they share the data."""

    @classmethod
    def of(
        cls,
        rows: Sequence[Row],
        recommendation: Figure,
        posterior: Posterior | None = None,
        steps: Mapping[str, Steps] | None = None,
        *,
        in_steps: bool = False,
    ) -> "Case":
        """Gather the case. If the recommendation names no cell, there are no places.

        recommendation: from `Analysis.recommend`.
        """
        recommended = present(recommendation["recommended"])
        cell = recommendation["recommended" if recommended else "choice"]
        places = [row for row in rows if cell.get("label") in row["cells"]]
        judged = "the recommended" if recommended else f"the {metric_of(recommendation).superlative} cell,"
        if places and places[0]["params"]["num_gpus"] == 1:
            alike = key_of(places[0]["params"], ("num_gpus",))
            larger = [
                row
                for row in _sound(rows) or rows
                if row["params"]["num_gpus"] > 1 and key_of(row["params"], ("num_gpus",)) == alike
            ]
            places += sorted(larger, key=lambda row: int(row["params"]["num_gpus"]))[:1]
        return cls(
            rows=rows,
            places=places,
            judged=judged,
            recommendation=recommendation,
            posterior=posterior,
            steps=steps or {},
            in_steps=in_steps,
        )

    @property
    def searched(self) -> list[Row]:
        """The places at which a cause may be named."""
        return [row for row in self.places if TimingFlag.STARVED not in row["flags"]]

    @property
    def compared(self) -> list[Row]:
        """The rows that a place may be compared with: those that no flag puts in doubt, or all if there are none."""
        return _sound(self.rows) or [row for row in self.rows if TimingFlag.STARVED not in row["flags"]]

    def above(
        self,
        values: Mapping[str, float | None],
        threshold: float,
        figure: str,
        compared: Mapping[str, Row] | None = None,
    ) -> dict[str, float]:
        """Return the values, by label, that are above a threshold and whose interval is above half of it.

        Half means half of the excess over a healthy value: for a ratio of 1.2 that is 1.1. figure: whose `scatter`
        makes the interval; without repeats there is none. compared: by label, the row that a ratio is taken to.
        """
        healthy = threshold / 2 if threshold < 1 else (1 + threshold) / 2
        pooled = Scatter.pooled(row["scatter"][figure] for row in _sound(self.rows) or self.rows)
        found = {}
        for label, value in values.items():
            rows = [self.row(label), *([compared[label]] if compared else [])]
            runs = [max(row["scatter"][figure]["n"], 1) for row in rows]
            half = pooled.half(*runs, level=SURE) if pooled is not None else 0.0
            if value is not None and value > threshold and value * math.exp(-half) > healthy:
                found[label] = value
        return found

    def row(self, label: str) -> Row:
        """Return the row of this label."""
        return next(row for row in self.rows if row["label"] == label)

    def where(self, label: str) -> str:
        """Return the words that name the place."""
        chosen = self.places[0]["label"]
        return label if label == chosen else f"{label}, the next larger number of workers after {self.judged} {chosen}"

    def larger_batch(self, label: str, enough: Callable[[RowLaw, int, float], bool]) -> str | None:
        """Return `remedies.raise_batch` for a place; None too without a recommended cell to compare the gain with."""
        row, target = self.row(label), self.recommendation["target"]
        law = RowLaw.of(self.posterior, row)
        if law is None or not present(self.recommendation["recommended"]):
            return None
        steps = self.steps.get(combination_of(row["params"])) if target is not None else None
        if target is not None and (steps is None or steps.target != target):
            return None
        base_seconds = self.recommendation["recommended"].get("seconds")
        return raise_batch(law, row, self.places[0], enough, steps, base_seconds)


Rule = Callable[[Case], Verdict | None]


def verdicts(case: Case) -> list[Verdict]:
    """Return every verdict that holds. Verdicts that put the timings themselves in doubt stand first.

    If a cause is seen in timings with flags, its words say so.
    """
    on_timings, causes = ([found for rule in rules if (found := rule(case)) is not None] for rules in (DOUBTS, CAUSES))
    return on_timings + [_flagged(verdict, case) for verdict in causes]


def _flagged(verdict: Verdict, case: Case) -> Verdict:
    """Return the verdict with the flags of the timings that it rests on."""
    flags = doubts(flag for label in verdict["cells"] for flag in case.row(label)["flags"])
    if not flags:
        return verdict
    return {**verdict, "words": f"{verdict['words']} These timings are marked {', '.join(flags)}.", "flags": flags}


def oversubscribed(case: Case) -> Verdict | None:
    """Find places with more threads than cores, as the trials are flagged."""
    remedy = "Lower resources.cpus_per_worker or num_gpus, or use more cores."
    return _by_flag(case.rows, "oversubscribed", remedy)


def disturbed(case: Case) -> Verdict | None:
    """Find trials that shared a node with others while they were timed."""
    return _by_flag(case.rows, "disturbed", "Set resources.exclusive: true and run again.")


def _by_flag(rows: Sequence[Row], cause: str, remedy: str) -> Verdict | None:
    """Return the verdict for a flag on some rows. It has no threshold, and its words name every row."""
    flag, _ = FLAG_VERDICTS[cause]
    flagged = {row["label"]: 1.0 for row in rows if flag in row["flags"]}
    if not flagged:
        return None
    return _verdict(cause, flag_verdict_words(cause, list(flagged)), remedy, None, flagged)


def unsteady(case: Case) -> Verdict | None:
    """Find runs of the same steps that scatter by more than 20 %, over all places that no flag explains."""
    unexplained = [row for row in case.rows if CAUSES_OF_SCATTER.isdisjoint(row["flags"])]
    scatters = {row["label"]: row["scatter"]["seconds"] for row in unexplained}
    pooled = Scatter.pooled(scatters.values())
    if pooled is None or pooled.least(SURE) <= UNSTEADINESS:
        return None
    several = {label: float(each["value"]) for label, each in scatters.items() if each["value"] is not None}
    evidence = _largest_first({label: value for label, value in several.items() if value > UNSTEADINESS})
    words = (
        f"Timings of the same steps scatter by {pooled.deviation:.0%} (most at {next(iter(evidence))}; threshold "
        f"{UNSTEADINESS:.0%}): something disturbs them."
    )
    remedy = "Keep other work off the machine, and time again with more seeds or longer trainings."
    return _verdict("disturbed", words, remedy, UNSTEADINESS, evidence)


def not_sharded(case: Case) -> Verdict | None:
    """Find data that are not sharded: each worker goes through all of them.

    It shows in steps an epoch that do not fall as workers rise at the same batch a worker.
    """
    groups: dict[str, list[Row]] = {}
    for row in case.rows:
        if row.get("steps") and not case.in_steps:
            groups.setdefault(_share(row), []).append(row)
    evidence: dict[str, float] = {}
    for group in groups.values():
        few = min(group, key=lambda row: row["params"]["num_gpus"])
        for row in group:
            share = few["params"]["num_gpus"] / row["params"]["num_gpus"]
            most = few["steps"] * (share + SHARDED_HALFWAY * (1 - share))
            if row["steps"] > max(most, few["steps"] * share + 1):
                evidence[row["label"]] = row["steps"] / few["steps"]
    if not evidence:
        return None
    evidence = _largest_first(evidence)
    label, ratio = _first(evidence)
    words = (
        f"More workers make no fewer steps an epoch at the same batch a worker ({ratio:.2f}× as many, {label}): each "
        "goes through the whole data set."
    )
    return _verdict("not_sharded", words, "Give each worker a part of the data of its own.", None, evidence)


def straggler(case: Case) -> Verdict | None:
    """Find a slowest worker whose compute exceeds 1.15 × the median worker's."""
    several = {row["label"]: row["straggler_ratio"] for row in case.searched if row["params"]["num_gpus"] > 1}
    evidence = case.above(several, STRAGGLER_RATIO, "straggler_ratio")
    if not evidence:
        return None
    label, ratio = _first(evidence)
    words = (
        f"One worker is slower than the others, who wait for it: it computes {ratio:.2f}× as long as the median one "
        f"({case.where(label)}; threshold {STRAGGLER_RATIO}×)."
    )
    remedy = "Find what slows it down; where its device is slower, train.shards: speed gives it fewer examples."
    return _verdict("straggler", words, remedy, STRAGGLER_RATIO, evidence)


def data_wait(case: Case) -> Verdict | None:
    """Find places where exposed wait for data takes more than 15 % of a step."""
    evidence = case.above({row["label"]: phase_share(row, "data") for row in case.searched}, DATA_SHARE, "data")
    if not evidence:
        return None
    label, share = _first(evidence)
    words = f"Workers wait for data {share:.0%} of a step ({case.where(label)}; threshold {DATA_SHARE:.0%})."
    remedy = "Give data as tensors that fit the device, or leave more cores free for loader processes (4 a worker)."
    return _verdict("data", words, remedy, DATA_SHARE, evidence)


def allreduce(case: Case) -> Verdict | None:
    """Find places of several workers where exposed gradient synchronisation takes more than 15 % of a step."""
    several = [row for row in case.searched if row["params"]["num_gpus"] > 1]
    shares = {row["label"]: phase_share(row, "gradient_sync") for row in several}
    evidence = case.above(shares, SYNC_SHARE, "gradient_sync")
    if not evidence:
        return None
    label, share = _first(evidence)
    words = (
        f"Summing gradients over the workers takes {share:.0%} of a step ({case.where(label)}; threshold "
        f"{SYNC_SHARE:.0%})."
    )

    def little_sync(law: RowLaw, num_gpus: int, batch_size: float) -> bool:
        return law.sync_share(num_gpus, batch_size) <= SYNC_SHARE

    remedy = case.larger_batch(label, little_sync) or (
        "Sum less or faster (train.gradient_sync), or raise the batch where the target allows it."
    )
    return _verdict("allreduce", words, remedy, SYNC_SHARE, evidence)


def small_batch_per_worker(case: Case) -> Verdict | None:
    """Find places where a worker's batch is small.

    Its seconds per example at m = B/K exceed 1.25 × those at the largest m of as many workers and the same other
    settings. Fewer workers share the machine with fewer, which is another cause (`contention`).
    """
    largest: dict[str, Row] = {}
    for row in sorted(case.compared, key=lambda row: row["per_worker_batch"]):
        if _seconds_per_example(row):
            largest[key_of(row["params"], ("batch_size",))] = row
    compared = {
        row["label"]: most
        for row in case.searched
        if (most := largest.get(key_of(row["params"], ("batch_size",)))) is not None
        and row["per_worker_batch"] < most["per_worker_batch"]
    }
    evidence = _dearer(case, compared, SMALL_BATCH_RATIO)
    if not evidence:
        return None
    label, ratio = _first(evidence)
    share, most = case.row(label)["per_worker_batch"], compared[label]["per_worker_batch"]
    words = (
        f"Small batch per worker: an example costs {ratio:.2f}× as much at {share:g} examples a worker "
        f"({case.where(label)}) as at {most:g} (threshold {SMALL_BATCH_RATIO}×)."
    )

    def cheap_examples(law: RowLaw, num_gpus: int, batch_size: float) -> bool:
        shares = (batch_size / num_gpus, law.largest_share)
        here, least = (law.gradient_seconds(share) / share for share in shares)
        return here <= SMALL_BATCH_RATIO * least

    remedy = case.larger_batch(label, cheap_examples) or (
        "More examples a worker cost less each: a larger batch, where the target allows it, or fewer workers."
    )
    return _verdict("small_batch_per_worker", words, remedy, SMALL_BATCH_RATIO, evidence)


def contention(case: Case) -> Verdict | None:
    """Find places where a worker's share of the batch takes longer to compute because there are more workers.

    Its seconds of forward and backward, which hold no exposed wait, exceed 1.25 × those of the same share with the
    fewest workers that were timed with it, all other settings equal. These are the slowest worker's, so a straggler
    explains them.
    """
    one_is_slow = (straggler(case) or {"evidence": {}})["evidence"]
    fewest: dict[str, Row] = {}
    for row in sorted(case.compared, key=lambda row: -int(row["params"]["num_gpus"])):
        if _seconds_per_example(row):
            fewest[_share(row)] = row
    compared = {
        row["label"]: few
        for row in case.searched
        if row["label"] not in one_is_slow
        and (few := fewest.get(_share(row))) is not None
        and few["params"]["num_gpus"] < row["params"]["num_gpus"]
    }
    evidence = _dearer(case, compared, CONTENTION_RATIO)
    if not evidence:
        return None
    label, ratio = _first(evidence)
    row, few = case.row(label), compared[label]
    words = (
        f"The same share costs more with more workers: {row['per_worker_batch']:g} examples a worker take {ratio:.2f}× "
        f"as long to compute with {row['params']['num_gpus']} workers ({case.where(label)}) as with "
        f"{few['params']['num_gpus']} (threshold {CONTENTION_RATIO}×)."
    )
    remedy = "Workers share memory, caches, cores or heat: spread them over machines, or use fewer on each."
    return _verdict("contention", words, remedy, CONTENTION_RATIO, evidence)


def _dearer(case: Case, compared: Mapping[str, Row], threshold: float) -> dict[str, float]:
    """Return the places whose seconds per example are above a threshold × those of the row they are compared with."""
    ratios: dict[str, float | None] = {
        label: _seconds_per_example(case.row(label)) / _seconds_per_example(other) for label, other in compared.items()
    }
    return case.above(ratios, threshold, "forward_backward", compared)


def fixed_cost(case: Case) -> Verdict | None:
    """Find an alpha_c above 50 % of T_grad, and by its interval above 25 %, if the law of a step's time knows it."""
    evidence = {}
    for row in case.searched:
        law = RowLaw.of(case.posterior, row)
        if law is not None:
            least, share = np.quantile(law.fixed_shares(row["per_worker_batch"]), ENDS_AND_MEDIAN[:2]).tolist()
            if share > FIXED_SHARE and least > FIXED_SHARE / 2:
                evidence[row["label"]] = share
    if not evidence:
        return None
    label, share = _first(evidence)
    words = (
        f"{share:.0%} of computing a step is a fixed cost, whatever its examples ({case.where(label)}; threshold "
        f"{FIXED_SHARE:.0%}): launching kernels, Python; the model is small."
    )

    def little_fixed(law: RowLaw, num_gpus: int, batch_size: float) -> bool:
        return bool(np.median(law.fixed_shares(batch_size / num_gpus)) <= FIXED_SHARE)

    remedy = case.larger_batch(label, little_fixed) or (
        "Use train.compile, which launches fewer kernels, or more examples a worker where the target allows it."
    )
    return _verdict("fixed_cost", words, remedy, FIXED_SHARE, evidence)


def phase_share(row: Row, phase: str) -> float | None:
    """Return a phase's share of a step, 0 to 1, or None if phases were not measured."""
    if not present(row["step_seconds"]):
        return None
    total = sum(row["step_seconds"][name] for name in PHASES)
    return row["step_seconds"][phase] / total if total > 0 else None


def _sound(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that no flag puts in doubt."""
    return [row for row in rows if not doubts(row["flags"])]


def _seconds_per_example(row: Row) -> float:
    """Return the seconds per example; 0 if they were not measured."""
    return float(row["seconds_per_example"]["value"] or 0.0)


def _share(row: Row) -> str:
    """Return what rows have in common that differ only in their workers, each with the same share of the batch."""
    return f"{row['per_worker_batch']:g} {key_of(row['params'], ('num_gpus', 'batch_size'))}"


def _verdict(cause: str, words: str, remedy: str, threshold: float | None, evidence: dict[str, float]) -> Verdict:
    """Make the verdict. evidence: by label; the words name the first."""
    return {
        "cause": cause,
        "words": words,
        "evidence": evidence,
        "threshold": threshold,
        "remedy": remedy,
        "cells": list(evidence),
    }


def _first(evidence: Mapping[str, float]) -> tuple[str, float]:
    return next(iter(evidence.items()))


def _largest_first(evidence: Mapping[str, float]) -> dict[str, float]:
    return dict(sorted(evidence.items(), key=lambda item: -item[1]))


DOUBTS: tuple[Rule, ...] = (oversubscribed, disturbed, unsteady, not_sharded)
CAUSES: tuple[Rule, ...] = (straggler, data_wait, allreduce, small_batch_per_worker, contention, fixed_cost)
