"""Stage 8, analysis: why it does not get faster – each verdict with its evidence, threshold and remedy (METHODS §8).

A rule is a function from the timing rows (`scaling.timing_rows`) to at most one verdict; `RULES` lists them. The laws
of throughput bring further rules.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from experiments.analysis.parts import present
from experiments.analysis.scaling import STRONG
from experiments.analysis.trial_measures import PHASES

DATA_SHARE = 0.15
SYNC_SHARE = 0.15
SMALL_BATCH_RATIO = 1.25

Row = Mapping[str, Any]
Verdict = dict[str, Any]
Rule = Callable[[Sequence[Row]], Verdict | None]


def phase_share(row: Row, phase: str) -> float | None:
    """A phase's share of a step, 0 to 1; None where phases were not measured."""
    if not present(row["step_seconds"]):
        return None
    total = sum(row["step_seconds"][name] for name in PHASES)
    return row["step_seconds"][phase] / total if total > 0 else None


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
    return max(evidence.items(), key=lambda item: item[1])


def _above(values: Mapping[str, float | None], threshold: float) -> dict[str, float]:
    return {label: value for label, value in values.items() if value is not None and value > threshold}


def data_wait(rows: Sequence[Row]) -> Verdict | None:
    """Exposed wait for data above 15 % of a step."""
    evidence = _above({row["label"]: phase_share(row, "data") for row in rows}, DATA_SHARE)
    if not evidence:
        return None
    label, share = _worst(evidence)
    words = f"Workers wait for data {share:.0%} of a step ({label}; threshold {DATA_SHARE:.0%})."
    remedy = "Keep the data set on the training device, or load it with more processes."
    return _verdict("data", words, remedy, DATA_SHARE, evidence)


def allreduce(rows: Sequence[Row]) -> Verdict | None:
    """Exposed gradient synchronisation above 15 % of a step, with more than one worker."""
    several = [row for row in rows if row["params"]["num_gpus"] > 1]
    evidence = _above({row["label"]: phase_share(row, "gradient_sync") for row in several}, SYNC_SHARE)
    if not evidence:
        return None
    label, share = _worst(evidence)
    words = f"Summing gradients over the workers takes {share:.0%} of a step ({label}; threshold {SYNC_SHARE:.0%})."
    remedy = "Use a larger batch, so that there are fewer steps an epoch, or fewer workers."
    return _verdict("allreduce", words, remedy, SYNC_SHARE, evidence)


def small_batch_per_worker(rows: Sequence[Row]) -> Verdict | None:
    """Seconds per example at m = B/K more than 1.25 × those at the largest m."""
    known = [row for row in rows if present(row["seconds_per_example"]) and row["seconds_per_example"]["value"] > 0]
    if not known:
        return None
    largest = max(known, key=lambda row: row["per_worker_batch"])
    least = largest["seconds_per_example"]["value"]
    ratios = {
        row["label"]: row["seconds_per_example"]["value"] / least
        for row in known
        if row["per_worker_batch"] < largest["per_worker_batch"]
    }
    evidence = _above(ratios, SMALL_BATCH_RATIO)
    if not evidence:
        return None
    label, ratio = _worst(evidence)
    share = {row["label"]: row["per_worker_batch"] for row in known}[label]
    words = (
        f"Small batch per worker: an example costs {ratio:.2f}× as much at {share:g} examples a worker ({label}) as at "
        f"{largest['per_worker_batch']:g} (threshold {SMALL_BATCH_RATIO}×)."
    )
    remedy = f"Raise the batch towards {largest['per_worker_batch']:g} examples a worker."
    return _verdict("small_batch_per_worker", words, remedy, SMALL_BATCH_RATIO, evidence)


def oversubscribed(rows: Sequence[Row]) -> Verdict | None:
    """More threads than cores, as the trials were flagged."""
    words = "There were more threads than cores ({}): these timings say little about scaling."
    remedy = "Lower resources.cpus_per_worker or num_gpus, or use more cores."
    return _by_flag(rows, "oversubscribed", "oversubscribed", words, remedy)


