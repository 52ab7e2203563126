"""The test set's metrics: exact over any number of workers, and what a task may return."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from scalestudy.training.data.loading import EVALUATION_BATCH, TrainingData, open_data
from scalestudy.training.data.readers import ResidentReader
from scalestudy.training.distributed import Worker
from scalestudy.training.exceptions import InputError
from scalestudy.training.loop.evaluation import Sums, evaluate, metrics_of, summed
from scalestudy.training.task import ShardLoss, make_task
from tests.support.gloo import GlooPool
from tests.support.training.helpers import ALONE, make_config
from tests.support.training.tasks import Examples


def data_of(inputs: torch.Tensor, targets: torch.Tensor, num_classes: int) -> TrainingData:
    """A test set."""
    reader = ResidentReader((inputs, targets))
    return TrainingData(reader, reader, (num_classes, 1), num_classes, device=torch.device("cpu"))


class Batchy(nn.Sequential):
    """In training mode an example's outputs depend on all of its batch; its running statistics are not those at 0."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(), nn.Flatten(), nn.Linear(16, 10)
        )
        self.double()
        self(torch.rand(64, 1, 4, 4, dtype=torch.float64))


def evaluate_examples(worker: Worker, samples: int, weights: tuple[float, ...] | None = None) -> Sums:
    """This worker's sums over `samples` random examples."""
    torch.manual_seed(0)
    shard_loss = ShardLoss(Batchy(), make_task(None, "cross_entropy", "accuracy", 10))
    inputs, targets = torch.rand(samples, 1, 4, 4, dtype=torch.float64), torch.randint(10, (samples,))
    return evaluate(shard_loss, data_of(inputs, targets, 10), worker, weights)


@pytest.mark.parametrize(
    ("samples", "weights"),
    [
        *((samples, (1.0,) * workers) for workers in (2, 4) for samples in (1, 3, 101, 2 * EVALUATION_BATCH + 1)),
        (101, (0.7, 0.3)),
        (101, (1.0, 0.0)),
        (101, (1.0, 3.0, 0.0, 2.5)),
    ],
)
def test_counts_of_all_workers_are_those_of_one(ranks: GlooPool, samples: int, weights: tuple[float, ...]) -> None:
    """With batch normalisation and dropout, which an evaluation must not feel."""
    parts = ranks.run(len(weights), evaluate_examples, samples, weights)
    whole = evaluate_examples(ALONE, samples)
    assert whole.named["examples"] == samples
    for name in ("values", "examples"):
        assert sum(part.named.get(name, 0) for part in parts) == whole.named[name]
    losses = sum(part.loss.get("loss", 0) for part in parts)
    assert float(losses) == pytest.approx(whole.loss["loss"].item(), rel=1e-12)
    shares = [samples * weight / sum(weights) for weight in weights]
    assert all(abs(part.named.get("examples", 0) - share) < 1 for part, share in zip(parts, shares, strict=True))


LOGITS = torch.tensor([[5.0, 0.0], [5.0, 0.0], [0.0, 5.0]])


def test_counts_are_right() -> None:
    """Three examples, logits 0 but for one class: hits 1, 0, 1; losses log(1 + e^-5), 5 + log(1 + e^-5) and again."""
    shard_loss = ShardLoss(nn.Identity(), make_task(None, "cross_entropy", "accuracy", 2))
    data = data_of(LOGITS, torch.tensor([0, 1, 1]), 2)
    sums = evaluate(shard_loss, data, ALONE)
    assert (sums.named["values"], sums.named["examples"], sums.loss["weight"]) == (2, 3, 3)
    assert sums.loss["loss"].item() == pytest.approx(5 + 3 * math.log1p(math.exp(-5)), rel=1e-6)


def test_a_regressions_metric() -> None:
    """Outputs 1, 2, 4 and targets 1, 0, 1: squares 0 + 4 + 9."""
    shard_loss = ShardLoss(nn.Identity(), make_task(None, "mse", "mse", 1))
    data = data_of(torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([1.0, 0.0, 1.0]), 1)
    sums = evaluate(shard_loss, data, ALONE)
    assert (sums.loss["loss"], sums.named["values"]) == (13.0, 13.0)


