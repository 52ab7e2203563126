"""`compile`: which models are compiled, and that nothing of it stays when the trial ends."""

from __future__ import annotations

import copy
import functools
import gc
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from scalestudy.training.loop.compiling import compile_model
from scalestudy.training.loop.noise_scale import NoiseScale
from scalestudy.training.loop.train import train
from scalestudy.training.task import ShardLoss
from tests.support.training.helpers import ALONE, largest_difference, make_config, run_training, state_of
from tests.support.training.tasks import Examples

HERE = "tests.unit.training.loop.test_compiling"


class FakeInductor:
    """Stands where `torch.compile` hands a traced graph to Inductor: counts it, and runs it as it is."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.graphs = 0  # compiled in all
        self.for_any_size = 0  # of them, with a dimension that may vary
        self._graphs: weakref.WeakSet[torch.fx.GraphModule] = weakref.WeakSet()
        self.options: list[Mapping[str, Any]] = []  # of Inductor, for each graph
        monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", self._compile)
        torch.compiler.reset()  # nothing that was compiled by the real one is used again

    def kept(self) -> int:
        """How many of them the process still holds."""
        gc.collect()
        return len(self._graphs)

    def _compile(
        self, graph: torch.fx.GraphModule, inputs: Sequence[Any], *, config_patches: Mapping[str, Any], **_: object
    ) -> Callable[..., Any]:
        self.graphs += 1
        self.for_any_size += any(isinstance(each, torch.SymInt) for each in inputs)
        self._graphs.add(graph)
        self.options.append(config_patches)
        return graph.forward


def sequential(num_classes: int, in_channels: int) -> nn.Module:
    """A model without a forward of its own."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784 * in_channels, 8), nn.ReLU(), nn.Linear(8, num_classes))


class Inherited(nn.Sequential):
    """The same, as a class of the user's."""

    def __init__(self, num_classes: int, in_channels: int) -> None:
        super().__init__(*sequential(num_classes, in_channels))


class Own(Inherited):
    """The same, with a forward."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().forward(inputs)


@pytest.fixture
def inductor(monkeypatch: pytest.MonkeyPatch) -> FakeInductor:
    return FakeInductor(monkeypatch)


@pytest.mark.parametrize("model", [sequential, Inherited, Own])
def test_every_model_is_compiled_and_trains_the_same(model: Callable[..., nn.Module], inductor: FakeInductor) -> None:
    """One graph trains and one evaluates."""
    plain, compiled = (
        run_training(ALONE, make_config(model=f"{HERE}:{model.__name__}", model_args={}, compile=choice))
        for choice in (False, True)
    )
    assert inductor.graphs == 2
    assert plain["state"].keys() == compiled["state"].keys()
    assert largest_difference(plain["state"], compiled["state"]) < 1e-6


def test_a_copy_of_a_compiled_model_is_a_model(inductor: FakeInductor) -> None:
    """What is exported and sent to other processes has nothing of the compiler."""
    model = train(make_config(model=f"{HERE}:sequential", model_args={}, compile=True), ALONE).model
    copied = copy.deepcopy(model)
    assert largest_difference(state_of(model), state_of(copied)) == 0
    graphs = inductor.graphs
    copied(torch.zeros(2, 1, 28, 28))
    assert inductor.graphs == graphs


@pytest.mark.parametrize("mode", [True, "reduce-overhead", "max-autotune"])
def test_modes_are_pytorchs(mode: Any, inductor: FakeInductor) -> None:
    train(make_config(compile=mode), ALONE)
    assert inductor.options == [{} if mode is True else torch._inductor.list_mode_options(mode)] * 2


class Texts(nn.Module):
    """Reads as many words as there are."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.words, self.dim = nn.Embedding(10, 4), dim

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.words(words).mean(dim=self.dim)
        return outputs


