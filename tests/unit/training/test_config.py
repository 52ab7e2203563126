"""The config: how it is made, kept and compared. Which values it refuses, the table of bad input says."""

from __future__ import annotations

import json
import pickle
from typing import Annotated, Any

import pytest

from scalestudy.training.config import LoaderConfig, OptimizerConfig, TrainConfig
from scalestudy.training.registry import MODELS
from scalestudy.training.section import (
    Affects,
    BuiltIn,
    ConfigError,
    Only,
    Section,
    Text,
    affects,
    changed,
    names_of,
    strategy_of,
)
from tests.support.training.helpers import make_config


def test_a_config_survives_json() -> None:
    config = make_config(shards=(0.7, 0.3), gradient_clip=1.0, optimizer=OptimizerConfig(momentum=0.9), data_root="x")
    assert TrainConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert TrainConfig.from_dict(make_config().to_dict()) == make_config()


def test_plain_data_and_checked_values_are_read_the_same() -> None:
    plain = make_config(shards=[1, 2], optimizer={"momentum": 0.9}, loader={"workers": 1})
    assert plain.shards == (1.0, 2.0)
    assert plain == make_config(
        shards=(1.0, 2.0), optimizer=OptimizerConfig(momentum=0.9), loader=LoaderConfig(workers=1)
    )
    assert plain.replace(seed=3).replace(seed=0) == plain


def test_every_way_to_make_a_config_tells_all_problems_and_pickle_keeps_them() -> None:
    plain, bad = make_config().to_dict(), {"epochs": 0, "optimizer": {"momentum": 2, "beta": 1}, "batch_size": "256"}
    ways = (TrainConfig.from_dict, lambda values: TrainConfig(**values), lambda values: make_config().replace(**bad))
    told = []
    for make in ways:
        with pytest.raises(ConfigError) as caught:
            make(plain | bad)
        told.append({problem.text() for problem in caught.value.problems})
        assert {*str(caught.value).splitlines()} == told[0]
        assert pickle.loads(pickle.dumps(caught.value)).problems == caught.value.problems
    assert told[0] == told[1] == told[2]
    assert len(told[0]) == 4
    del plain["batch_size"]
    with pytest.raises(ConfigError, match=r"^batch_size: is missing; add `batch_size: …`"):
        TrainConfig(**plain)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("shards", ()),
        ("shards", (0.0, 0.0)),
        ("shards", (1, -1)),
        ("shards", (1, "2")),
        ("model_args", {1: 2}),
        ("optimizer", {"betas": (0.9,)}),
        ("optimizer", {"betas": (0.9, 1.0)}),
    ],
)
def test_a_bad_value_that_no_file_can_hold_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^{field}\b.*: .*; ") as caught:
        make_config(**{field: value})
    assert len(caught.value.problems) == 1


def test_numbers_are_kept_as_the_key_has_them() -> None:
    """A trial's id and a checkpoint's identity are made from the text of these numbers."""
    config = make_config(learning_rate=1, warmup_epochs=0, shards=(3, 1))
    assert (repr(config.learning_rate), repr(config.warmup_epochs), config.shards) == ("1.0", "0.0", (3.0, 1.0))
    with pytest.raises(ConfigError, match=r"^learning_rate: 10+… is not a finite number"):
        make_config(learning_rate=10**400)


class Marked(Section):
    """Marks beside a union of types, and within."""

    beside: Annotated[Text | None, BuiltIn(MODELS), Affects(step=False), Only("ring")] = None
    within: Annotated[Text, BuiltIn(MODELS), Affects(step=False), Only("ring")] | None = None


@pytest.mark.parametrize("key", ["beside", "within"])
def test_the_marks_of_a_key_are_found(key: str) -> None:
    field = Marked.model_fields[key]
    assert (names_of(field), affects(field), strategy_of(field)) == (MODELS, Affects(step=False), "ring")


def test_weights_fit_the_world() -> None:
    assert make_config().weights(3) == (1.0, 1.0, 1.0)
    assert make_config(shards=(2.0, 1.0)).weights(2) == (2.0, 1.0)
    with pytest.raises(ValueError, match=r"shards: .* 2 weights for 3 workers"):
        make_config(shards=(2.0, 1.0)).weights(3)


def test_only_what_differs_from_the_defaults_is_kept() -> None:
    """So a key that a later version adds changes no trial's id."""
    assert changed(TrainConfig, TrainConfig(batch_size=2, learning_rate=0.1).to_dict()) == {
        "batch_size": 2,
        "learning_rate": 0.1,
    }
    adam = make_config(optimizer=OptimizerConfig(name="adam", betas=(0.9, 0.95)), warmup_steps=3, compile=True)
    kept = changed(TrainConfig, {**adam.to_dict(), "unknown": None})
    assert kept["optimizer"] == {"name": "adam", "betas": [0.9, 0.95]}
    assert kept["warmup_steps"] == 3
    assert kept["compile"] is True
    assert kept["unknown"] is None
    assert "loader" in changed(TrainConfig, {"loader": {"workers": 1, "prefetch": 2}})
    assert changed(TrainConfig, {"loader": {"workers": 1}}, lambda affected: affected.result) == {}
    plain = {"model": "lenet", "data": "digits", "optimizer": {"name": "sgd", "eps": None}}
    kept = changed(TrainConfig, plain, always=("model", "optimizer.name"))
    assert kept == {"model": "lenet", "optimizer": {"name": "sgd"}}
