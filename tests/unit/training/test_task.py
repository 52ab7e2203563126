"""A task and a worker's share of its loss: every split gives one worker's training, and mistakes are told."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from docs.examples import tagger
from scalestudy.training.config import OptimizerConfig, TrainConfig
from scalestudy.training.data import Splits
from scalestudy.training.data.loading import open_data
from scalestudy.training.distributed import Worker
from scalestudy.training.exceptions import InputError
from scalestudy.training.loop.train import train
from scalestudy.training.loop.trial import start_trial
from scalestudy.training.models import LeNet
from scalestudy.training.records import EpochRecord
from scalestudy.training.registry import GRADIENT_SYNCS
from scalestudy.training.task import ShardLoss, checked_loss, make_task
from tests.support.gloo import GlooPool
from tests.support.training.helpers import (
    ALONE,
    examples_task,
    largest_difference,
    refusal,
    run_training,
    smallest_movement,
    state_of,
)
from tests.support.training.tasks import HERE, TASKS, Examples, task_config

TOLERANCE = 1e-11  # float64
EXACT = sorted(set(GRADIENT_SYNCS) - {"bf16", "powersgd", "local_sgd"})


class Returning(nn.Module):
    """A model whose output is what it was given."""

    def __init__(self, output: object) -> None:
        super().__init__()
        self.output = output

    def forward(self, inputs: torch.Tensor) -> object:
        return self.output


@pytest.mark.parametrize(
    ("output", "found"),
    [
        ((torch.zeros(2, 2),), "its output is a tuple; return one tensor"),
        (torch.zeros(2, dtype=torch.int64), "its outputs are torch.int64; return floating-point numbers"),
        (torch.zeros(3, 2), "for 2 examples; return one row for each example"),
        (torch.zeros(()), "for 2 examples; return one row for each example"),
    ],
)
def test_a_models_output_is_checked(output: object, found: str) -> None:
    with pytest.raises(ValueError, match=f"^model: .*{found}"):
        ShardLoss(Returning(output), examples_task())((torch.zeros(2, 4), torch.tensor([0, 1])))


def test_an_empty_shard_gives_zero_loss_and_zero_gradients() -> None:
    shard_loss = ShardLoss(LeNet(10, 1), examples_task())
    loss, weight = shard_loss((torch.empty(0, 1, 28, 28), torch.empty(0, dtype=torch.int64)))
    loss.backward()
    assert (loss.item(), weight) == (0.0, 0)
    assert all(parameter.grad.count_nonzero() == 0 for parameter in shard_loss.trained_parameters())


# --- every split of a batch is the same training ----------------------------------------------------------------------


def by_hand(name: str, **changes: Any) -> dict[str, Any]:
    """The parameters after plain steps on whole batches: loss sum / weight, backward, update."""
    config = task_config(name, **changes)
    trial = start_trial(config, ALONE)
    task = make_task(config.task, config.loss, config.metric, None)
    optimizer = torch.optim.SGD(trial.model.parameters(), config.learning_rate)
    for batch in trial.shards():
        optimizer.zero_grad()
        total, weight = task.loss(task.forward(trial.model, batch), batch)
        (total / weight).backward()
        optimizer.step()
    return state_of(trial.model)


CLIPPED: dict[str, Any] = {"gradient_clip": 0.5, "optimizer": OptimizerConfig(momentum=0.9)}


@cache
def trained_alone(name: str, *, clips: bool = False) -> dict[str, Any]:
    """One worker's outcome."""
    return run_training(ALONE, task_config(name, **(CLIPPED if clips else {})))


