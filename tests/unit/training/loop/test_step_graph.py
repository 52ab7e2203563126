"""A step as a graph: the same training as eagerly, replays for whole batches alone, reasons where there is none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from scalestudy.training.config import OptimizerConfig
from scalestudy.training.data import Splits
from scalestudy.training.distributed import Worker
from scalestudy.training.loop import step_graph
from scalestudy.training.loop.hooks import Hook
from scalestudy.training.loop.measures import is_sampled
from scalestudy.training.loop.noise_scale import NoiseScale
from scalestudy.training.loop.step_graph import StepGraph
from scalestudy.training.loop.train import TrainResult, train
from scalestudy.training.loop.trial import Trial
from tests.support.gloo import GlooPool
from tests.support.training.helpers import ALONE, largest_difference, make_config, same_bits, state_of
from tests.support.training.recorded_graphs import graphs_on_the_cpu
from tests.support.training.tasks import Examples

HERE = __name__
WORKLOADS = "tests.support.training.workloads"
TASKS = "tests.support.training.tasks"
DATASETS = "tests.support.training.datasets"


def trained(hooks: Any = (), **options: Any) -> TrainResult:
    """A training of two epochs whose steps are replayed, where graphs are possible."""
    with graphs_on_the_cpu():
        return train(make_config(epochs=2, cuda_graph="auto", **options), ALONE, hooks=hooks)


class Replays(Hook):
    """Counts the captures and the replays."""

    def train_starts(self, trial: Trial) -> None:
        assert isinstance(trial.graph, StepGraph)
        self.graph, self.replayed = trial.graph, 0

    def step_ends(self, trial: Trial, step: int) -> None:
        replay = self.graph._first
        if replay is not None and not hasattr(self, "counted"):
            self.counted = True
            self.replayed += 1  # the captured step is replayed at once

            def counting() -> None:
                self.replayed += 1
                replay()

            self.graph._first = counting


SAME = {
    "a smaller last batch": {"batch_size": 24},
    "momentum, clipping, a schedule": {
        "optimizer": OptimizerConfig(momentum=0.9, dampening=0.1, weight_decay=0.01),
        "gradient_clip": 0.5,
        "schedule": "cosine",
    },
    "adam": {"optimizer": OptimizerConfig(name="adam"), "learning_rate": 0.01},
    "micro-batches": {"accumulation": 3},
    "dropout": {"model": f"{WORKLOADS}:DropoutNet", "model_args": {}},
    "bytes": {"data": f"{HERE}:byte_images", "data_args": {}},
    "augmented": {"augment": "crop_flip"},
    "a torch data set": {
        "data": f"{DATASETS}:images",
        "data_args": {"train_samples": 200},
        "model": f"{DATASETS}:linear",
        "model_args": {},
    },
    "a task with weights and tokens": {"task": f"{HERE}:CountsLight", "metric": "accuracy"},
}


@pytest.mark.parametrize("case", SAME)
def test_replayed_steps_train_as_eager_ones(case: str) -> None:
    hook = Replays()
    graphed = trained([hook], **SAME[case])
    eager = train(make_config(epochs=2, **SAME[case]), ALONE)
    assert graphed.details["cuda_graph"] == step_graph.CAPTURED
    assert not graphed.spent
    assert hook.replayed >= 4
    for one, other in zip(graphed.records, eager.records, strict=True):
        assert one.train_loss == pytest.approx(other.train_loss, rel=1e-6)  # Adam's rate is a float32 in a graph
        assert (one.learning_rate, one.samples, one.steps) == (other.learning_rate, other.samples, other.steps)
        assert one.tokens == other.tokens
    assert largest_difference(state_of(graphed.model), state_of(eager.model)) < 1e-6


def byte_images(root: str | None) -> Splits:
    """256 + 32 images of bytes, which are scaled on the way."""
    images = torch.randint(256, (288, 1, 28, 28), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    labels = torch.arange(288) % 10
    return Splits(images[:256], labels[:256], images[256:], labels[256:], num_classes=10)


class CountsLight(Examples):
    """Light pixels are its tokens, which differ from batch to batch."""

    def tokens(self, batch: Any) -> torch.Tensor:
        return (batch[0] > 0.5).sum()


def test_a_graph_gathers_the_examples_of_a_resident_set() -> None:
    """What is copied for a replay is their places."""
    hook = Replays()
    trained([hook], batch_size=16)
    assert (hook.graph._draw.shape, hook.graph._draw.dtype) == ((16,), torch.int64)


class CountedNoise(NoiseScale):
    """Remembers the steps that it measures, and those whose phases are sampled."""

    def train_starts(self, trial: Trial) -> None:
        super().train_starts(trial)
        self.measured: list[int] = []

    def step_measured(self, trial: Trial, squares: torch.Tensor) -> None:
        self.measured.append(trial.progress.tally.steps)


@pytest.mark.parametrize("batch_size", [6, 8, 15, 30])
def test_of_an_epoch_at_most_four_steps_are_measured_for_noise_and_four_others_for_phases(batch_size: int) -> None:
    noise = CountedNoise(interval=1)
    result = trained([noise], batch_size=batch_size)
    steps = result.records[0].steps
    sampled = {step for step in range(steps) if is_sampled(step, steps, step_graph.SAMPLED_STEPS)}
    epoch = noise.measured[: len(noise.measured) // 2]
    assert 1 <= len(epoch) <= 4
    assert 1 <= len(sampled) <= 4
    assert not sampled & set(epoch)
    assert steps - 1 not in sampled, "it may be a smaller batch"
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


@pytest.mark.parametrize("position", [0, 100])
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


class Reading(nn.Module):
    """Its forward reads a tensor, on all ranks or on one."""

    def __init__(self, on_rank: int | None) -> None:
        super().__init__()
        self.on_rank, self.last = on_rank, nn.Linear(784, 10)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.last(inputs.flatten(1))
        reads = self.on_rank is None or self.on_rank == dist.get_rank()
        return outputs * 2 if reads and outputs.mean().item() > 1e9 else outputs


def reading(num_classes: int, in_channels: int, on_rank: int | None = None) -> nn.Module:
    return Reading(on_rank)


class ReadsInBackward(torch.autograd.Function):
    """The identity, whose gradient is read on its way."""

    @staticmethod
    def forward(context: Any, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return gradient * (1.0 if gradient.sum().item() > -1e9 else 2.0)


class LateReader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(784, 16), nn.Linear(16, 10)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = ReadsInBackward.apply(self.first(inputs.flatten(1)))
        outputs: torch.Tensor = self.last(hidden)
        return outputs


def late_reader(num_classes: int, in_channels: int) -> nn.Module:
    return LateReader()


class Centred(nn.Module):
    """Keeps a running mean, by replacing its buffer or by changing it in place."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.in_place = in_place
        self.last = nn.Linear(784, 10)
        self.register_buffer("mean", torch.zeros(784))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        flat = inputs.flatten(1)
        if self.training:
            mean = 0.9 * self.mean + 0.1 * flat.detach().mean(dim=0)
            if self.in_place:
                self.mean.copy_(mean)
            else:
                self.mean = mean
        outputs: torch.Tensor = self.last(flat - self.mean)
        return outputs


