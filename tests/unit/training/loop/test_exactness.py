"""Whether a training depends on the world size: what a model does in training mode, and what only looks like it."""

import pytest
import torch
from torch import nn

from scalestudy.training.config import TrainConfig
from scalestudy.training.loop.exactness import why_inexact

HERE = "tests.unit.training.loop.test_exactness"


class Functional(nn.Module):
    """Dropout that no module tells of."""

    def __init__(self, num_classes, in_channels):
        super().__init__()
        self.body = nn.Linear(in_channels * 784, num_classes)

    def forward(self, inputs):
        return self.body(nn.functional.dropout(inputs.flatten(1), 0.2, training=self.training))


class Centred(Functional):
    """Takes the mean of the batch away, without being a batch normalisation."""

    def forward(self, inputs):
        return self.body((inputs - inputs.mean(dim=0)).flatten(1))


class Plain(Functional):
    """Layers that see one example at a time, or do nothing while they train."""

    def __init__(self, num_classes, in_channels):
        super().__init__(num_classes, in_channels)
        self.norms = nn.Sequential(nn.InstanceNorm2d(in_channels), nn.GroupNorm(1, in_channels), nn.Dropout(0.0))

    def forward(self, inputs):
        return self.body(self.norms(inputs).flatten(1))


def normalised(num_classes, in_channels):
    return nn.Sequential(nn.BatchNorm2d(in_channels), nn.Flatten(), nn.Linear(in_channels * 784, num_classes))


def normalised_and_dropped(num_classes, in_channels):
    return nn.Sequential(normalised(num_classes, in_channels), nn.Dropout(0.5))


def broken(num_classes, in_channels):
    raise LookupError("no weights for this model")


def why(model, model_args=None, **keywords):
    config = {"model": model, "data": "digits", "batch_size": 8, "learning_rate": 0.1, "epochs": 1, **keywords}
    found = why_inexact(TrainConfig(model_args=model_args or {}, **config))
    return found and str(found)


@pytest.mark.parametrize("model", ["lenet", "mlp", f"{HERE}:Plain"])
def test_a_model_that_sees_one_example_at_a_time(model):
    assert why(model) is None
    assert why(model, accumulation=2, sync_batch_norm=True) is None


def test_the_smallest_initialisation_is_no_excuse():
    assert why("lenet", {"init": "normal"}) is None
    assert "draws random numbers" in why("mlp", {"init": "normal", "dropout": 0.1})


@pytest.mark.parametrize("model", ["mlp", f"{HERE}:normalised"])
def test_batch_normalisation(model):
    arguments = {"batch_norm": True} if model == "mlp" else {}
    found = why(model, arguments)
    assert "normalises over one worker's examples; set train.sync_batch_norm: true" in found
    assert found.startswith("layer 2 " if model == "mlp" else "layer 0 ")
    assert why(model, arguments, sync_batch_norm=True) is None
    assert "micro-batches" in why(model, arguments, sync_batch_norm=True, accumulation=2)


@pytest.mark.parametrize("model", ["Functional", "normalised_and_dropped"])
def test_random_numbers_of_the_model_s_own(model):
    assert "draws random numbers in training" in why(f"{HERE}:{model}", sync_batch_norm=True)
    assert "draws random" in why("mlp", {"dropout": 0.3})


def test_a_layer_that_looks_at_the_whole_batch():
    assert "depends on the other examples" in why(f"{HERE}:Centred", sync_batch_norm=True)


def test_what_building_a_model_raises_is_handed_on():
    with pytest.raises(LookupError, match="no weights"):
        why(f"{HERE}:broken")


def test_asking_changes_nobody_s_random_numbers():
    torch.manual_seed(5)
    before = torch.rand(3)
    torch.manual_seed(5)
    why("mlp", {"dropout": 0.3})
    assert torch.equal(torch.rand(3), before)