@pytest.mark.parametrize("name", TASKS)
def test_one_worker_trains_as_a_plain_loop(name: str) -> None:
    result = trained_alone(name)
    assert largest_difference(result["state"], by_hand(name)) < TOLERANCE
    assert smallest_movement(result["state"], result["first_state"]) > 1e-4


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize(
    "changes",
    [{}, {"accumulation": 3}, {"shards": (5.0, 1.0)}, {"shards": (1.0, 0.0)}],
    ids=["even", "accumulated", "uneven", "one empty"],
)
def test_two_workers_train_as_one(ranks: GlooPool, name: str, changes: dict[str, Any]) -> None:
    """With a parameters' clip and momentum, which see the mean's gradient, and metrics over all workers' sums."""
    alone = trained_alone(name, clips=True)
    for each in ranks.run(2, run_training, task_config(name, **CLIPPED, **changes)):
        assert largest_difference(each["state"], alone["state"]) < TOLERANCE
        assert each["replica_max_diff"] == [0.0, 0.0]
        for mine, expected in zip(each["curve"], alone["curve"], strict=True):
            assert mine == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("name", "strategy"), list(zip(itertools.cycle(["tagger", "two_inputs"]), EXACT, strict=False))
)
def test_four_workers_train_as_one_by_every_exact_strategy(ranks: GlooPool, name: str, strategy: str) -> None:
    alone = trained_alone(name)
    config = task_config(name, gradient_sync=strategy, shards=(4.0, 1.0, 2.0, 1.0), accumulation=2)
    for each in ranks.run(4, run_training, config):
        assert largest_difference(each["state"], alone["state"]) < TOLERANCE
        assert each["curve"][-1] == pytest.approx(alone["curve"][-1], rel=1e-9)


def test_these_proofs_fail_for_a_mean_of_means(ranks: GlooPool) -> None:
    """Of parts with different numbers of words."""
    wrong = {"task": f"{HERE}:MeanOfAPart"}
    first, _ = ranks.run(2, run_training, task_config("tagger", **wrong))
    assert largest_difference(first["state"], trained_alone("tagger")["state"]) > 1e-5


def test_local_sgd_weighs_workers_by_their_words(ranks: GlooPool) -> None:
    """With one local step, no momentum and no clipping, an average of parameters is the step of the whole batch."""
    alone = trained_alone("tagger")
    config = task_config("tagger", gradient_sync="local_sgd", local_steps=1, shards=(5.0, 1.0))
    for each in ranks.run(2, run_training, config):
        assert largest_difference(each["state"], alone["state"]) < TOLERANCE


@pytest.mark.parametrize("strategy", ["bf16", "powersgd", "local_sgd"])
def test_lossy_strategies_learn_a_task(ranks: GlooPool, strategy: str) -> None:
    float32 = {"data": "docs.examples.two_inputs:load", "model": "docs.examples.two_inputs:build"}  # as bf16 needs it
    few = {"data_args": {"train_houses": 600, "test_houses": 100}}
    config = task_config("two_inputs", gradient_sync=strategy, epochs=3, learning_rate=0.05, **float32, **few)
    first, second = ranks.run(2, run_training, config)
    assert first["curve"] == second["curve"]
    assert first["curve"][-1][1] < 0.5 * first["curve"][0][1]


# --- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize(
    ("task", "found"),
    [
        ("Weightless", "the weights of a batch sum to 0"),
        ("NegativelyWeighing", "the weights of a batch sum to less than 0"),
        ("NanWeighing", "loss gave a weight that is not finite"),
        ("InfinitelyWeighing", "loss gave a weight that is not finite"),
    ],
)
def test_a_wrong_weight_is_an_error_on_every_rank(ranks: GlooPool, task: str, found: str, world_size: int) -> None:
    said = ranks.run(world_size, refusal, task_config("examples", task=f"{HERE}:{task}"))
    assert all(f"task: {found}" in each for each in said), said


@pytest.mark.parametrize(
    ("task", "found"),
    [("Weightless", "sum to 0"), ("NegativelyWeighing", "less than 0"), ("NanWeighing", "not finite")],
)
def test_local_sgd_tells_a_wrong_weight_on_every_rank(ranks: GlooPool, task: str, found: str) -> None:
    """At the next average; a weight of 0 only if no rank has had another since the last."""
    steps = 1 if task == "Weightless" else 2
    config = task_config("examples", task=f"{HERE}:{task}", gradient_sync="local_sgd", local_steps=steps)
    said = ranks.run(2, refusal, config)
    assert all("task: " in each and found in each for each in said), said


def test_a_part_may_weigh_nothing() -> None:
    """All of its words are hidden."""
    batch = {"words": torch.ones(4, 3, dtype=torch.int64), "tags": torch.full((4, 3), -1)}
    task = make_task("docs.examples.tagger:Tagging", "cross_entropy", "macro_f1", None)
    shard_loss = ShardLoss(tagger.build(5, 3), task)
    total, weight = shard_loss(batch)
    total.backward()
    assert (total.item(), float(weight)) == (0.0, 0.0)
    assert shard_loss.weight.grad.tolist() == [0.0, 0.0]


