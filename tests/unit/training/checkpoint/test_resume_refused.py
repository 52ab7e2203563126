"""Checkpoints that are damaged, of another training, or can't be written."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest

from scalestudy.training.checkpoint.hook import FREE_TO_CHANGE
from scalestudy.training.config import OptimizerConfig, TrainConfig, keys
from tests.support.gloo import GlooPool
from tests.support.training.helpers import ALONE, largest_difference
from tests.support.training.resuming import (
    EPOCHS,
    LENET,
    STEPS,
    check_same,
    checkpointed,
    config_of,
    killed,
    never_killed,
)


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(ranks: GlooPool, tmp_path: Path, damage: str) -> None:
    config = config_of(**LENET)
    whole = ranks.run(2, never_killed, config)
    ranks.run(2, killed, config, str(tmp_path), 2 * STEPS + 1, 0)
    assert [folder.name for folder in sorted(tmp_path.iterdir())] == ["00000001", "00000002"]
    victim = tmp_path / "00000002" / "part-1.pt"
    content = victim.read_bytes()
    middle = len(content) // 2
    flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    victim.write_bytes({"flip": flipped, "truncate": content[:middle], "remove": b""}[damage])
    if damage == "remove":
        victim.unlink()
    resumed = ranks.run(2, checkpointed, config, str(tmp_path), 0)
    assert len(resumed[0]["said"]) == 1
    assert resumed[0]["said"][0].startswith("checkpoint 2 is passed over: part-1.pt")
    check_same(whole[0], resumed[0])


def test_a_checkpoint_of_another_model_is_refused_on_every_rank(ranks: GlooPool, tmp_path: Path) -> None:
    ranks.run(2, killed, config_of(**LENET), str(tmp_path), STEPS + 1, 0)
    with pytest.raises(RuntimeError, match="is of another training") as refused:
        ranks.run(2, checkpointed, config_of(), str(tmp_path), 0)
    assert str(refused.value).count("is of another training") == 2


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"batch_size": 32}, "batch_size: 16 there, 32 here"),
        ({"seed": 9}, "seed: 0 there, 9 here"),
        ({"lr_rule": "sqrt"}, "lr_rule: 'none' there, 'sqrt' here"),
        ({"optimizer": OptimizerConfig(name="adam")}, "optimizer: .*'sgd'.* there, .*'adam'.* here"),
        ({"epochs": 1}, "epochs: 1 are fewer than the 2 that the checkpoint has"),
    ],
)
def test_another_configuration_is_refused_by_its_field(tmp_path: Path, changes: dict[str, Any], text: str) -> None:
    killed(ALONE, config_of(), str(tmp_path), 2 * STEPS + 1, 0)
    with pytest.raises(ValueError, match=text):
        checkpointed(ALONE, config_of(**changes), str(tmp_path), 0)


def test_more_epochs_may_be_asked_for_and_other_shards(ranks: GlooPool, tmp_path: Path) -> None:
    """What changes no result, or only makes it longer; the shards are those that are asked for now."""
    config = config_of(model="tests.support.training.workloads:DoubleLeNet", model_args={"init": "xavier"})
    ranks.run(2, killed, config, str(tmp_path), 2 * STEPS + 1, 0)
    longer = dataclasses.replace(config, epochs=EPOCHS + 1, shards=(3.0, 1.0))
    resumed = ranks.run(2, checkpointed, longer, str(tmp_path), 0)
    (whole,) = ranks.run(1, never_killed, dataclasses.replace(config, epochs=EPOCHS + 1))
    assert resumed[0]["resumed"]
    assert largest_difference(whole["state"], resumed[0]["state"]) < 1e-10


def test_a_users_model_that_has_changed_is_refused(tmp_path: Path) -> None:
    """The same name, other shapes: found when the parameters are loaded."""
    config = config_of(model="tests.support.training.workloads:changing_model", model_args={})
    os.environ["SCALESTUDY_TEST_WIDTH"] = "8"
    try:
        killed(ALONE, config, str(tmp_path), STEPS + 1, 0)
        os.environ["SCALESTUDY_TEST_WIDTH"] = "9"
        with pytest.raises(ValueError, match=r"checkpoint: it is of another model \(.*size mismatch"):
            checkpointed(ALONE, config, str(tmp_path), 0)
    finally:
        del os.environ["SCALESTUDY_TEST_WIDTH"]


def test_a_store_that_can_not_be_written_does_not_stop_the_training(ranks: GlooPool, tmp_path: Path) -> None:
    """Rank 1's part fails: no rank keeps that checkpoint."""
    (tmp_path / "00000001").mkdir()
    (tmp_path / "00000001" / "part-1.pt").mkdir()  # a folder where the file would be
    outcomes = ranks.run(2, checkpointed, config_of(), str(tmp_path), 0)
    check_same(ranks.run(2, never_killed, config_of())[0], outcomes[0])
    assert any("checkpoint 1 is not kept" in message for message in outcomes[0]["said"])
    assert any("part-1.pt can't be written" in message for message in outcomes[1]["said"])


def test_after_the_last_epoch_there_is_nothing_to_go_on_with(tmp_path: Path) -> None:
    checkpointed(ALONE, config_of(epochs=1), str(tmp_path), 0)
    assert not list(tmp_path.iterdir())


def test_the_fields_that_are_free_to_change_are_there() -> None:
    assert {*FREE_TO_CHANGE} <= {key.name for key in keys(TrainConfig)}
