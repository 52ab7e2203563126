"""A study in which every part of the summary is there: its trials follow laws that are known.

The parts that laws are fitted for are those of the same numbers, in `tests/data/rich_parts.json`: written by hand, so
that a change of a fit changes no page.
"""

import json
import math
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from scalestudy.experiments.analysis import summarise
from scalestudy.experiments.analysis.answers.analysis import Analysis
from scalestudy.experiments.report.explorer import explorer_data
from tests.support.project_files import REPOSITORY
from tests.support.synthetic_studies import study_of
from tests.support.trials import Law

WORKERS = (1, 2, 4, 8)
BATCHES = (128, 256, 512, 1024, 2048)
RATES = (0.05, 0.1, 0.2, 0.4)
TARGET = 0.85
TEXT = f"""
name: vision-scaling
description: How many GPUs does this convolutional network need, and at what batch size and learning rate?
train: {{epochs: 10}}
targets: {{accuracy: [0.8, {TARGET}], price_per_gpu_hour: 2.5}}
sweep: {{num_gpus: {list(WORKERS)}, batch_size: {list(BATCHES)}, learning_rate: {list(RATES)}, seed: [0, 1, 2, 3, 4]}}
"""
PARTS = (
    "throughput_model",
    "statistical_efficiency",
    "lr_rule",
    "predictions",
    "scaling",
)
"""The parts that a study may be unable to support."""

ALPHA_C, BETA_C, ALPHA_R, BETA_R, GAMMA, DATA = 16.5e-3, 315e-6, 19.5e-3, 3e-3, 1.6, 2.25e-3
S_MIN, B_CRIT = 60.0, 1200.0


def step_seconds(num_gpus: int, per_worker_batch: float) -> float:
    """T_iter of docs/formulas.md §4."""
    gradient = ALPHA_C + BETA_C * per_worker_batch
    sync = ALPHA_R + BETA_R * (num_gpus - 2) if num_gpus > 1 else 0.0
    return (gradient**GAMMA + sync**GAMMA) ** (1 / GAMMA) + DATA


def best_rate(batch_size: int) -> float:
    """The rate at which a batch needs fewest steps."""
    return 0.1 * (batch_size / 256) ** 0.7


def steps_to_target(batch_size: float, rate: float | None = None) -> float:
    """S(B) of docs/formulas.md §3, more of them beside the best rate."""
    off = 0.0 if rate is None else math.log(rate / best_rate(int(batch_size)))
    return S_MIN * (1 + B_CRIT / batch_size) * (1 + 0.35 * off**2)


@dataclass(frozen=True, kw_only=True)
class RichLaw(Law):
    """The truth behind the trials; a rate far above the best one diverges."""

    samples: int = 20_000
    noise: float = 0.02
    ceiling: float = 0.92

    def phases(self, num_gpus: int, batch_size: int) -> dict[str, float]:
        compute = ALPHA_C + BETA_C * batch_size / num_gpus
        whole = step_seconds(num_gpus, batch_size / num_gpus)
        update = 0.1 * compute
        return {
            "data": DATA,
            "forward_backward": compute - update,
            "gradient_sync": max(whole - compute - DATA, 0.0),
            "optimizer": update,
        }

    def accuracy(self, epoch: int, batch_size: int, learning_rate: float) -> float:
        steps = epoch * self.steps(batch_size)
        needed = steps_to_target(batch_size, learning_rate)
        at_target = math.log((self.ceiling - self.floor) / (self.ceiling - TARGET))
        return self.ceiling - (self.ceiling - self.floor) * math.exp(-at_target * steps / needed)


def _name(num_gpus: int, batch_size: int, rate: float, seed: int) -> str:
    return f"workers={num_gpus} batch={batch_size} lr={rate:g} seed={seed}"


@cache
def _made() -> tuple[Any, ...]:
    seeds = range(5)
    endings = {
        _name(workers, batch, rate, seed): "diverged"
        for workers in WORKERS
        for batch in BATCHES
        for rate in RATES
        for seed in seeds
        if rate > 4 * best_rate(batch)
    }
    endings[_name(2, 256, 0.1, 3)] = "failed"
    flags = {_name(8, 128, rate, seed): ["shared_node"] for rate in RATES for seed in seeds}
    message = "RuntimeError: cannot pin memory: the host has 2.1 GB left"
    return study_of(TEXT, RichLaw(), endings=endings, flags=flags, message=message, device="cuda")


@cache
def rich_data() -> dict[str, Any]:
    """What the study's page explores: its cells, at the spec's targets."""
    return explorer_data(Analysis(*_made()), _summary(), more_targets=False)


@cache
def _summary() -> dict[str, Any]:
    spec, plan, trials = _made()
    summary = summarise(spec, plan, trials, 21_000.0)
    summary["study"]["study_id"] = "vision-scaling-20260131T101500Z"
    parts = json.loads((REPOSITORY / "tests/data/rich_parts.json").read_text("utf-8"))
    summary["verdicts"].append(parts.pop("verdict"))
    summary.update(parts)
    for role in ("recommended", "fastest", "cheapest", "best_accuracy"):
        summary["recommendation"][role].update(_evidence(summary["recommendation"][role]))
    return summary


@cache
def _pickled() -> bytes:
    return pickle.dumps(_summary())


def rich_summary(missing: tuple[str, ...] = (), **replaced: Any) -> dict[str, Any]:
    """The study's summary, every part there but the named ones; replaced: parts of another kind."""
    summary = pickle.loads(_pickled())  # a fifth of a deep copy's time
    for key in missing:
        summary[key] = {"value": None, "why": f"too little was measured for {key.replace('_', ' ')}"}
    return {**summary, **replaced}


def estimate(value: float, share: float = 0.08) -> dict[str, Any]:
    """An estimate with an interval of this share to both sides."""
    return {"value": value, "low": value * (1 - share), "high": value * (1 + share)}


def unidentified(value: float | None, why: str) -> dict[str, Any]:
    """An estimate that the data do not identify."""
    return {"value": value, "low": None, "high": None, "identified": False, "why": why}


def _evidence(choice: Mapping[str, Any]) -> dict[str, Any]:
    words = "0.4 is the largest rate of the grid: the best rate may lie above it."
    caveats = [] if choice["batch_size"] != 2048 else [{"kind": "rate_edge", "words": words}]
    evidence = {"cells": [choice["label"]], "seeds": choice["n_seeds"], "kind": "measured"}
    return {"evidence": evidence, "caveats": caveats}