def true_where_positive(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A user's metric whose values are truths."""
    return outputs[:, 0] > 0


def test_a_metric_of_truths_is_counted() -> None:
    data = data_of(LOGITS, torch.tensor([0, 1, 1]), 2)
    metric = "tests.unit.training.loop.test_evaluation:true_where_positive"
    shard_loss = ShardLoss(nn.Identity(), make_task(None, "cross_entropy", metric, 2))
    assert evaluate(shard_loss, data, ALONE).named["values"] == 2.0


def test_evaluation_uses_evaluation_mode_and_restores_training() -> None:
    model = nn.Sequential(nn.Dropout(0.9), nn.Identity())
    shard_loss = ShardLoss(model, make_task(None, "cross_entropy", "accuracy", 8))
    sums = evaluate(shard_loss, data_of(torch.eye(8), torch.arange(8), 8), ALONE)
    assert sums.named["values"] == 8
    assert model.training


# --- a part of the test set -------------------------------------------------------------------------------------------


def evaluate_a_part(worker: Worker, batches: int, **changes: Any) -> dict[str, Any]:
    """The sums of all workers over a part of 1,200 examples, which are sorted by class."""
    torch.manual_seed(0)
    targets = torch.arange(1_200) // 120
    data = replace(data_of(torch.rand(1_200, 10), targets, 10), evaluate_batches=batches)
    shard_loss = ShardLoss(nn.Linear(10, 10), make_task(None, "cross_entropy", "accuracy", 10))
    found = summed(evaluate(shard_loss, data, worker, **changes), worker)
    return {**found.named, **found.loss}


def test_a_part_has_the_same_examples_each_time_at_any_number_of_workers(ranks: GlooPool) -> None:
    alone = evaluate_a_part(ALONE, 1)
    assert alone["examples"] == EVALUATION_BATCH
    assert evaluate_a_part(ALONE, 1) == alone
    for together in ranks.run(3, evaluate_a_part, 1):
        assert (together["values"], together["examples"]) == (alone["values"], alone["examples"])
        assert together["loss"].item() == pytest.approx(alone["loss"].item(), rel=1e-6)
    assert evaluate_a_part(ALONE, 3)["examples"] == 1_200


def test_a_part_is_from_all_over_the_set() -> None:
    data = replace(data_of(torch.arange(1_200).unsqueeze(1), torch.zeros(1_200), 1), evaluate_batches=1)
    (inputs, _), *others = data.test_part(ALONE, (1.0,))
    assert others == []
    assert inputs.flatten().tolist() == [number * 1_200 // 512 for number in range(512)]


def test_a_part_that_is_larger_than_the_set_is_refused() -> None:
    config = make_config(data_args={"test_samples": 1_200, "train_samples": 64}, evaluate_batches=3)
    assert open_data(config, ALONE).test_samples == 1_200
    assert open_data(config.replace(evaluate_batches=2), ALONE).test_samples == 1_024
    with pytest.raises(InputError, match="4 batches of 512 are more than the 1200 test examples; choose at most 3"):
        open_data(config.replace(evaluate_batches=4), ALONE)


# --- a task's own sums ------------------------------------------------------------------------------------------------


def sums_of(worker: Worker, values: list[Any]) -> dict[str, Any]:
    """What all workers have after each added its own."""
    mine = Sums()
    if values[worker.rank] is not None:
        mine.add({"loss": 1.0, "weight": 2.0}, values[worker.rank], torch.device("cpu"))
    found = summed(mine, worker)
    return {**found.named, **found.loss}


def test_sums_of_any_shape_add_up_and_a_worker_without_examples_has_none(ranks: GlooPool) -> None:
    values = [{"there": torch.tensor([1.0, 2.0]), "n": 3}, None, {"there": torch.tensor([10.0, 0.5]), "n": 4}]
    for found in ranks.run(3, sums_of, values):
        assert found["there"].tolist() == [11.0, 2.5]
        assert (found["n"], found["loss"], found["weight"]) == (7, 2, 4)


def test_shapes_that_differ_are_refused(ranks: GlooPool) -> None:
    with pytest.raises(Exception, match=r"task: evaluate gave 'there' the shapes \(2,\) and \(3,\)"):
        ranks.run(2, sums_of, [{"there": torch.zeros(2)}, {"there": torch.zeros(3)}])


def test_infinities_of_both_signs_are_not_a_number(ranks: GlooPool) -> None:
    first, _ = ranks.run(2, sums_of, [{"n": math.inf}, {"n": -math.inf}])
    assert math.isnan(first["n"])


class Task(Examples):
    """Gives what it is told."""

    def __init__(self, sums: object = None, metrics: object = None) -> None:
        self.sums, self.metrics = sums, metrics

    def evaluate(self, outputs: Any, batch: Any) -> Any:
        return self.sums

    def finish(self, sums: Any) -> Any:
        return self.metrics


@pytest.mark.parametrize(
    ("metrics", "found"),
    [
        ([0.5], "task: finish gave a list; return a dict of metrics by name"),
        ({"loss": 1.0, "f1": 1.0}, "task: finish gave a metric named 'loss'"),
        ({"f 1": 1.0}, "task: finish gave a metric the name 'f 1'"),
        ({"f1": [1.0]}, "task: finish gave 'f1' as a list; return one number a metric"),
        ({"recall": 1.0, "precision": 0.5}, "workload.metric: 'f1' is not what finish returns: recall, precision"),
    ],
)
def test_what_finish_returns_is_checked(metrics: object, found: str) -> None:
    with pytest.raises(ValueError, match=found):
        metrics_of(Task(metrics=metrics), Sums(), "f1")


@pytest.mark.parametrize(
    ("sums", "found"),
    [
        (0.5, "task: evaluate gave a float; return a dict of sums by name"),
        ({"a b": 1}, "task: evaluate gave a sum the name 'a b'"),
        ({"hits": "many"}, "task: evaluate gave 'hits' as a str"),
    ],
)
def test_what_evaluate_returns_is_checked(sums: object, found: str) -> None:
    shard_loss = ShardLoss(nn.Linear(2, 2), Task(sums))
    with pytest.raises(ValueError, match=found):
        summed(evaluate(shard_loss, data_of(torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64), 2), ALONE), ALONE)


class Counting(Examples):
    """Counts by class, by a vector that is as long as the batch's largest class."""

    def evaluate(self, outputs: Any, batch: Any) -> Any:
        return {"there": torch.bincount(batch[1])}


def counted(worker: Worker) -> Sums:
    """Two batches: in the first there is class 0 alone."""
    labels = torch.zeros(EVALUATION_BATCH + 10, dtype=torch.int64)
    labels[EVALUATION_BATCH:] = 1
    data = data_of(torch.zeros(len(labels), 2), labels, 2)
    shares = (1.0, 0.0)[: worker.world_size]
    return summed(evaluate(ShardLoss(nn.Linear(2, 2), Counting()), data, worker, shares), worker)


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_sum_of_another_shape_in_another_batch_is_refused_on_all_workers(ranks: GlooPool, world_size: int) -> None:
    """Broadcasting would add them. Of two workers only the first has examples."""
    with pytest.raises(Exception, match=r"task: evaluate gave 'there' the shapes \(1,\) and \(2,\)") as caught:
        ranks.run(world_size, counted)
    assert str(caught.value).count("InputError: task: evaluate") == world_size


def test_the_loss_is_a_mean_over_weights_and_without_any_not_a_number() -> None:
    sums = Sums()
    sums.add({"loss": 6.0, "weight": 4.0}, {"hits": 1}, torch.device("cpu"))
    assert metrics_of(Task(metrics={"f1": torch.tensor(0.25)}), sums, "f1") == (1.5, {"f1": 0.25})
    assert math.isnan(metrics_of(Task(metrics={"f1": 1}), Sums(), "f1")[0])