def disturbed(rows: Sequence[Row]) -> Verdict | None:
    """Trials that shared a node with others while they were timed."""
    words = "Other trials ran on the same node ({}): these timings are disturbed."
    remedy = "Set resources.exclusive: true and run again."
    return _by_flag(rows, "shared_node", "disturbed", words, remedy)


def _by_flag(rows: Sequence[Row], flag: str, cause: str, words: str, remedy: str) -> Verdict | None:
    """The verdict of a flag on some rows; words: with a place for their labels."""
    flagged = {row["label"]: 1.0 for row in rows if flag in row["flags"]}
    if not flagged:
        return None
    return _verdict(cause, words.format(", ".join(flagged)), remedy, None, flagged)


RULES: tuple[Rule, ...] = (oversubscribed, disturbed, data_wait, allreduce, small_batch_per_worker)


def verdicts(rows: Sequence[Row]) -> list[Verdict]:
    """Every verdict that holds, those that put the timings themselves in doubt first."""
    return [verdict for rule in RULES if (verdict := rule(rows)) is not None]


def scaling_answer(rows: Sequence[Row]) -> dict[str, Any] | None:
    """Were more workers faster than one, at the same batch? The best and the worst strong pair of the smallest
    num_gpus above 1, as words and figures; None where the study has no such pair.
    """
    strong = [row for row in rows if row["scaling"] == STRONG and row["speedup"] is not None]
    if not strong:
        return None
    workers = min(row["params"]["num_gpus"] for row in strong)
    pairs = sorted((row for row in strong if row["params"]["num_gpus"] == workers), key=lambda row: row["speedup"])
    worst, best = pairs[0], pairs[-1]
    return {
        "num_gpus": workers,
        "best": {key: best[key] for key in ("label", "speedup", "efficiency")},
        "worst": {key: worst[key] for key in ("label", "speedup", "efficiency")},
        "words": _scaling_words(workers, best, worst, len(pairs)) + _most_words(max(strong, key=_gain), workers),
    }


def _gain(row: Row) -> float:
    return float(row["speedup"])


def _most_words(most: Row, workers: int) -> str:
    """The largest speed-up of the study, where it needs more workers than those spoken of."""
    if most["params"]["num_gpus"] <= workers:
        return ""
    return f" The most was {most['speedup']:.2f}× with {most['params']['num_gpus']} ({most['label']})."


SAME_SPEED = 0.05
"""Speed-ups within 5 % of 1 are told as no difference: repeated timings on a quiet machine differ by as much."""


def _scaling_words(workers: int, best: Row, worst: Row, pairs: int) -> str:
    count = {2: "Two", 3: "Three", 4: "Four", 8: "Eight"}.get(workers, str(workers))
    if best["speedup"] <= 1 - SAME_SPEED:
        verdict = "slower than one"
    elif worst["speedup"] >= 1 + SAME_SPEED:
        verdict = "faster than one"
    elif pairs == 1 or best["speedup"] < 1 + SAME_SPEED:
        verdict = "about as fast as one"
    else:
        verdict = "not always faster than one"
    by_batch = best["params"]["batch_size"] != worst["params"]["batch_size"] or pairs == 1
    where = {
        row["label"]: f"batch {row['params']['batch_size']}" if by_batch else row["label"] for row in (best, worst)
    }
    at_best = f"{best['speedup']:.2f}× at {where[best['label']]}, efficiency {best['efficiency']:.2f}"
    if pairs == 1:
        return f"{count} workers were {verdict} at the same batch: {at_best}."
    at_worst = f"{worst['speedup']:.2f}× at {where[worst['label']]}"
    return f"{count} workers were {verdict} at the same batch: {at_best}; {at_worst}."