class Telling:
    """A task whose loss is as told."""

    def __init__(self, value: object) -> None:
        self.value = value

    def loss(self, outputs: Any, batch: Any) -> Any:
        return self.value


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (torch.tensor(1.0), "loss gave a Tensor; return \\(sum, weight\\)"),
        (0.5, "loss gave a float; return"),
        ((0.5, 3), "loss gave a float as its sum"),
        ((torch.ones(3), 3), r"loss gave a tensor \(3,\) as its sum"),
        ((torch.tensor(1.0), torch.ones(3)), r"loss gave a tensor \(3,\) as its weight"),
        ((torch.tensor(1.0), None), "loss gave a NoneType as its weight"),
    ],
)
def test_what_a_loss_returns_is_checked(value: object, found: str) -> None:
    with pytest.raises(ValueError, match=f"^task: {found}"):
        checked_loss(Telling(value), None, None)  # type: ignore[arg-type]


class WithoutFinish:
    """Lacks a method."""

    forward = loss = evaluate = print


class WithParameters(nn.Linear):
    """Keeps what belongs in the model."""

    loss = evaluate = finish = print

    def __init__(self) -> None:
        super().__init__(2, 2)


@pytest.mark.parametrize(
    ("task", "found"),
    [
        ("WithoutFinish", "has no method finish; give the class the methods forward, loss, evaluate, finish"),
        ("WithParameters", "has parameters, which nothing would train"),
        ("Missing", "has no callable 'Missing'"),
    ],
)
def test_what_is_no_task_is_refused(task: str, found: str) -> None:
    with pytest.raises(ValueError, match=f"task: .*{found}"):
        make_task(f"tests.unit.training.test_task:{task}", "cross_entropy", "accuracy", None)


# --- what a task is called with ---------------------------------------------------------------------------------------


class Weighted(Examples):
    """A loss with a weight for each class, which the data know, and a smoothing, which the spec says."""

    def __init__(self, class_weights: torch.Tensor, smoothing: float = 0.0) -> None:
        self.class_weights, self.smoothing = class_weights, smoothing

    def loss(self, outputs: torch.Tensor, batch: Any) -> tuple[torch.Tensor, Any]:
        how: dict[str, Any] = {"label_smoothing": self.smoothing, "reduction": "sum"}
        total = nn.functional.cross_entropy(outputs, batch[1], weight=self.class_weights, **how)
        return total, self.class_weights[batch[1]].sum()


class Picky(Examples):
    def __init__(self, smoothing: float) -> None:
        if smoothing > 1:
            raise ValueError("smoothing is a share")


def weighted_data(root: str) -> Any:
    found = Splits.from_tensors((torch.rand(60, 4), torch.arange(60) % 3), (torch.rand(9, 4), torch.arange(9) % 3))
    return replace(found, for_task={"class_weights": torch.tensor([1.0, 2.0, 3.0])})


def linear() -> nn.Module:
    return nn.Linear(4, 3)


OWN = "tests.unit.training.test_task"


def weighted_config(task: str = "Weighted", **task_args: Any) -> TrainConfig:
    names = {"model": f"{OWN}:linear", "data": f"{OWN}:weighted_data", "task": f"{OWN}:{task}"}
    return task_config("examples", **names, task_args=task_args)


def test_a_task_gets_what_the_data_give_it_and_its_arguments() -> None:
    task: Any = start_trial(weighted_config(smoothing=0.1), ALONE).shard_loss.task
    assert (task.class_weights.tolist(), task.smoothing) == ([1.0, 2.0, 3.0], 0.1)
    given: Any = start_trial(weighted_config(class_weights=2.0), ALONE).shard_loss.task
    assert given.class_weights == 2.0, "the spec goes over the data"
    assert train(weighted_config(smoothing=0.1), ALONE).status == "finished"


def test_what_the_data_give_a_task_is_on_the_device() -> None:
    data = open_data(weighted_config(), Worker(rank=0, world_size=1, device=torch.device("meta")))
    assert data.for_task["class_weights"].device.type == "meta"


@pytest.mark.parametrize("made", ["pairs", "tensors", "datasets"])
def test_every_form_of_splits_takes_what_it_gives_a_task(made: str) -> None:
    inputs, targets, given = torch.rand(6, 1), torch.arange(6) % 2, {"a": 1}
    pairs = TensorDataset(inputs, targets)
    forms: dict[str, Any] = {
        "pairs": Splits(inputs, targets, inputs, targets, 2, for_task=given),
        "tensors": Splits.from_tensors((inputs,), (inputs,), for_task=given),
        "datasets": Splits.from_datasets(pairs, pairs, num_classes=2, for_task=given),
    }
    assert forms[made].for_task == given


