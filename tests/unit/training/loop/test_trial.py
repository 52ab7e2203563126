"""How a trial is set up: optimizer, memory order, micro-batches, the rate of each update, and what does not fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from scalestudy.training.budget import Budget
from scalestudy.training.config import OptimizerConfig, ScheduleConfig, TrainConfig
from scalestudy.training.distributed import Worker
from scalestudy.training.loop.hooks import Hook
from scalestudy.training.loop.train import train
from scalestudy.training.loop.trial import Trial, make_optimizer, start_trial
from scalestudy.training.records import EpochRecord
from tests.support.epochs import epoch_of
from tests.support.gloo import GlooPool
from tests.support.training.helpers import ALONE, EachStep, largest_difference, make_config, run_training
from tests.support.training.tasks import stream_config
from tests.unit.training.loop.clock import Clock

HERE = "tests.unit.training.loop.test_trial"
WORKLOADS = "tests.support.training.workloads"


class Seen(Hook):
    """What a model's layers meet in the first step."""

    def __init__(self) -> None:
        self.micro_batches: list[tuple[int, ...]] = []
        self.calls: list[tuple[int, int]] = []

    def backward_ends(self, trial: Trial, step: int, micro_batch: int) -> None:
        self.calls.append((step, micro_batch))

    def step_ends(self, trial: Trial, step: int) -> None:
        self.micro_batches.append(trial.micro_batches)


def lenet(**changes: Any) -> TrainConfig:
    """Eight steps of LeNet."""
    return make_config(model="lenet", model_args={}, learning_rate=0.1, **changes)


class LayoutNet(nn.Module):
    """Counts the images that come channels-last."""

    def __init__(self, num_classes: int, in_channels: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(in_channels, 4, 3)
        self.output = nn.Linear(4, num_classes)
        self.channels_last = 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.channels_last += inputs.is_contiguous(memory_format=torch.channels_last)
        return self.output(self.convolution(inputs).mean(dim=(2, 3)))


@pytest.mark.parametrize("channels_last", [False, True])
def test_channels_last_reaches_images_and_weights(channels_last: bool) -> None:
    data = {"train_samples": 256, "test_samples": 64, "channels": 3}
    config = make_config(
        model=f"{HERE}:LayoutNet",
        model_args={},
        data_args=data,
        channels_last=channels_last,
    )
    result = train(config, ALONE)
    assert isinstance(result.model, LayoutNet)
    assert (result.model.channels_last > 8) is channels_last  # 8 steps and an evaluation
    assert result.model.convolution.weight.is_contiguous(memory_format=torch.channels_last) is channels_last
    assert "channels_last" not in result.details, "it was told, not picked"


def benchmarking(num_classes: int, in_channels: int) -> nn.Module:
    """A user's model, whose module turns cuDNN's timings on."""
    torch.backends.cudnn.benchmark = True
    return nn.Sequential(nn.Flatten(), nn.Linear(784 * in_channels, num_classes))


def test_each_trial_says_anew_whether_cudnn_times_its_algorithms() -> None:
    for chosen in (True, False, True):
        start_trial(make_config(model=f"{HERE}:benchmarking", model_args={}, cudnn_benchmark=chosen), ALONE)
        assert torch.backends.cudnn.benchmark is chosen
    start_trial(make_config(), ALONE)
    assert torch.backends.cudnn.benchmark is False


@pytest.mark.parametrize(
    ("changes", "device", "prepares"),
    [
        ({"compile": True}, "cpu", True),
        ({"compile": "max-autotune"}, "cpu", True),
        ({"cudnn_benchmark": True}, "cuda", True),
        ({"cudnn_benchmark": True}, "cpu", False),
        ({}, "cuda", False),
    ],
)
def test_the_first_step_of_a_shape_is_left_out_of_timings_where_it_is_prepared(
    changes: dict[str, Any], device: str, prepares: bool
) -> None:
    trial = start_trial(make_config(), ALONE)
    trial.config = make_config(**changes)
    trial.worker = replace(ALONE, device=torch.device(device))
    assert trial.prepares_shapes is prepares


def test_accumulation_makes_micro_batches_and_the_same_update() -> None:
    seen = Seen()
    config = lenet(batch_size=100, accumulation=3, data_args={"train_samples": 202, "test_samples": 16})
    train(config, ALONE, hooks=[seen])
    assert seen.micro_batches == [(34, 33, 33), (34, 33, 33), (1, 1)]
    assert seen.calls == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (2, 0), (2, 1)]
    whole = run_training(ALONE, lenet(batch_size=100, data_args={"train_samples": 202, "test_samples": 16}))
    parts = run_training(ALONE, config)
    assert largest_difference(whole["state"], parts["state"]) < 1e-6
    assert whole["curve"][0][0] == pytest.approx(parts["curve"][0][0], rel=1e-6)


