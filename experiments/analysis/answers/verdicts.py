"""Why it does not get faster: verdicts, each with its evidence, threshold and remedy (docs/formulas.md §8).

A rule is a function from the timing rows (`scaling.timing_rows`) and the law of a step's time to at most one verdict.
`DOUBTS` and `CAUSES` list them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from scalestudy.experiments.analysis.answers.remedies import RowLaw, raise_batch
from scalestudy.experiments.analysis.answers.throughput import DOUBTFUL
from scalestudy.experiments.analysis.measures.cells import key_of
from scalestudy.experiments.analysis.measures.parts import Figure, Row, present
from scalestudy.experiments.analysis.measures.records import PHASES
from scalestudy.experiments.analysis.measures.units import flag_verdict_words

DATA_SHARE = 0.15
SYNC_SHARE = 0.15
SMALL_BATCH_RATIO = 1.25
FIXED_SHARE = 0.5
STRAGGLER_RATIO = 1.15
UNSTEADINESS = 0.2
SHARDED_HALFWAY = 0.5
"""Above this point between falling with the workers and staying constant, steps count as not falling."""
Verdict = dict[str, Any]
Rule = Callable[[Sequence[Row], Figure | None, Figure | None], Verdict | None]


def verdicts(rows: Sequence[Row], throughput: Figure | None = None, efficiency: Figure | None = None) -> list[Verdict]:
    """Every verdict that holds. Those that put the timings themselves in doubt stand first.

    Causes are looked for in the timings that no flag puts in doubt. If all are flagged, all are used, and the words say
    so.

    Args:
        rows: from `scaling.timing_rows`, those with a time.
        throughput: from `throughput.throughput_part`. With it remedies say what they are predicted to bring, and fixed
            costs are judged.
        efficiency: from `efficiency.statistical_efficiency`. With it remedies are chosen by the time to its
            target.
    """
    doubts = [verdict for rule in DOUBTS if (verdict := rule(rows, throughput, efficiency)) is not None]
    sound = [row for row in rows if not DOUBTFUL & set(row["flags"])]
    causes = [verdict for rule in CAUSES if (verdict := rule(sound or rows, throughput, efficiency)) is not None]
    return doubts + (causes if sound else [_flagged(verdict, rows) for verdict in causes])


def _flagged(verdict: Verdict, rows: Sequence[Row]) -> Verdict:
    """The verdict with the flags of the timings that it rests on."""
    flags = sorted({flag for row in rows if row["label"] in verdict["cells"] for flag in DOUBTFUL & set(row["flags"])})
    return {**verdict, "words": f"{verdict['words']} These timings are marked {', '.join(flags)}.", "flags": flags}


def oversubscribed(
    rows: Sequence[Row], throughput: Figure | None = None, efficiency: Figure | None = None
) -> Verdict | None:
    """There were more threads than cores, as the trials are flagged."""
    remedy = "Lower resources.cpus_per_worker or num_gpus, or use more cores."
    return _by_flag(rows, "oversubscribed", "oversubscribed", remedy)


def disturbed(
    rows: Sequence[Row], throughput: Figure | None = None, efficiency: Figure | None = None
) -> Verdict | None:
    """Trials shared a node with others while they were timed."""
    return _by_flag(rows, "shared_node", "disturbed", "Set resources.exclusive: true and run again.")


def _by_flag(rows: Sequence[Row], flag: str, cause: str, remedy: str) -> Verdict | None:
    """The verdict for a flag on some rows. It has no threshold, and its words name every row."""
    flagged = {row["label"]: 1.0 for row in rows if flag in row["flags"]}
    if not flagged:
        return None
    return _verdict(cause, flag_verdict_words(cause, list(flagged)), remedy, None, flagged)


def unsteady(rows: Sequence[Row], throughput: Figure | None = None, efficiency: Figure | None = None) -> Verdict | None:
    """Repeated timings differ by more than 20 %, on rows that no flag explains."""
    differ = {row["label"]: row["unsteadiness"]["value"] for row in rows if "shared_node" not in row["flags"]}
    evidence = _above(differ, UNSTEADINESS)
    if not evidence:
        return None
    label, ratio = _worst(evidence)
    words = f"Repeated timings differ by {ratio:.0%} ({label}; threshold {UNSTEADINESS:.0%}): something disturbs them."
    remedy = "Keep other work off the machine, and time again with more seeds or longer epochs."
    return _verdict("disturbed", words, remedy, UNSTEADINESS, evidence)


def not_sharded(
    rows: Sequence[Row], throughput: Figure | None = None, efficiency: Figure | None = None
) -> Verdict | None:
    """Steps an epoch do not fall as workers rise at the same batch a worker: each worker goes through all the data."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if row.get("steps"):
            alike = f"{row['per_worker_batch']:g} {_alike(row)}"
            groups.setdefault(alike, []).append(row)
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
    label, ratio = _worst(evidence)
    words = (
        f"More workers make no fewer steps an epoch at the same batch a worker ({ratio:.2f}× as many, {label}): each "
        "goes through the whole data set."
    )
    return _verdict("not_sharded", words, "Give each worker a part of the data of its own.", None, evidence)


