"""bfloat16, where the device has it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from scalestudy.training.config import TrainConfig
from scalestudy.training.device import has_bfloat16, make_precision
from scalestudy.training.loop.train import train
from tests.support.training.helpers import ALONE, largest_difference, make_config, run_training

BFLOAT16_EPSILON = 2**-8  # of its 8 significant bits


def lenet(**changes: Any) -> TrainConfig:
    """Eight steps of LeNet."""
    return make_config(model="lenet", model_args={}, learning_rate=0.1, **changes)


@pytest.mark.skipif(not has_bfloat16(torch.device("cpu")), reason="this CPU has no bfloat16")
def test_bf16_computes_in_bfloat16_and_updates_in_float32() -> None:
    """One step's gradients are those of float32 to some of bfloat16's epsilons, and are not equal to them."""
    exact, rounded = (run_training(ALONE, lenet(batch_size=256, precision=name)) for name in ("fp32", "bf16"))
    moved = largest_difference(exact["first_state"], exact["state"])
    apart = largest_difference(exact["state"], rounded["state"])
    assert 0 < apart < 16 * BFLOAT16_EPSILON * moved
    assert {array.dtype.name for array in rounded["state"].values()} == {"float32"}


def test_bf16_is_refused_where_the_device_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer of an old CPU, which is all that can't be had here."""
    monkeypatch.setattr("scalestudy.training.device.has_bfloat16", lambda device: False)
    with pytest.raises(ValueError, match=r"precision: bf16 is not available on this device \(cpu\); choose fp32"):
        train(lenet(precision="bf16"), ALONE)
    with make_precision("fp32", ALONE.device)():
        assert not torch.is_autocast_enabled("cpu")