@pytest.mark.parametrize(
    ("config", "reference"),
    [
        (OptimizerConfig(momentum=0.9, weight_decay=0.01), lambda p: torch.optim.SGD(p, 0.05, 0.9, weight_decay=0.01)),
        (OptimizerConfig(name="adam", weight_decay=0.1), lambda p: torch.optim.Adam(p, 0.05, weight_decay=0.1)),
        (OptimizerConfig(name="adamw", weight_decay=0.1), lambda p: torch.optim.AdamW(p, 0.05, weight_decay=0.1)),
        (OptimizerConfig(momentum=0.9, nesterov=True), lambda p: torch.optim.SGD(p, 0.05, 0.9, nesterov=True)),
        (OptimizerConfig(momentum=0.9, dampening=0.5), lambda p: torch.optim.SGD(p, 0.05, 0.9, 0.5)),
        (
            OptimizerConfig(name="adamw", betas=(0.8, 0.95), eps=1e-3, amsgrad=True),
            lambda p: torch.optim.AdamW(p, 0.05, (0.8, 0.95), 1e-3, weight_decay=0, amsgrad=True),
        ),
        (
            OptimizerConfig(name="torch.optim:RMSprop", args={"alpha": 0.5}),
            lambda p: torch.optim.RMSprop(p, 0.05, alpha=0.5),
        ),
    ],
    ids=["sgd", "adam", "adamw", "nesterov", "dampening", "betas", "class"],
)
def test_optimizers_are_pytorchs(config: OptimizerConfig, reference: Any) -> None:
    """Ours, fused, against PyTorch's plain ones on the same three gradients."""
    torch.manual_seed(0)
    ours = torch.nn.Parameter(torch.randn(7))
    theirs = torch.nn.Parameter(ours.detach().clone())
    optimizers = (make_optimizer(config, 0.05, torch.nn.ParameterList([ours])), reference([theirs]))
    for gradient in torch.randn(3, 7):
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        for optimizer in optimizers:
            optimizer.step()
    assert (ours - theirs).abs().max() < 1e-6


def slow_biases(model: torch.nn.Module, learning_rate: float, share: float = 0.1) -> torch.optim.Optimizer:
    """A user's: a group of its own for the biases, with a share of the rate."""
    named = dict(model.named_parameters())
    biases = [each for name, each in named.items() if name.endswith("bias")]
    weights = [each for name, each in named.items() if not name.endswith("bias")]
    return torch.optim.SGD([{"params": weights}, {"params": biases, "lr": share * learning_rate}], lr=learning_rate)


def forgetful(model: torch.nn.Module, learning_rate: float) -> torch.optim.Optimizer:
    """Leaves out all but the first parameter."""
    return torch.optim.SGD([next(model.parameters())], lr=learning_rate)


def no_optimizer(model: torch.nn.Module, learning_rate: float) -> None:
    """Returns nothing."""


def test_groups_of_an_optimizer_keep_the_ratio_of_their_rates() -> None:
    """Four updates from 0.08 to 0 by a straight line; the record has the training's own rate."""
    rates = EachStep(lambda trial: [group["lr"] for group in trial.optimizer.param_groups])
    chosen = OptimizerConfig(name=f"{HERE}:slow_biases", args={"share": 0.25})
    config = make_config(optimizer=chosen, learning_rate=0.08, batch_size=64, schedule="linear")
    result = train(config, ALONE, hooks=[rates])
    assert rates.seen == [pytest.approx([rate, rate / 4]) for rate in (0.08, 0.06, 0.04, 0.02)]
    assert result.records[0].learning_rate == pytest.approx(0.02)