def centred(num_classes: int, in_channels: int, in_place: bool) -> nn.Module:
    return Centred(in_place)


@pytest.mark.parametrize(
    ("model", "arguments", "reason"),
    [
        ("reading", {}, "operation not permitted"),
        ("late_reader", {}, "operation not permitted"),
        ("late_reader", {"weighs": True}, "operation not permitted"),
        ("centred", {"in_place": False}, "the model replaces its buffer mean"),
        ("centred", {"in_place": True}, None),
    ],
)
def test_what_a_capture_leaves_behind_changes_no_training(model: str, arguments: Any, reason: str | None) -> None:
    """Gradients that were captured and not computed, also those of a task's weights; a buffer of the graph's."""
    task = {"task": f"{TASKS}:Examples", "metric": "accuracy"} if arguments.pop("weighs", 0) else {}
    options = {"model": f"{HERE}:{model}", "model_args": arguments, **task}
    graphed, eager = trained(**options), train(make_config(epochs=2, **options), ALONE)
    said = f"the step can't be captured: {reason}" if reason else step_graph.CAPTURED
    assert graphed.details["cuda_graph"].startswith(said)
    assert graphed.spent is bool(reason), "a failed capture keeps its memory"
    assert largest_difference(state_of(graphed.model), state_of(eager.model)) < 1e-6