def straggler(
    rows: Sequence[Row], throughput: Figure | None = None, efficiency: Figure | None = None
) -> Verdict | None:
    """The slowest worker's compute exceeds 1.15 × the median worker's."""
    several = [row for row in rows if row["params"]["num_gpus"] > 1]
    evidence = _above({row["label"]: row["straggler_ratio"] for row in several}, STRAGGLER_RATIO)
    if not evidence:
        return None
    label, ratio = _worst(evidence)
    words = (
        f"One worker is slower than the others, who wait for it: it computes {ratio:.2f}× as long as the median one "
        f"({label}; threshold {STRAGGLER_RATIO}×)."
    )
    remedy = "Find what slows it down; where its device is slower, train.shards: speed gives it fewer examples."
    return _verdict("straggler", words, remedy, STRAGGLER_RATIO, evidence)


def data_wait(
    rows: Sequence[Row], throughput: Figure | None = None, efficiency: Figure | None = None
) -> Verdict | None:
    """Exposed wait for data takes more than 15 % of a step."""
    evidence = _above({row["label"]: phase_share(row, "data") for row in rows}, DATA_SHARE)
    if not evidence:
        return None
    label, share = _worst(evidence)
    words = f"Workers wait for data {share:.0%} of a step ({label}; threshold {DATA_SHARE:.0%})."
    remedy = "Give data as tensors that fit the device, or leave more cores free for loader processes (4 a worker)."
    return _verdict("data", words, remedy, DATA_SHARE, evidence)


def allreduce(
    rows: Sequence[Row], throughput: Figure | None = None, efficiency: Figure | None = None
) -> Verdict | None:
    """With several workers, exposed gradient synchronisation takes more than 15 % of a step."""
    several = [row for row in rows if row["params"]["num_gpus"] > 1]
    evidence = _above({row["label"]: phase_share(row, "gradient_sync") for row in several}, SYNC_SHARE)
    if not evidence:
        return None
    label, share = _worst(evidence)
    words = f"Summing gradients over the workers takes {share:.0%} of a step ({label}; threshold {SYNC_SHARE:.0%})."

    def little_sync(law: RowLaw, num_gpus: int, batch_size: float) -> bool:
        return law.sync_share(num_gpus, batch_size) <= SYNC_SHARE

    larger = raise_batch(RowLaw.of(throughput, _row(rows, label)), _row(rows, label), little_sync, efficiency)
    remedy = larger or "Use a larger batch, so that there are fewer steps an epoch, or fewer workers."
    return _verdict("allreduce", words, remedy, SYNC_SHARE, evidence)


