"""Epoch records for tests that look at little of them."""

from __future__ import annotations

import math
from typing import Any

from scalestudy.training.records import EpochRecord


def epoch_of(
    number: int, value: float | None = 0.5, *, metric: str = "accuracy", seconds: float = 1.0, **facts: Any
) -> EpochRecord:
    """An epoch with this value of its target metric; None: it was not evaluated."""
    standard: dict[str, Any] = {
        "at": "2026-01-01T00:00:00.000Z",
        "steps": 10,
        "train_loss": 0.5,
        "test_loss": 0.5,
        "eval_seconds": 0.1,
        "samples": 100,
        "samples_per_second": 10.0,
        "phases": {},
        "peak_memory_bytes": 1,
        "replica_max_diff": 0.0,
        "sync_bytes": 0,
        "learning_rate": 0.1,
    }
    measured = math.nan if value is None else value
    if metric == "loss":  # its key is that of the test loss
        standard["test_loss"] = measured
    return EpochRecord(
        epoch=number, metric=metric, test_metric=measured, train_seconds=seconds, **{**standard, **facts}
    )