@pytest.mark.parametrize("text", ["CUDA out of memory. Tried to allocate", "CUDA error: unspecified launch failure"])
def test_a_device_without_memory_or_lost_is_no_mistake_of_the_user(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    def fails(function: Any) -> Any:
        raise RuntimeError(text)

    monkeypatch.setattr(step_graph, "has_graphs", lambda device: True)
    monkeypatch.setattr(step_graph, "capture", fails)
    with pytest.raises(RuntimeError, match=f"^{text}") as caught:
        train(make_config(cuda_graph=True), ALONE)
    assert not isinstance(caught.value, ValueError)


def test_a_graph_that_is_insisted_on_and_not_possible_is_refused() -> None:
    config = make_config(cuda_graph=True, model=f"{HERE}:reading", model_args={})
    with graphs_on_the_cpu(), pytest.raises(ValueError, match=r"^train\.cuda_graph: the step can't be captured: .*; "):
        train(config, ALONE)


REASONS = {
    "the model is compiled": {"compile": True},
    "the optimizer .* has no fused update": {"optimizer": OptimizerConfig(name="torch.optim:RAdam")},
    "adascale reads": {"lr_rule": "adascale", "base_batch_size": 16},
}


@pytest.mark.parametrize("reason", REASONS)
def test_what_can_not_be_captured_is_told_before(reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scalestudy.training.loop.trial.compile_model", lambda model, mode: None)
    assert trained(**REASONS[reason], max_steps=6).details["cuda_graph"].startswith(reason.split(" .*")[0])
    with graphs_on_the_cpu(), pytest.raises(ValueError, match=rf"^train\.cuda_graph: {reason}"):
        train(make_config(cuda_graph=True, **REASONS[reason]), ALONE)


def test_a_cpu_has_no_graphs() -> None:
    assert train(make_config(cuda_graph="auto", epochs=1), ALONE).details == {
        "cuda_graph": "a graph needs a CUDA device, not cpu"
    }
    with pytest.raises(ValueError, match=r"^train\.cuda_graph: a graph needs a CUDA device, not cpu; write auto"):
        train(make_config(cuda_graph=True, epochs=1), ALONE)


def both_ways(worker: Worker, options: dict[str, Any], way: Any = "auto") -> dict[str, Any]:
    """A training with graphs and the same without. way: `cuda_graph`; true has gloo's collectives in the graph."""
    with graphs_on_the_cpu(), pytest.MonkeyPatch.context() as patch:
        if way is True:
            patch.setattr(dist, "get_backend", lambda: "nccl")
            patch.setattr(step_graph, "wait_within", lambda device, seconds: None)
        graphed = train(make_config(epochs=2, cuda_graph=way, **options), worker)
    eager = train(make_config(epochs=2, **options), worker)
    return {
        "said": graphed.details["cuda_graph"],
        "spent": graphed.spent,
        "same": same_bits(state_of(graphed.model), state_of(eager.model)),
        "ended": [(each.status, each.message) for each in (graphed, eager)],
        "bytes": [[record.sync_bytes for record in each.records] for each in (graphed, eager)],
    }


SEVERAL = {
    "flat": {"gradient_sync": "flat", "optimizer": OptimizerConfig(momentum=0.9), "gradient_clip": 0.5},
    "naive": {"gradient_sync": "naive", "schedule": "cosine"},
    "ring": {"gradient_sync": "ring", "accumulation": 2},
    "flat, uneven": {"gradient_sync": "flat", "batch_size": 30},
    "flat, a smaller last batch of which a worker has as much": {"gradient_sync": "flat", "batch_size": 7},
    "flat, a task with weights": {"gradient_sync": "flat", "task": f"{TASKS}:Examples", "metric": "accuracy"},
    "flat, an update that reads": {
        "gradient_sync": "flat",
        "optimizer": OptimizerConfig(name=f"{HERE}:ReadingSGD"),
        "schedule": "cosine",
    },
    **{strategy: {"gradient_sync": strategy} for strategy in ("ddp", "local_sgd", "powersgd")},
}
REFUSED = "the step can't be captured: operation not permitted"
SAID = {
    "flat, an update that reads": REFUSED,
    **{strategy: f"{strategy} communicates within the step" for strategy in ("ddp", "local_sgd", "powersgd")},
}


@pytest.mark.parametrize(
    ("world_size", "case"),
    [*((2, case) for case in SEVERAL), (4, "flat, uneven"), (1, "flat, an update that reads")],
)
def test_of_several_workers_all_but_the_sum_is_replayed(ranks: GlooPool, world_size: int, case: str) -> None:
    """Where an update can't be captured the sum is made by then, and not made twice."""
    for found in ranks.run(world_size, both_ways, SEVERAL[case]):
        assert found["said"].startswith(SAID.get(case, step_graph.CAPTURED_IN_PART))
        assert found["same"]
        assert found["bytes"][0] == found["bytes"][1]


def test_collectives_may_be_in_the_graph_too(ranks: GlooPool) -> None:
    for found in ranks.run(2, both_ways, SEVERAL["flat"], True):
        assert (found["said"], found["same"]) == (step_graph.CAPTURED, True)
        assert found["bytes"][0] == found["bytes"][1]


class LeftOut(Replays):
    """Keeps how many steps of the first epoch were not timed."""

    def step_ends(self, trial: Trial, step: int) -> None:
        super().step_ends(trial, step)
        assert trial.stopwatch is not None
        if trial.progress.period == 1:
            self.eager_or_captured = step + 1 - (self.replayed - 1)
            self.untimed = trial.stopwatch.left_out


def steps_left_out(worker: Worker) -> tuple[int, int]:
    hook = LeftOut()
    with graphs_on_the_cpu():
        config = make_config(cuda_graph="auto", gradient_sync="flat", batch_size=4, warm_up_steps=0)
        train(config, worker, hooks=[hook, NoiseScale(interval=1)])
    return hook.untimed, hook.eager_or_captured


@pytest.mark.parametrize("world_size", [1, 2])
def test_only_replays_are_timed(ranks: GlooPool, world_size: int) -> None:
    """Not the steps that are measured for phases or noise, at any number of workers."""
    for untimed, eager_or_captured in ranks.run(world_size, steps_left_out):
        assert untimed == eager_or_captured == 3 + 1 + 4 + 4  # eager, captured, for phases, for noise


@pytest.mark.parametrize("position", [77, 200])
def test_a_nan_on_one_of_several_workers_is_found_in_a_replay(ranks: GlooPool, position: int) -> None:
    data = {"data": f"{WORKLOADS}:splits_with_a_nan", "data_args": {"position": position}}
    for found in ranks.run(2, both_ways, {**data, "gradient_sync": "flat", "batch_size": 16}):
        assert found["same"]
        assert found["ended"][0] == found["ended"][1]
        assert found["ended"][0][0] == "diverged"


def test_a_worker_that_trains_eagerly_beside_one_that_replays_changes_nothing(ranks: GlooPool) -> None:
    options = {"model": f"{HERE}:reading", "model_args": {"on_rank": 1}, "gradient_sync": "flat"}
    first, second = ranks.run(2, both_ways, options)
    assert first["spent"]
    assert second["spent"], "both go: what one can't capture keeps memory"
    assert first["said"] == step_graph.CAPTURED_IN_PART
    assert second["said"].startswith(REFUSED)
    assert first["same"]
    assert second["same"]


class ReadingSGD(torch.optim.SGD):
    """Fused, and reads a parameter in its step."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, lr=lr, fused=True)

    def step(self, closure: Any = None) -> Any:
        self.seen = self.param_groups[0]["params"][0].sum().item()
        return super().step(closure)


def timed_with_an_idle_rank(worker: Worker) -> tuple[int, list[float | None]]:
    with graphs_on_the_cpu():
        options = {"gradient_sync": "flat", "shards": (1.0, 0.0), "max_steps": 40, "min_seconds": 0.05}
        records = train(make_config(epochs=8, cuda_graph="auto", **options), worker).records
    return sum(record.steps for record in records), [record.samples_per_second for record in records]


def test_a_worker_without_examples_has_the_rates_of_the_others(ranks: GlooPool) -> None:
    """And makes as many steps until enough seconds are timed."""
    first, second = ranks.run(2, timed_with_an_idle_rank)
    assert first == second
    assert any(first[1])


def insisting(worker: Worker) -> str:
    with graphs_on_the_cpu(), pytest.raises(ValueError) as caught:
        train(make_config(cuda_graph=True, gradient_sync="flat"), worker)
    return str(caught.value)


def test_collectives_of_gloo_can_not_be_in_a_graph(ranks: GlooPool) -> None:
    for told in ranks.run(2, insisting):
        assert told.startswith("train.cuda_graph: gloo can't be captured; auto leaves its collectives between graphs; ")


def test_too_few_steps_for_a_graph_are_told() -> None:
    assert trained(max_steps=6, batch_size=200).details["cuda_graph"] == step_graph.TOO_SHORT