def test_a_task_that_refuses_its_arguments_is_told_before_the_first_trial() -> None:
    with pytest.raises(
        InputError, match=r"^task_args: '.*:Weighted': Weighted\(.*'smooth'; it takes class_weights, smo"
    ):
        start_trial(weighted_config(smooth=0.1), ALONE)
    with pytest.raises(InputError, match=r"task_args: '.*:Picky': .*unexpected keyword argument 'class_weights'"):
        start_trial(weighted_config("Picky", smoothing=2.0), ALONE)


# --- parameters that a batch does not use -----------------------------------------------------------------------------


class HidingNet(nn.Module):
    """Uses its second layer only for batches whose first number is positive."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 3).double(), nn.Linear(6, 3).double()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.first(inputs)
        return outputs + self.second(inputs) if inputs[0, 0] > 0 else outputs


def test_unused_parameters_that_are_allowed_have_zero_gradients_at_any_world_size(ranks: GlooPool) -> None:
    """So momentum and decay act alike, whichever rank used them."""
    config = task_config(
        "examples",
        model=f"{OWN}:HidingNet",
        unused_parameters=True,
        batch_size=2,
        accumulation=1,
        shards="even",
        optimizer=OptimizerConfig(momentum=0.9, weight_decay=0.01),
    )
    for strategy in ("ddp", "flat"):
        first, second = ranks.run(2, run_training, config.replace(gradient_sync=strategy))
        assert first["curve"] == second["curve"]
        assert first["replica_max_diff"] == [0.0, 0.0]
    assert run_training(ALONE, config)["status"] == "finished"


# --- tokens -----------------------------------------------------------------------------------------------------------


def with_records(worker: Worker, config: TrainConfig) -> tuple[dict[str, Any], list[EpochRecord]]:
    """The parameters after a training, and its records."""
    result = train(config, worker)
    return state_of(result.model), result.records


def test_a_length_in_tokens_is_the_same_training_on_any_number_of_workers(ranks: GlooPool) -> None:
    """100 texts of 3 to 19 words, in batches of 30: steps by the mean of all, records by the words that were read."""
    config = task_config("tagger", epochs=None, tokens=3000, eval_every={"tokens": 800})
    words = sum(len(text) for text in tagger.Texts(100, 30, seed=0).words)
    steps = math.ceil(3000 / (words / 100 * 30))
    state, records = with_records(ALONE, config)
    for other, told in ranks.run(2, with_records, config):
        assert largest_difference(other, state) < TOLERANCE
        assert [record.tokens for record in told] == [record.tokens for record in records]
    assert len(records) == config.evaluations == 4
    assert sum(record.steps for record in records) == steps
    epochs, rest = divmod(steps, 4)
    assert epochs * words < sum(record.tokens or 0 for record in records) <= (epochs + 1) * words
    assert rest


def test_records_tell_the_tokens_of_any_length() -> None:
    words = sum(len(text) for text in tagger.Texts(100, 30, seed=0).words)
    records = train(task_config("tagger", epochs=2), ALONE).records
    assert [record.tokens for record in records] == [words, words]
    assert EpochRecord.from_dict(records[0].to_dict()).tokens == words
    assert "tokens" not in train(task_config("two_inputs", epochs=1), ALONE).records[0].to_dict()


class CountsNothing(tagger.Tagging):
    def tokens(self, batch: Any) -> Any:
        return 0


class CountsInWords(tagger.Tagging):
    def tokens(self, batch: Any) -> Any:
        return "many"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"task": f"{__name__}:CountsNothing"}, "task: tokens gave 0 an example"),
        ({"task": f"{__name__}:CountsInWords"}, "task: tokens gave a str; return how many tokens the batch has"),
        ({"eval_every": {"tokens": 5}}, r"eval_every: 5 tokens are fewer than the \d+ of a step"),
    ],
)
def test_what_counts_no_tokens_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        train(task_config("tagger", **{"epochs": None, "tokens": 3000, **changes}), ALONE)


def test_a_task_without_tokens_has_no_length_in_tokens() -> None:
    with pytest.raises(InputError, match="does not count them; give it a method tokens"):
        train(task_config("two_inputs", epochs=None, tokens=3000), ALONE)
