"""The config: what it accepts, what it refuses and how it says so."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from scalestudy.training.config import OptimizerConfig, TrainConfig
from tests.support.training.helpers import make_config


def test_a_config_survives_json() -> None:
    config = make_config(shards=(0.7, 0.3), gradient_clip=1.0, optimizer=OptimizerConfig(momentum=0.9), data_root="x")
    assert TrainConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert TrainConfig.from_dict(make_config().to_dict()) == make_config()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", "resnet1000"), ("model", 3), ("model", "package:"), ("model", "pack age:model"), ("data", "cifar"),
        ("batch_size", 0), ("batch_size", -1), ("batch_size", 2.0), ("batch_size", True), ("batch_size", "256"),
        ("epochs", 0), ("seed", -1), ("warm_up_steps", -1), ("learning_rate", 0), ("learning_rate", -0.1),
        ("learning_rate", math.nan), ("learning_rate", math.inf), ("learning_rate", "0.1"), ("learning_rate", True),
        ("gradient_clip", 0), ("gradient_clip", math.inf), ("gradient_sync", "horovod"), ("loss", "hinge"),
        ("metric", "top5"), ("shards", "odd"), ("shards", ()), ("shards", (0.0, 0.0)), ("shards", (1, -1)),
        ("shards", (1, "2")), ("shards", [1, 1]), ("model_args", [1]), ("model_args", {1: 2}), ("data_args", None),
        ("optimizer", "sgd"), ("optimizer", {"name": "sgd"}),
    ],
)  # fmt: skip
def test_a_bad_value_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{field}: "):
        make_config(**{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [("name", "rmsprop"), ("momentum", 1.0), ("momentum", -0.1), ("weight_decay", -1.0), ("weight_decay", math.nan)],
)
def test_a_bad_optimizer_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^optimizer\.{field}: "):
        OptimizerConfig(**{field: value})


def test_momentum_without_effect_is_refused() -> None:
    with pytest.raises(ValueError, match=r"optimizer\.momentum: 0\.9 has no effect with adam"):
        OptimizerConfig(name="adam", momentum=0.9)


def test_unknown_and_missing_keys_are_refused() -> None:
    plain = make_config().to_dict()
    with pytest.raises(ValueError, match="unknown keys \\['rate'\\]"):
        TrainConfig.from_dict(plain | {"rate": 1})
    with pytest.raises(ValueError, match="optimizer: unknown keys \\['beta'\\]"):
        TrainConfig.from_dict(plain | {"optimizer": {"beta": 1}})
    with pytest.raises(ValueError, match="missing keys \\['model'\\]"):
        TrainConfig.from_dict({name: value for name, value in plain.items() if name != "model"})


def test_weights_fit_the_world() -> None:
    assert make_config().weights(3) == (1.0, 1.0, 1.0)
    assert make_config(shards=(2.0, 1.0)).weights(2) == (2.0, 1.0)
    with pytest.raises(ValueError, match=r"shards: .* each of 3 workers"):
        make_config(shards=(2.0, 1.0)).weights(3)


def test_importing_config_registry_records_and_data_imports_no_torch() -> None:
    import subprocess
    import sys

    code = (
        "import sys, training, scalestudy.training.config, scalestudy.training.registry, scalestudy.training.records, scalestudy.training.batches, scalestudy.training.data\n"
        "scalestudy.training.data.require('digits')\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
