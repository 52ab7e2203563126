"""Prints why a worker may train no second trial, for each way to keep a layer: a program of `test_rehearsal`.

A process that runs no training, as the rehearsal's, so that its forks are fresh.
"""

from __future__ import annotations

import json
from typing import Any

from scalestudy.orchestration.study.rehearsal import Order, answers_of, why_fresh
from scalestudy.training.rehearsal import Division
from tests.support.training.helpers import make_config
from tests.support.training.strangers import HERE

WAYS = (
    "nowhere",
    "in a cache",
    "in the module",
    "in the class",
    "in a default argument",
    "as a weight",
    "as a count",
    "as a child",
    "by its metric",
    "by the clock",
)


def order_of(kept: str) -> Order:
    """A kind whose model keeps its first layer so."""
    metric = f"{HERE}:counted" if kept == "by its metric" else "accuracy"
    config = make_config(model=f"{HERE}:Backbone", model_args={"kept": kept}, metric=metric)
    return Order(config=config, divisions=(Division.of(config, 1),), in_group=False)


def reasons() -> dict[str, str]:
    """By the way that a layer is kept."""
    found: dict[str, Any] = {}
    for kept in WAYS:
        order = order_of(kept)
        first, again, _ = answers_of([order], "")
        found[kept] = why_fresh(order, first[0], again[0], "")
    return found


if __name__ == "__main__":
    print(json.dumps(reasons()))