def small_batch_per_worker(
    rows: Sequence[Row], throughput: Figure | None = None, efficiency: Figure | None = None
) -> Verdict | None:
    """Seconds per example at m = B/K exceed 1.25 × those at the largest m of the same other settings."""
    known = [row for row in rows if present(row["seconds_per_example"]) and row["seconds_per_example"]["value"] > 0]
    largest: dict[str, Row] = {}
    for row in sorted(known, key=lambda row: row["per_worker_batch"]):
        largest[_alike(row)] = row
    ratios = {
        row["label"]: row["seconds_per_example"]["value"] / largest[_alike(row)]["seconds_per_example"]["value"]
        for row in known
        if row["per_worker_batch"] < largest[_alike(row)]["per_worker_batch"]
    }
    evidence = _above(ratios, SMALL_BATCH_RATIO)
    if not evidence:
        return None
    label, ratio = _worst(evidence)
    share, most = (row["per_worker_batch"] for row in (_row(rows, label), largest[_alike(_row(rows, label))]))
    words = (
        f"Small batch per worker: an example costs {ratio:.2f}× as much at {share:g} examples a worker ({label}) as at "
        f"{most:g} (threshold {SMALL_BATCH_RATIO}×)."
    )

    def cheap_examples(law: RowLaw, num_gpus: int, batch_size: float) -> bool:
        shares = (batch_size / num_gpus, law.largest_share)
        here, least = (float(law.constants.gradient_seconds(share)) / share for share in shares)
        return here <= SMALL_BATCH_RATIO * least

    larger = raise_batch(RowLaw.of(throughput, _row(rows, label)), _row(rows, label), cheap_examples, efficiency)
    remedy = larger or f"Raise the batch towards {most:g} examples a worker."
    return _verdict("small_batch_per_worker", words, remedy, SMALL_BATCH_RATIO, evidence)


def fixed_cost(
    rows: Sequence[Row], throughput: Figure | None = None, efficiency: Figure | None = None
) -> Verdict | None:
    """alpha_c exceeds 50 % of T_grad, if the law of a step's time knows alpha_c."""
    laws = {row["label"]: RowLaw.of(throughput, row) for row in rows}
    shares = {
        row["label"]: law.fixed_share(row["per_worker_batch"])
        for row in rows
        if (law := laws[row["label"]]) is not None and law.fixed_cost_known
    }
    evidence = _above(shares, FIXED_SHARE)
    if not evidence:
        return None
    label, share = _worst(evidence)
    words = (
        f"{share:.0%} of computing a step is a fixed cost, whatever its examples ({label}; threshold "
        f"{FIXED_SHARE:.0%}): launching kernels, Python; the model is small."
    )

    def little_fixed(law: RowLaw, num_gpus: int, batch_size: float) -> bool:
        return law.fixed_share(batch_size / num_gpus) <= FIXED_SHARE

    larger = raise_batch(laws[label], _row(rows, label), little_fixed, efficiency)
    remedy = larger or "Use more examples a worker, or train.compile, so that fewer kernels are launched."
    return _verdict("fixed_cost", words, remedy, FIXED_SHARE, evidence)


def phase_share(row: Row, phase: str) -> float | None:
    """A phase's share of a step, 0 to 1, or None if phases were not measured."""
    if not present(row["step_seconds"]):
        return None
    total = sum(row["step_seconds"][name] for name in PHASES)
    return row["step_seconds"][phase] / total if total > 0 else None


def _alike(row: Row) -> str:
    """What rows share that differ only in a worker's part of the batch."""
    return key_of(row["params"], ("num_gpus", "batch_size"))


def _row(rows: Sequence[Row], label: str) -> Row:
    return next(row for row in rows if row["label"] == label)


def _verdict(cause: str, words: str, remedy: str, threshold: float | None, evidence: dict[str, float]) -> Verdict:
    return {
        "cause": cause,
        "words": words,
        "evidence": evidence,
        "threshold": threshold,
        "remedy": remedy,
        "cells": list(evidence),
    }


def _worst(evidence: Mapping[str, float]) -> tuple[str, float]:
    """The first of the cells with the largest value. It is the one that a verdict's words name."""
    return max(evidence.items(), key=lambda item: item[1])


def _above(values: Mapping[str, float | None], threshold: float) -> dict[str, float]:
    return {label: value for label, value in values.items() if value is not None and value > threshold}


DOUBTS: tuple[Rule, ...] = (oversubscribed, disturbed, unsteady, not_sharded)
CAUSES: tuple[Rule, ...] = (straggler, data_wait, allreduce, small_batch_per_worker, fixed_cost)
