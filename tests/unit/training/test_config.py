"""The config: what it accepts, what it refuses and how it says so."""

from __future__ import annotations

import json
import math
import pickle
from typing import Any

import pytest

from scalestudy.training.config import LoaderConfig, OptimizerConfig, TrainConfig
from scalestudy.training.section import ConfigError, changed
from tests.support.training.helpers import make_config


def test_a_config_survives_json() -> None:
    config = make_config(shards=(0.7, 0.3), gradient_clip=1.0, optimizer=OptimizerConfig(momentum=0.9), data_root="x")
    assert TrainConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert TrainConfig.from_dict(make_config().to_dict()) == make_config()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", "resnet1000"),
        ("model", 3),
        ("model", "package:"),
        ("model", "pack age:model"),
        ("data", "cifar"),
        ("batch_size", 0),
        ("batch_size", -1),
        ("batch_size", 2.0),
        ("batch_size", True),
        ("batch_size", "256"),
        ("epochs", 0),
        ("seed", -1),
        ("warm_up_steps", -1),
        ("learning_rate", 0),
        ("learning_rate", -0.1),
        ("learning_rate", math.nan),
        ("learning_rate", math.inf),
        ("learning_rate", "0.1"),
        ("learning_rate", True),
        ("gradient_clip", 0),
        ("gradient_clip", math.inf),
        ("gradient_sync", "horovod"),
        ("loss", "hinge"),
        ("metric", "top5"),
        ("shards", "odd"),
        ("shards", ()),
        ("shards", (0.0, 0.0)),
        ("shards", (1, -1)),
        ("shards", (1, "2")),
        ("shards", [1, 1.5, "2"]),
        ("channels_last", 1),
        ("sync_batch_norm", 1),
        ("warmup_epochs", False),
        ("epochs", 1.0),
        ("epochs", None),
        ("seed", 2**31),
        ("eval_every", {"epochs": 1, "steps": 1}),
        ("eval_every", {"epochs": True}),
        ("loader", {"workers": 257}),
        ("model_args", [1]),
        ("model_args", {1: 2}),
        ("data_args", None),
        ("optimizer", "sgd"),
        ("optimizer", ["sgd"]),
    ],
)
def test_a_bad_value_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^{field}\b.*: .*; ") as caught:
        make_config(**{field: value})
    assert len(caught.value.problems) == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "rmsprop"),
        ("betas", (0.9,)),
        ("betas", (0.9, 1.0)),
        ("eps", 0),
        ("momentum", 1.0),
        ("momentum", -0.1),
        ("weight_decay", -1.0),
        ("weight_decay", math.nan),
    ],
)
def test_a_bad_optimizer_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^optimizer\.{field}: .*; "):
        make_config(optimizer={field: value})


def test_plain_data_and_checked_values_are_read_the_same() -> None:
    plain = make_config(shards=[1, 2], optimizer={"momentum": 0.9}, loader={"workers": 1})
    assert plain.shards == (1.0, 2.0)
    assert plain == make_config(
        shards=(1.0, 2.0), optimizer=OptimizerConfig(momentum=0.9), loader=LoaderConfig(workers=1)
    )
    assert plain.replace(seed=3).replace(seed=0) == plain
    with pytest.raises(ConfigError, match=r"^seed: -1 is too small"):
        plain.replace(seed=-1)


def test_momentum_without_effect_is_refused() -> None:
    told = r"optimizer\.momentum: 0\.9 does not go with optimizer\.name adam: only sgd uses it; set momentum to 0"
    with pytest.raises(ConfigError, match=told):
        make_config(optimizer=OptimizerConfig(name="adam", momentum=0.9))


def test_all_problems_are_told_at_once() -> None:
    plain = make_config().to_dict() | {"epochs": 0, "optimizer": {"momentum": 2, "beta": 1}, "rate": 1}
    del plain["batch_size"]
    with pytest.raises(ConfigError) as caught:
        TrainConfig.from_dict(plain)
    assert [problem.field for problem in caught.value.problems] == [
        "epochs",
        "optimizer.momentum",
        "optimizer.beta",
        "batch_size",
        "rate",
    ]
    assert "epochs: 0 is too small; use at least 1" in str(caught.value).splitlines()
    assert pickle.loads(pickle.dumps(caught.value)).problems == caught.value.problems


