"""A step as a graph: the same training as eagerly, replays for whole batches alone, reasons where there is none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from scalestudy.training.config import OptimizerConfig
from scalestudy.training.distributed import Worker
from scalestudy.training.loop import step_graph
from scalestudy.training.loop.hooks import Hook
from scalestudy.training.loop.noise_scale import NoiseScale
from scalestudy.training.loop.train import TrainResult, train
from scalestudy.training.loop.trial import Trial
from tests.support.gloo import GlooPool
from tests.support.training.helpers import ALONE, largest_difference, make_config, outcome, same_bits, state_of
from tests.support.training.recorded_graphs import graphs_on_the_cpu, recorded
from tests.support.training.tasks import Examples

HERE = __name__
WORKLOADS = "tests.support.training.workloads"


def trained(hooks: Any = (), **options: Any) -> TrainResult:
    """A training of two epochs whose steps are replayed, where graphs are possible."""
    with graphs_on_the_cpu():
        return train(make_config(epochs=2, cuda_graph="auto", **options), ALONE, hooks=hooks)


class Replays(Hook):
    """Counts the captures and the replays."""

    def train_starts(self, trial: Trial) -> None:
        assert trial.graph is not None
        self.graph, self.replayed = trial.graph, 0

    def step_ends(self, trial: Trial, step: int) -> None:
        replay = self.graph._replay
        if replay is not None and not hasattr(self, "counted"):
            self.counted = True
            self.replayed += 1  # the captured step is replayed at once

            def counting() -> None:
                self.replayed += 1
                replay()

            self.graph._replay = counting


SAME = {
    "sgd": {},
    "momentum, clipping, a schedule": {
        "optimizer": OptimizerConfig(momentum=0.9, dampening=0.1, weight_decay=0.01),
        "gradient_clip": 0.5,
        "schedule": "cosine",
    },
    "adam": {"optimizer": OptimizerConfig(name="adam"), "learning_rate": 0.01},
    "micro-batches": {"accumulation": 3},
    "dropout": {"model": f"{WORKLOADS}:DropoutNet", "model_args": {}},
    "a task with weights": {"task": "tests.support.training.tasks:Examples", "metric": "accuracy"},
    "a smaller last batch": {"batch_size": 24},
}


@pytest.mark.parametrize("case", SAME)
def test_replayed_steps_train_as_eager_ones(case: str) -> None:
    hook = Replays()
    graphed = trained([hook], **SAME[case])
    eager = train(make_config(epochs=2, **SAME[case]), ALONE)
    assert graphed.details["cuda_graph"] == step_graph.CAPTURED
    assert hook.replayed >= 4
    for one, other in zip(graphed.records, eager.records, strict=True):
        assert one.train_loss == pytest.approx(other.train_loss, rel=1e-6)  # Adam's rate is a float32 in a graph
        assert (one.learning_rate, one.samples, one.steps) == (other.learning_rate, other.samples, other.steps)
    assert largest_difference(state_of(graphed.model), state_of(eager.model)) < 1e-6


def test_the_noise_is_measured_in_at_most_four_steps_of_an_epoch() -> None:
    noise = NoiseScale(interval=1)
    result = trained([noise], batch_size=16)
    assert noise.interval == result.records[0].steps // 4 > 1
    assert all(record.grad_trace_cov is not None for record in result.records)


def test_phases_are_those_of_eager_steps() -> None:
    record = trained(batch_size=16).records[-1]
    assert record.phases["forward_backward"] > 0
    assert sum(record.phases.values()) == pytest.approx(record.train_seconds)


class StopsAtTen(Hook):
    def train_starts(self, trial: Trial) -> None:
        trial.should_stop = lambda: trial.made >= 10


def test_a_training_that_is_stopped_ends_there() -> None:
    hook = StopsAtTen()
    result = trained([hook])
    assert (result.status, result.message) == ("stopped", None)
    assert len(result.records) == 1


@pytest.mark.parametrize("position", [0, 77, 100])
def test_a_nan_is_found_in_a_replay(position: int) -> None:
    options = {"data": f"{WORKLOADS}:splits_with_a_nan", "data_args": {"position": position}}
    graphed, eager = trained(**options), train(make_config(epochs=2, **options), ALONE)
    assert (graphed.status, graphed.message) == (eager.status, eager.message)
    assert graphed.status == "diverged"
    assert same_bits(state_of(graphed.model), state_of(eager.model))


class WeighsByInputs(Examples):
    """A batch with a number that is not finite has such a weight, and a finite loss."""

    def forward(self, model: nn.Module, batch: Any) -> torch.Tensor:
        return super().forward(model, (batch[0].nan_to_num(), batch[1]))

    def loss(self, outputs: torch.Tensor, batch: Any) -> Any:
        total, weight = super().loss(outputs, batch)
        return total, batch[0].sum() * 0 + weight


@pytest.mark.parametrize("position", [77, 200])
def test_a_wrong_weight_is_found_in_a_replay(position: int) -> None:
    data = {"data": f"{WORKLOADS}:splits_with_a_nan", "data_args": {"position": position}}
    with pytest.raises(ValueError, match=r"^task: loss gave a weight that is not finite"):
        trained(**data, batch_size=8, task=f"{HERE}:WeighsByInputs", metric="accuracy")


# --- where there is no graph --------------------------------------------------------------------------------------


class Deciding(nn.Module):
    """Its forward reads a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.LazyLinear(10))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.layers(inputs)
        return outputs * 2 if outputs.mean() > 0 else outputs