def test_whole_batches_have_code_of_their_own(inductor: FakeInductor) -> None:
    """Three batches of 96, 96 and 64, and the test set's: none makes the others' code one for any size."""
    train(make_config(batch_size=96, compile=True, epochs=2), ALONE)
    assert (inductor.graphs, inductor.for_any_size) == (3, 0)


class FirstLength(Examples):
    """Hands the model its words with their length in front."""

    def forward(self, model: nn.Module, batch: Any) -> torch.Tensor:
        outputs: torch.Tensor = model(batch[0].t().contiguous())
        return outputs


@pytest.mark.parametrize("task", [Examples, FirstLength])
def test_lengths_that_vary_have_one_code(task: type[Examples], inductor: FakeInductor) -> None:
    model = Texts(dim=0 if task is FirstLength else 1)
    shard_loss = ShardLoss(model, task())
    shard_loss.is_compiled = True
    compile_model(model, mode=None)
    for length in (5, 6, 7, 8, 5):
        shard_loss((torch.zeros(3, length, dtype=torch.int64), torch.zeros(3, dtype=torch.int64)))
    assert (inductor.graphs, inductor.for_any_size) == (2, 1)


class Overwritten(torch.autograd.Function):
    """The identity, whose gradient lies where the last one did, as a CUDA graph's does."""

    memory = torch.zeros(10, 784)

    @staticmethod
    def forward(context: Any, weight: torch.Tensor) -> torch.Tensor:
        return weight.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return Overwritten.memory.copy_(gradient).detach()


class Graphed(nn.Module):
    def __init__(self, num_classes: int, in_channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(num_classes, 784 * in_channels))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return F.linear(inputs.flatten(1), Overwritten.apply(self.weight))


@pytest.mark.parametrize("hooks", [[], [NoiseScale(interval=1)]], ids=["accumulation", "halves"])
def test_gradients_of_micro_batches_add_up_in_a_graphs_memory(hooks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scalestudy.training.loop.trial.compile_model", lambda model, mode: None)
    settings = {"model": f"{HERE}:Graphed", "model_args": {}}
    accumulation = 1 if hooks else 2
    plain = train(make_config(**settings), ALONE)
    graphed = train(make_config(**settings, compile="reduce-overhead", accumulation=accumulation), ALONE, hooks=hooks)
    assert largest_difference(state_of(plain.model), state_of(graphed.model)) < 1e-6


class Fails(Own):
    """Raises when it is evaluated, after steps that were compiled."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if not self.training:
            raise ArithmeticError("no evaluation")
        return super().forward(inputs)


def test_compiled_graphs_go_with_their_trial(inductor: FakeInductor) -> None:
    """Also while the trained model is still held."""
    result = train(make_config(model=f"{HERE}:Own", model_args={}, compile=True), ALONE)
    assert result.status == "finished"
    assert (inductor.graphs, inductor.kept()) == (2, 0)


def test_compiled_graphs_go_with_a_trial_that_fails(inductor: FakeInductor) -> None:
    with pytest.raises(ArithmeticError, match="no evaluation"):
        train(make_config(model=f"{HERE}:Fails", model_args={}, compile=True), ALONE)
    assert (inductor.graphs, inductor.kept()) == (1, 0)


def test_what_a_user_compiled_lasts_from_trial_to_trial(inductor: FakeInductor) -> None:
    config = make_config(model=f"{HERE}:CompilesItself", model_args={})
    for _ in range(2):
        train(config, ALONE)
    assert inductor.graphs == inductor.kept() == 2


@functools.cache
def scaled() -> Callable[[torch.Tensor], torch.Tensor]:
    """A function that the user's module compiles, once: PyTorch's compiler is imported as the first test needs it."""
    return torch.compile(lambda inputs: inputs.flatten(1) * 2)


class CompilesItself(nn.Module):
    """A model that calls it."""

    def __init__(self, num_classes: int, in_channels: int) -> None:
        super().__init__()
        self.output = nn.Linear(784 * in_channels, num_classes)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.output(scaled()(inputs))
        return outputs