def test_groups_keep_the_ratio_of_their_rates_under_a_scheduler_of_pytorchs() -> None:
    rates = EachStep(lambda trial: [group["lr"] for group in trial.optimizer.param_groups])
    chosen = OptimizerConfig(name=f"{HERE}:slow_biases", args={"share": 0.25})
    halving = ScheduleConfig(name="StepLR", args={"step_size": 2, "gamma": 0.5})
    train(make_config(optimizer=chosen, learning_rate=0.08, batch_size=64, schedule=halving), ALONE, hooks=[rates])
    assert rates.seen == [pytest.approx([rate, rate / 4]) for rate in (0.08, 0.08, 0.04, 0.04)]


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("forgetful", {}, "leaves out .*bias.*; put them into a group"),
        ("no_optimizer", {}, "gave a NoneType; return a torch optimizer"),
        ("slow_biases", {"shares": 1}, "optimizer.args: .*unexpected keyword argument 'shares'; it takes model"),
        ("missing", {}, "optimizer.name: .*has no callable 'missing'"),
        ("torch.optim:LBFGS", {}, "evaluates the loss within a step; choose one that needs no closure"),
    ],
)
def test_a_users_optimizer_is_checked(name: str, args: dict[str, Any], message: str) -> None:
    path = name if ":" in name else f"{HERE}:{name}"
    with pytest.raises(ValueError, match=message):
        start_trial(make_config(optimizer=OptimizerConfig(name=path, args=args)), ALONE)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 257}, "batch_size: 257 is more than the 256 training examples"),
        ({"shards": (0.5, 0.5)}, "has 2 weights for 1 workers"),
        ({"model": f"{WORKLOADS}:parameterless", "model_args": {}}, "nothing to train"),
        ({"model_args": {"widths": [3]}}, "unexpected keyword argument 'widths'; it takes num_classes"),
        ({"data_args": {"samples": 3}}, "unexpected keyword argument 'samples'"),
    ],
)
def test_what_does_not_fit_is_a_value_error(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        train(make_config(**changes), ALONE)


def test_the_rate_of_each_update_is_the_plans() -> None:
    """Linear from 0.1 at 64 to 0.2 at 128, over the first epoch of four steps; then half a cosine over four."""

    rates = EachStep(lambda trial: [group["lr"] for group in trial.optimizer.param_groups])
    config = make_config(
        batch_size=64,
        learning_rate=0.1,
        lr_rule="linear",
        base_batch_size=32,
        warmup_epochs=1.0,
        schedule="cosine",
        epochs=2,
    )
    result = train(config, ALONE, hooks=[rates])
    rising = [0.1 + 0.1 * step / 4 for step in range(4)]
    falling = [0.2, 0.2 * (2 + 2**0.5) / 4, 0.1, 0.2 * (2 - 2**0.5) / 4]
    assert [rate for (rate,) in rates.seen] == pytest.approx([*rising, *falling])
    assert [record.learning_rate for record in result.records] == pytest.approx([rising[-1], falling[-1]])


# --- a training that is timed goes on until enough seconds are --------------------------------------------------------

EIGHT_STEPS = {"epochs": 5}  # 256 examples in batches of 32


class Pace(Hook):
    """Steps of 10 ms, and of 4 ms after the first `slow` ones, by the clock; the second rank's take half as long."""

    def __init__(self, clock: Clock, slow: int) -> None:
        self.clock, self.slow = clock, slow

    def step_ends(self, trial: Trial, step: int) -> None:
        self.clock.now += (0.010 if trial.made <= self.slow else 0.004) / (1 + trial.worker.rank)


def paced(worker: Worker, config: TrainConfig, slow: int = 0) -> list[EpochRecord]:
    """The records of a training at that pace."""
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("scalestudy.training.loop.measures.time", clock)
        return train(config, worker, hooks=[Pace(clock, slow)]).records


def test_it_goes_on_until_enough_seconds_are_timed() -> None:
    """In one more period, with a warm-up of its own; in another if the steps have become faster."""
    config = make_config(**EIGHT_STEPS, warm_up_steps=3, max_steps=19, min_seconds=0.4)
    records = paced(ALONE, config, slow=19)
    # 16 of 19 steps are timed: 0.24 s are lacking, 5 % more than 24 steps. 26 take 0.104 s: 5 % more than 34 follow.
    assert [record.steps for record in records] == [8, 8, 3, 26 + 3, 36 + 3]
    budget = Budget(steps=19 + 29 + 39, every=8, more=(29, 39))
    assert budget.timed_seconds(records, 3) == pytest.approx(0.16 + 0.104 + 0.144)
    assert records[3].samples == 32 * 29
    assert [record.epoch for record in records] == [1, 2, 3, 4, 5]
    once = paced(ALONE, config.replace(min_seconds=0.0))
    assert [record.train_loss for record in records[:3]] == [record.train_loss for record in once]


def test_further_steps_have_a_warm_up_of_their_own() -> None:
    """Eight steps of 10 ms, five of them timed: 0.45 of 0.5 s are lacking."""
    trial = start_trial(make_config(epochs=1, warm_up_steps=3, max_steps=8, min_seconds=0.5), ALONE)
    trial.prolong()
    assert (trial.budget.more, trial.progress.began_at) == ((), 0), "its planned steps come first"
    trial.progress.records.append(epoch_of(1, steps=8, samples=256, samples_per_second=3200.0))
    trial.progress.period = 2
    trial.prolong()
    assert (trial.budget.more, trial.progress.began_at) == ((51,), 8)  # 5 % more than 45 steps, and 3 to warm up


@pytest.mark.parametrize("gradient_sync", ["ddp", "local_sgd"])
def test_all_ranks_go_on_for_as_many_steps(ranks: GlooPool, gradient_sync: str) -> None:
    """By the slowest one's seconds: in the second period two steps of 4 ms are timed; 5 % more than 48 are lacking."""
    config = make_config(**EIGHT_STEPS, max_steps=10, min_seconds=0.2, gradient_sync=gradient_sync)
    for records in ranks.run(2, paced, config):
        assert [record.steps for record in records] == [8, 2, 51 + 5]
        assert {record.replica_max_diff for record in records} == {0.0}


def test_a_stream_goes_on_too() -> None:
    config = stream_config(steps=12, eval_every={"steps": 12}, max_steps=12, warm_up_steps=5, min_seconds=0.1)
    # 7 of 12 steps of 4 ms are timed: 18 are lacking, 5 % more are 19
    assert [record.steps for record in paced(ALONE, config)] == [12, 19 + 5]