def deciding(classes: int, channels: int) -> nn.Module:
    """For the synthetic images."""
    model = Deciding()
    model(torch.zeros(2, 1, 28, 28))
    return model


def test_a_forward_that_reads_a_tensor_is_trained_eagerly_and_says_so() -> None:
    options = {"model": f"{HERE}:deciding", "model_args": {}}
    graphed, eager = trained(**options), train(make_config(epochs=2, **options), ALONE)
    assert graphed.details["cuda_graph"].startswith("the step can't be captured: operation not permitted")
    assert outcome(graphed)["curve"] == outcome(eager)["curve"]
    assert same_bits(state_of(graphed.model), state_of(eager.model))


def test_a_graph_that_is_insisted_on_and_not_possible_is_refused() -> None:
    config = make_config(cuda_graph=True, model=f"{HERE}:deciding", model_args={})
    with graphs_on_the_cpu(), pytest.raises(ValueError, match=r"^train\.cuda_graph: the step can't be captured: .*; "):
        train(config, ALONE)


REASONS = {
    "the model is compiled": {"compile": True},
    "the optimizer .* has no fused update": {"optimizer": OptimizerConfig(name="torch.optim:RAdam")},
    "adascale reads": {"lr_rule": "adascale", "base_batch_size": 16},
}


@pytest.mark.parametrize("reason", REASONS)
def test_what_can_not_be_captured_is_told_before(reason: str) -> None:
    assert trained(**REASONS[reason], max_steps=6).details["cuda_graph"].startswith(reason.split(" .*")[0])
    with graphs_on_the_cpu(), pytest.raises(ValueError, match=rf"^train\.cuda_graph: {reason}"):
        train(make_config(cuda_graph=True, **REASONS[reason]), ALONE)


def test_a_cpu_has_no_graphs() -> None:
    assert train(make_config(cuda_graph="auto", epochs=1), ALONE).details == {
        "cuda_graph": "a graph needs a CUDA device, not cpu"
    }
    with pytest.raises(ValueError, match=r"^train\.cuda_graph: a graph needs a CUDA device, not cpu; write auto"):
        train(make_config(cuda_graph=True, epochs=1), ALONE)


def of_two(worker: Worker) -> Any:
    with graphs_on_the_cpu():
        return train(make_config(cuda_graph="auto", epochs=1), worker).details["cuda_graph"]


def test_several_workers_have_none(ranks: GlooPool) -> None:
    assert ranks.run(2, of_two) == ["several workers sum their gradients outside of a graph"] * 2


def test_without_the_key_nothing_is_said() -> None:
    assert train(make_config(epochs=1), ALONE).details == {}


def test_too_few_steps_for_a_graph_are_told() -> None:
    assert trained(max_steps=6, batch_size=200).details["cuda_graph"] == step_graph.TOO_SHORT


def test_a_recording_is_undone_and_repeated() -> None:
    """The fake itself: what is recorded did not happen; a replay does it once."""
    total = torch.zeros(2)
    replay, result = recorded(lambda: total.add_(1).mul(3))
    assert total.tolist() == [0.0, 0.0]
    replay()
    replay()
    assert (total.tolist(), result.tolist()) == ([2.0, 2.0], [6.0, 6.0])
