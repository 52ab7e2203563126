"""Whose fault an exception is, by the frames that it passed: each part of a training, raising at each of its times."""

import importlib.util

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from scalestudy.training.config import OptimizerConfig
from scalestudy.training.data import Splits
from scalestudy.training.loop.train import train
from scalestudy.training.rehearsal import fault_of
from tests.support.training.helpers import ALONE, make_config
from tests.support.training.tasks import Examples

HERE = "tests.unit.training.test_rehearsal_faults"
TASKS = {
    "task": f"{HERE}:Raising",
    "data": "tests.support.training.tasks:examples_data",
    "data_args": {},
    "model": "tests.support.training.tasks:examples_model",
    "model_args": {},
}


def raises_when_loaded(root):
    raise LookupError("no such file")


class Pictures(Dataset):
    """Has every example but one, which is read when a batch is made."""

    def __init__(self, missing):
        self.missing = missing

    def __len__(self):
        return 64

    def __getitem__(self, index):
        if index == self.missing:
            raise KeyError(index)
        return torch.zeros(1, 28, 28), index % 2


def raises_when_read(root):
    """Loaded without an error: the example is read when the set is opened."""
    return Splits.from_datasets(Pictures(48), Pictures(None), num_classes=2)


def read_late(root):
    """Its first examples, which are looked at when it is opened, are there."""
    return Splits.from_datasets(Pictures(63), Pictures(None), num_classes=2)


def collated(root):
    """Its collate fails for a whole batch."""

    def collate(examples):
        if len(examples) > 8:
            raise BufferError("too many")
        return torch.utils.data.default_collate(examples)

    return Splits.from_datasets(Pictures(None), Pictures(None), num_classes=2, collate=collate)


def built(num_classes, in_channels):
    raise LookupError("no weights")


class Forward(nn.Linear):
    """Fails when it is called."""

    def __init__(self, *facts):
        super().__init__(784, 10)

    def forward(self, inputs):
        return super().forward(inputs)  # of the wrong shape


class TaskForward(nn.Linear):
    """Fails when a task calls it."""

    def __init__(self):
        super().__init__(7, 3)


class Backwards(torch.autograd.Function):
    @staticmethod
    def forward(context, inputs):
        return inputs.clone()

    @staticmethod
    def backward(context, gradient):
        raise BufferError("no gradient")


class Backward(nn.Linear):
    """Fails in backward."""

    def __init__(self, *facts):
        super().__init__(784, 10)

    def forward(self, inputs):
        return Backwards.apply(super().forward(inputs.flatten(1)))


def lost(outputs, targets):
    return outputs["logits"]


def detached(outputs, targets):
    return (outputs.argmax(dim=1) != targets).float()


def measured(outputs, targets):
    return targets.no_such_method()


class Raising(Examples):
    """Fails in one method."""

    method = ""

    def __getattribute__(self, name):
        if name == type(self).method:
            return self.fail
        return super().__getattribute__(name)

    def fail(self, *given):
        raise ArithmeticError("no number")


class RaisingForward(Raising):
    method = "forward"


class RaisingLoss(Raising):
    method = "loss"


class RaisingTokens(Raising):
    method = "tokens"


class RaisingEvaluate(Raising):
    method = "evaluate"


class RaisingFinish(Raising):
    method = "finish"


class Unmade(Raising):
    def __init__(self):
        raise ArithmeticError("no task")


class Stuck(torch.optim.SGD):
    def step(self, closure=None):
        raise ArithmeticError("no step")


def no_optimizer(model, learning_rate):
    raise ArithmeticError("no optimizer")


def no_factor(progress):
    return 1 / 0 if progress else 1.0


CASES = {
    "data, loaded": ({"data": f"{HERE}:raises_when_loaded", "data_args": {}}, "workload.data", "in raises_when_loaded"),
    "data, opened": ({"data": f"{HERE}:raises_when_read", "data_args": {}}, "workload.data", "in __getitem__"),
    "data, read late": ({"data": f"{HERE}:read_late", "data_args": {}}, "workload.data", "in __getitem__"),
    "data, collated": ({"data": f"{HERE}:collated", "data_args": {}}, "workload.data", "in collate"),
    "model, built": ({"model": f"{HERE}:built", "model_args": {}}, "workload.model", "in built"),
    "model, forward": ({"model": f"{HERE}:Forward", "model_args": {}}, "workload.model", "in forward"),
    "model, called by a task": (
        {**TASKS, "task": f"{HERE}:Raising", "model": f"{HERE}:TaskForward"},
        "workload.model",
        "",
    ),
    "backward": ({"model": f"{HERE}:Backward", "model_args": {}}, "workload", "in backward"),
    "a loss without gradients": ({"loss": f"{HERE}:detached"}, "workload", ""),
    "loss": ({"loss": f"{HERE}:lost"}, "workload.loss", "in lost"),
    "metric": ({"metric": f"{HERE}:measured"}, "workload.metric", "in measured"),
    "task, made": ({**TASKS, "task": f"{HERE}:Unmade"}, "workload.task", "in __init__"),
    "task, forward": ({**TASKS, "task": f"{HERE}:RaisingForward"}, "workload.task", "in fail"),
    "task, loss": ({**TASKS, "task": f"{HERE}:RaisingLoss"}, "workload.task", "in fail"),
    "task, tokens": ({**TASKS, "task": f"{HERE}:RaisingTokens"}, "workload.task", "in fail"),
    "task, evaluate": ({**TASKS, "task": f"{HERE}:RaisingEvaluate"}, "workload.task", "in fail"),
    "task, finish": ({**TASKS, "task": f"{HERE}:RaisingFinish"}, "workload.task", "in fail"),
    "optimizer, made": ({"optimizer": OptimizerConfig(name=f"{HERE}:no_optimizer")}, "train.optimizer.name", "in no_o"),
    "optimizer, step": ({"optimizer": OptimizerConfig(name=f"{HERE}:Stuck")}, "train.optimizer.name", "in step"),
    "schedule": ({"schedule": f"{HERE}:no_factor"}, "train.schedule", "in no_factor"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_part_that_raised_is_to_blame(case):
    changes, part, place = CASES[case]
    with pytest.raises(Exception) as caught:
        train(make_config(**changes), ALONE)
    fault = fault_of(caught.value)
    assert fault.part == part
    assert place in fault.place


def test_a_library_is_never_the_place(tmp_path):
    """The line that called it is: the user can mend that one."""
    (tmp_path / "mine.py").write_text("import json\n\n\ndef load(root):\n    return json.loads('{')\n")
    spec = importlib.util.spec_from_file_location("mine", tmp_path / "mine.py")
    mine = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(mine)
    with pytest.raises(ValueError, match="Expecting") as caught:
        mine.load("")
    assert fault_of(caught.value).place == "mine.py:5, in load"
    assert fault_of(caught.value).part is None