@pytest.mark.parametrize(
    ("values", "fields"),
    [
        ({"metric": "foo", "lr_rule": "adascale", "optimizer": {"name": "adam"}}, ["metric", "lr_rule"]),
        ({"optimizer": {"name": "adam", "momentum": 2}, "lr_rule": "adascale"}, ["optimizer.momentum", "lr_rule"]),
        ({"tokens": 5}, ["tokens"]),  # without tokens there would be no length
        ({"epochs": None, "steps": 0}, ["steps"]),
        ({"epochs": 0, "steps": 3}, ["epochs"]),
        ({"metric": 3, "task": "my:Task"}, ["metric"]),
    ],
)
def test_values_are_compared_beside_a_faulty_one_but_not_with_it(values: dict[str, Any], fields: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        TrainConfig(batch_size=4, learning_rate=0.1, **values)
    assert [problem.field for problem in caught.value.problems] == fields


def test_numbers_are_kept_as_the_key_has_them() -> None:
    """A trial's id and a checkpoint's identity are made from the text of these numbers."""
    config = make_config(learning_rate=1, warmup_epochs=0, shards=(3, 1))
    assert (repr(config.learning_rate), repr(config.warmup_epochs), config.shards) == ("1.0", "0.0", (3.0, 1.0))
    with pytest.raises(ConfigError, match=r"^learning_rate: 10+… is not a finite number"):
        make_config(learning_rate=10**400)


def test_a_misspelt_name_is_guessed() -> None:
    with pytest.raises(
        ConfigError, match=r"""^model: "lenat" is not built in; did you mean "lenet"\? choose lenet, mlp"""
    ):
        make_config(model="lenat")


def test_unknown_and_missing_keys_are_refused() -> None:
    plain = make_config().to_dict()
    with pytest.raises(
        ValueError,
        match=r"^rate: 1 stands under an unknown key; did you mean \"learning_rate\"\? the keys here are accumul",
    ):
        TrainConfig.from_dict(plain | {"rate": 1})
    with pytest.raises(
        ValueError,
        match=r"^optimizer\.beta: 1 stands under an unknown key; did you mean .betas.\? the keys here are amsgrad",
    ):
        TrainConfig.from_dict(plain | {"optimizer": {"beta": 1}})
    with pytest.raises(ValueError, match=r"^batch_size: is missing; add `batch_size: …`"):
        TrainConfig.from_dict({name: value for name, value in plain.items() if name != "batch_size"})


def test_weights_fit_the_world() -> None:
    assert make_config().weights(3) == (1.0, 1.0, 1.0)
    assert make_config(shards=(2.0, 1.0)).weights(2) == (2.0, 1.0)
    with pytest.raises(ValueError, match=r"shards: .* 2 weights for 3 workers"):
        make_config(shards=(2.0, 1.0)).weights(3)


def test_importing_config_registry_records_and_data_imports_no_torch() -> None:
    import subprocess
    import sys

    code = (
        "import sys, scalestudy.training.config, scalestudy.training.registry, scalestudy.training.records\n"
        "import scalestudy.training.batches, scalestudy.training.data\n"
        "scalestudy.training.data.require('digits')\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


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


@pytest.mark.parametrize("metric", ["f 1", "loss", "my_metric:f1"])
def test_a_task_names_its_metrics(metric: str) -> None:
    assert make_config(task="my_task:Task", metric="macro_f1").metric == "macro_f1"
    with pytest.raises(ConfigError, match=r"^metric: .* is no name of a task's metric; name one of the metrics"):
        make_config(task="my_task:Task", metric=metric)
    with pytest.raises(ConfigError, match=r'^metric: "macro_f1" is not built in; choose accuracy, mse, or write'):
        make_config(metric="macro_f1")
