"""Pairs of keys whose values do not go together."""

from __future__ import annotations

from typing import Any

import pytest

from scalestudy.training.config import TrainConfig
from scalestudy.training.contradictions import CONTRADICTIONS, Contradiction
from scalestudy.training.section import ConfigError
from tests.support.training.helpers import make_config


@pytest.mark.parametrize("pair", CONTRADICTIONS, ids=lambda pair: f"{pair.key}-{pair.other_key}")
def test_every_contradiction_is_refused(pair: Contradiction) -> None:
    """By values of which each is fine with the defaults of all other keys, or those that it needs."""
    values: dict[str, tuple[Any, ...]] = {
        "lr_rule": ("adascale",),
        "warmup_epochs": (1.0,),
        "warmup_steps": (5,),
        "gradient_sync": ("bf16",),
        "schedule": ("one_cycle",),
        "loss": ("mse",),
        "augment": ("crop_flip",),
        "task": ("my_task:Task", None),
        "optimizer.name": ("sgd", "adam", "my_optimizer:build"),
        "optimizer.momentum": (0.9, 0.0),
        "optimizer.dampening": (0.5,),
        "optimizer.nesterov": (True,),
        "optimizer.betas": ([0.9, 0.95],),
        "optimizer.eps": (1e-6,),
        "optimizer.amsgrad": (True,),
        "optimizer.weight_decay": (0.1,),
        "optimizer.args": ({"a": 1},),
        "steps": (100,),
        "tokens": (1000,),
        "epochs": (1,),
        "eval_every": ({"steps": 5}, {"epochs": 1}),
    }
    plain = make_config().to_dict()
    lengths = {pair.key, pair.other_key} & {"epochs", "steps", "tokens"}
    if lengths:
        plain["epochs"] = None
    if "tokens" in lengths and pair.other_key != "task":
        plain |= {"task": "my_task:Task", "metric": "f1"}
    if pair.key == "optimizer.nesterov" and pair.other_key == "optimizer.dampening":
        plain["optimizer"]["momentum"] = 0.5
    sides = ((pair.key, pair.applies), (pair.other_key, pair.other_applies))
    for key, applies in sides:
        section, _, name = key.rpartition(".")
        (plain[section] if section else plain)[name] = next(value for value in values[key] if applies(value))
    with pytest.raises(ConfigError) as caught:
        TrainConfig.from_dict(plain)
    told = [(problem.field, problem.remedy) for problem in caught.value.problems]
    both = pair.key == "optimizer.nesterov" and pair.other_key == "optimizer.name"  # no optimizer without momentum
    assert told == [(pair.key, pair.remedy)] or (both and (pair.key, pair.remedy) in told)
