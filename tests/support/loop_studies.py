"""Studies of a user's Ray Train loop with synthetic trials: what its lines hold, and what only our loop measures."""

from __future__ import annotations

import functools
from typing import Any

from scalestudy.experiments.plan.plan import Plan
from scalestudy.experiments.spec.study_spec import StudySpec
from tests.support.synthetic_studies import study_of
from tests.support.trials import Law

LOOP = """
name: of-a-loop
workload: {loop: 'my_loop:train', loop_args: {hidden: 8}, metrics: {accuracy: eval_acc}}
train: {epochs: 8}
sweep: {num_gpus: [1, 2], batch_size: [32, 64, 128], learning_rate: [0.2, 0.4, 0.8], seed: [0, 1]}
targets: {accuracy: [0.8], price_per_gpu_hour: 2}
"""
LAW = Law(noise=0.02, eval_seconds=0.05)
NOT_MEASURED = ("peak_memory_bytes", "sync_bytes", "replica_max_diff", "eval_seconds", "train_loss", "test_loss")


def as_a_loop_tells(line: dict[str, Any], *, samples: bool, rates: bool = False) -> None:
    """Turn the line of a trial into that of a loop's, in place.

    samples: whether it tells its examples. rates: whether it calls `scalestudy.step` too, which also times its steps.
    """
    for epoch in line["epochs"]:
        steps = {"steps": epoch["steps"], "samples_per_second": epoch["samples_per_second"]}
        epoch["train_seconds"] += epoch["eval_seconds"] or 0.0
        epoch |= {"phases": {}, "straggler_ratio": None, **dict.fromkeys(NOT_MEASURED)}
        epoch |= steps if rates else {"steps": 0, "samples_per_second": None}
        epoch["samples"] = epoch["samples"] if samples else 0
    line["train_seconds"] = sum(epoch["train_seconds"] for epoch in line["epochs"])


def loop_study(
    *, samples: bool = True, rates: bool = False, text: str = LOOP, law: Law = LAW, **keywords: Any
) -> tuple[StudySpec, Plan, list[dict[str, Any]]]:
    """A study of a loop, its plan and its lines."""
    return study_of(text, law, change=functools.partial(as_a_loop_tells, samples=samples, rates=rates), **keywords)
