"""The loop: the same trial in a used and in a fresh process, divergence, hooks, records, its end, its evaluation."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import re
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from scalestudy.training.config import OptimizerConfig, ScheduleConfig, TrainConfig
from scalestudy.training.data.loading import EVALUATION_BATCH, open_data
from scalestudy.training.distributed import Worker
from scalestudy.training.gradient_sync.ddp import DistributedDataParallelSync
from scalestudy.training.gradient_sync.explicit import NaiveSync
from scalestudy.training.loop import measures
from scalestudy.training.loop.hooks import Hook
from scalestudy.training.loop.train import run_steps, train
from scalestudy.training.loop.trial import Trial, start_trial
from scalestudy.training.pulse import Pulse
from scalestudy.training.records import EpochRecord
from scalestudy.training.registry import GRADIENT_SYNCS
from scalestudy.training.seeding import epoch_order
from tests.support.gloo import GlooPool, gloo_pool
from tests.support.training.helpers import (
    ALONE,
    EachStep,
    examples_task,
    make_config,
    outcome,
    run_training,
    same_bits,
    state_of,
)
from tests.unit.training.loop.clock import Clock

HERE = "tests.unit.training.loop.test_train"
WORKLOADS = "tests.support.training.workloads"
LENET = {"model": "lenet", "model_args": {"init": "xavier"}, "data": "digits", "data_args": {}, "epochs": 2}


class DropoutNet(nn.Sequential):
    """Draws random numbers in every step."""

    def __init__(self, num_classes: int, in_channels: int) -> None:
        super().__init__(nn.Flatten(), nn.Linear(784 * in_channels, 16), nn.Dropout(), nn.Linear(16, num_classes))


class _Stops(Hook):
    def train_starts(self, trial: Trial) -> None:
        trial.should_stop = lambda: trial.progress.tally.steps == 3


def stop_and_train(worker: Worker, stopped: TrainConfig, *configs: TrainConfig) -> dict[str, Any]:
    """The outcome of the last config, after a training that is stopped and all of the others."""
    train(stopped, worker, hooks=[_Stops()])
    return run_training(worker, *configs)


@pytest.mark.slow
def test_a_used_process_trains_like_a_fresh_one() -> None:
    """To the bit, after another model, another optimizer, another strategy, dropout, a stopped and a diverged trial."""
    config = make_config(**LENET, batch_size=96, learning_rate=0.2, seed=3)
    before = [
        make_config(optimizer=OptimizerConfig(name="adamw"), learning_rate=0.001, gradient_sync="naive"),
        make_config(model=f"{HERE}:DropoutNet", model_args={}, seed=8),
        make_config(**(LENET | {"model_args": {"init": "normal"}}), batch_size=200, learning_rate=1e20),
    ]
    with gloo_pool(2) as ranks:
        fresh = ranks.run(2, run_training, config)
        assert ranks.run(2, run_training, before[-1])[0]["status"] == "diverged"
        used = ranks.run(2, stop_and_train, make_config(gradient_sync="powersgd"), *before, config)
    for one, other in zip(used, fresh, strict=True):
        assert one["curve"] == other["curve"]
        assert same_bits(one["state"], other["state"])


def test_training_again_gives_the_same_with_dropout() -> None:
    config = make_config(model=f"{HERE}:DropoutNet", model_args={})
    assert run_training(ALONE, config)["curve"] == run_training(ALONE, make_config(), config)["curve"]


def seed_of_the_steps(worker: Worker, config: TrainConfig) -> int:
    """What this rank's generator was seeded with before the steps."""
    seeds = EachStep(lambda trial: torch.initial_seed())
    train(config, worker, hooks=[seeds])
    return seeds.seen[-1]


def test_ranks_draw_different_numbers_in_their_steps(ranks: GlooPool) -> None:
    first, second = ranks.run(2, seed_of_the_steps, make_config())
    assert first != second
    assert ranks.run(2, seed_of_the_steps, make_config()) == [first, second]


class LastUpdate(Hook):
    """Keeps the parameters after the latest step that changed them, and how many such steps there were."""

    def train_starts(self, trial: Trial) -> None:
        self.state, self.updates = state_of(trial.model), 0

    def step_ends(self, trial: Trial, step: int) -> None:
        state = state_of(trial.model)
        self.updates += not same_bits(state, self.state)
        self.state = state


def train_with_last_update(worker: Worker, config: TrainConfig) -> dict[str, Any]:
    """The outcome, and what the parameters were after the last update."""
    last = LastUpdate()
    result = train(config, worker, hooks=[last])
    return {**outcome(result), "last": last.state, "updates": last.updates}


@pytest.mark.parametrize("strategy", [each for each in sorted(GRADIENT_SYNCS) if each != "local_sgd"])
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_a_nan_on_one_rank_stops_all_before_the_update(ranks: GlooPool, world_size: int, strategy: str) -> None:
    config = make_config(
        data=f"{WORKLOADS}:splits_with_a_nan",
        data_args={"position": 77},
        gradient_sync=strategy,
        epochs=2,
    )
    results = ranks.run(world_size, train_with_last_update, config)
    for result in results:
        assert result["status"] == "diverged"
        assert result["curve"] == []
        assert result["message"] == results[0]["message"]
        assert same_bits(result["state"], result["last"])
        assert same_bits(result["state"], results[0]["state"])
        assert all((abs(values) < 1e3).all() for values in result["state"].values())
        assert result["message"].startswith("loss or gradient is not finite in epoch 1")
        assert f"step {result['updates'] + 1} of 8" in result["message"]


def run_with_infinite_loss_on_rank_one(worker: Worker) -> tuple[bool, int, bool]:
    """Rank 1's loss is infinite though its gradients would be finite: (diverged, updates, parameters unchanged)."""
    trial = start_trial(make_config(), worker)
    if worker.rank == 1:
        trial.shard_loss.task = examples_task(lambda outputs, targets: outputs.sum(dim=1) + float("inf"))
    first = state_of(trial.model)
    done = run_steps(trial, trial.shards())
    return done.tally.diverged, done.tally.steps, same_bits(first, state_of(trial.model))


def test_an_infinite_loss_with_finite_gradients_stops_all_ranks(ranks: GlooPool) -> None:
    assert ranks.run(2, run_with_infinite_loss_on_rank_one) == [(True, 0, True)] * 2


def test_a_huge_but_finite_loss_is_finished() -> None:
    result = train(make_config(learning_rate=1e4, epochs=2), ALONE)
    assert result.status == "finished"
    assert result.records[-1].train_loss > 100


def test_epochs_before_the_divergence_are_kept() -> None:
    config = make_config(epochs=4, learning_rate=1e-3)
    result = train(config, ALONE, hooks=[_BreaksInEpoch(3)])
    assert result.status == "diverged"
    assert [record.epoch for record in result.records] == [1, 2]
    assert "epoch 3, step 1 of 8" in result.message
    assert result.train_seconds > sum(record.train_seconds for record in result.records)


class _EndsAfterEpoch(Hook):
    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def epoch_ends(self, trial: Trial, record: EpochRecord) -> None:
        trial.complete = record.epoch == self.epoch


def test_a_training_that_a_hook_ends_is_the_beginning_of_the_whole_one() -> None:
    config = make_config(epochs=4, schedule="cosine")
    whole, cut = train(config, ALONE), train(config, ALONE, hooks=[_EndsAfterEpoch(2)])
    assert (cut.status, cut.message, len(whole.records)) == ("finished", None, 4)
    facts = [(record.train_loss, record.test_metric, record.learning_rate) for record in whole.records]
    assert [(record.train_loss, record.test_metric, record.learning_rate) for record in cut.records] == facts[:2]


def test_a_scheduler_of_pytorchs_trains_as_in_a_loop_by_hand() -> None:
    """Adadelta at 1.0, and a rate that falls by 0.7 after each epoch, as PyTorch's example for MNIST has them."""
    falling = ScheduleConfig(name="StepLR", args={"step_size": 1, "gamma": 0.7}, per="epoch")
    config = make_config(
        epochs=3, learning_rate=1.0, optimizer=OptimizerConfig(name="torch.optim:Adadelta"), schedule=falling
    )
    ours = train(config, ALONE)

    data, model = open_data(config, ALONE), start_trial(config, ALONE).model
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    bounds = [(start, start + 32) for start in range(0, 256, 32)]
    for epoch in (1, 2, 3):
        for inputs, targets in data.shards(epoch_order(256, config.seed, epoch), bounds, epoch):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
        scheduler.step()
    assert [record.learning_rate for record in ours.records] == pytest.approx([1.0, 0.7, 0.49])
    pairs = zip(ours.model.parameters(), model.parameters(), strict=True)
    assert max((one - other).abs().max().item() for one, other in pairs) < 1e-5
    assert (
        min(
            (one - other).abs().max().item()
            for one, other in zip(ours.model.parameters(), start_trial(config, ALONE).model.parameters(), strict=True)
        )
        > 1e-3
    ), "every tensor has moved"


class _BreaksInEpoch(Hook):
    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def epoch_ends(self, trial: Trial, record: EpochRecord) -> None:
        if record.epoch == self.epoch - 1:
            trial.parameters[0].data.fill_(float("nan"))


class _Diary(Hook):
    """Notes each point of the loop, and what the pulse says there."""

    def __init__(self) -> None:
        self.points: list[str] = []
        self.told: list[tuple[str, str, int]] = []

    def _note(self, trial: Trial, point: str, *numbers: int) -> None:
        self.points.append(" ".join([point, *map(str, numbers)]))
        self.told.append((point, trial.pulse.stage.activity, trial.pulse.stage.count))

    def train_starts(self, trial: Trial) -> None:
        self._note(trial, "train_starts")

    def backward_ends(self, trial: Trial, step: int, micro_batch: int) -> None:
        self._note(trial, "backward_ends", step, micro_batch)

    def gradients_ready(self, trial: Trial, step: int) -> None:
        self._note(trial, "gradients_ready", step)

    def step_ends(self, trial: Trial, step: int) -> None:
        self._note(trial, "step_ends", step)

    def epoch_ends(self, trial: Trial, record: EpochRecord) -> None:
        self._note(trial, "epoch_ends", record.epoch)

    def epoch_measured(self, trial: Trial) -> dict[str, float]:
        self._note(trial, "epoch_measured")
        return {"grad_sq_norm": 4.5}


def test_hooks_are_called_in_order() -> None:
    diary = _Diary()
    result = train(make_config(batch_size=128, epochs=2, accumulation=2), ALONE, hooks=[diary, Hook()])
    steps = [
        point
        for step in (0, 1)
        for point in (
            f"backward_ends {step} 0",
            f"backward_ends {step} 1",
            f"gradients_ready {step}",
            f"step_ends {step}",
        )
    ]
    epochs = [[*steps, "epoch_measured", f"epoch_ends {epoch}"] for epoch in (1, 2)]
    assert diary.points == ["train_starts", *epochs[0], *epochs[1]]
    assert [record.grad_sq_norm for record in result.records] == [4.5, 4.5]


class _Norms(Hook):
    def __init__(self) -> None:
        self.before: list[float] = []
        self.after: list[float] = []

    def gradients_ready(self, trial: Trial, step: int) -> None:
        self.before.append(torch.nn.utils.get_total_norm([p.grad for p in trial.parameters]).item())

    def step_ends(self, trial: Trial, step: int) -> None:
        self.after.append(torch.nn.utils.get_total_norm([p.grad for p in trial.parameters]).item())


def test_the_gradient_is_clipped_between_check_and_update() -> None:
    norms = _Norms()
    train(make_config(gradient_clip=0.01), ALONE, hooks=[norms])
    assert min(norms.before) > 0.01
    assert norms.after == pytest.approx([0.01] * 8, rel=1e-3)


def test_records_of_one_worker_are_complete() -> None:
    seen: list[EpochRecord] = []
    result = train(make_config(epochs=2, batch_size=48), ALONE, on_epoch=seen.append)
    assert seen == result.records
    assert [(record.epoch, record.steps, record.samples) for record in seen] == [(1, 6, 256), (2, 6, 256)]
    plain = json.loads(json.dumps(seen[1].to_dict(), allow_nan=False))
    assert plain["samples_per_second"] > 0
    assert seen[0].samples_per_second is None  # 6 steps less 5 of warm-up leave 1
    assert sum(plain["phases"].values()) == pytest.approx(plain["train_seconds"])
    assert min(plain["phases"].values()) >= 0
    assert plain["peak_memory_bytes"] > 1e7
    assert result.train_seconds == pytest.approx(sum(record.train_seconds for record in seen))


def train_and_listen(worker: Worker, config: TrainConfig) -> tuple[list[int], list[dict[str, Any]]]:
    """The epochs that on_epoch saw, and the result's records."""
    seen: list[int] = []
    result = train(config, worker, on_epoch=lambda record: seen.append(record.epoch))
    return seen, [dataclasses.replace(record, at="").to_dict() for record in result.records]


def test_only_rank_zero_reports_and_all_hold_the_same_records(ranks: GlooPool) -> None:
    (first, records), (second, others) = ranks.run(2, train_and_listen, make_config(epochs=2, batch_size=50))
    assert (first, second) == ([1, 2], [])
    assert records == others
    assert [(record["steps"], record["samples"]) for record in records] == [(6, 256)] * 2


def test_train_loss_is_exact_over_the_examples() -> None:
    """With a vanishing rate the epoch's loss is the mean over all examples, the smaller last batch not overweighted."""
    config = make_config(learning_rate=1e-12, batch_size=100, epochs=1)
    trial = start_trial(config, ALONE)
    with torch.no_grad():
        expected = sum(trial.shard_loss(batch)[0].item() for batch in trial.shards()) / 256
    assert train(config, ALONE).records[0].train_loss == pytest.approx(expected, rel=1e-6)


CLOCK = Clock()  # of this process: a rank has its own


class LateOnRankOne(nn.Linear):
    """A forward of 1 ms, and of 21 ms on rank 1."""

    def __init__(self, num_classes: int, in_channels: int) -> None:
        super().__init__(784 * in_channels, num_classes)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        CLOCK.now += 0.021 if dist.get_rank() == 1 else 0.001
        return super().forward(inputs.flatten(1))


def wait_for_rank_one(worker: Worker) -> None:
    CLOCK.now += 0.02 if worker.rank == 0 else 0.0


class WaitingInBackward(DistributedDataParallelSync):
    """Rank 0 waits while backward runs, after its own last gradient."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.ddp.register_comm_hook(None, lambda state, bucket: self._sum(bucket))

    def _sum(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        wait_for_rank_one(self.worker)
        mean = bucket.buffer().div_(self.worker.world_size)
        dist.all_reduce(mean)
        summed: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        summed.set_result(mean)
        return summed


class WaitingAfterBackward(NaiveSync):
    """Rank 0 waits in the explicit sum."""

    def synchronise(self) -> None:
        wait_for_rank_one(self.worker)
        super().synchronise()


def phases_of_this_rank(worker: Worker, config: TrainConfig) -> dict[str, float]:
    """One epoch's phases as this rank measured them by its clock, in milliseconds per step."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measures, "time", CLOCK)
        trial = start_trial(config, worker)
        done = run_steps(trial, trial.shards())
    return {name: 1e3 * seconds / done.tally.steps for name, seconds in done.phases.items()}


@pytest.mark.parametrize("strategy", ["WaitingInBackward", "WaitingAfterBackward"])
def test_waiting_for_a_slow_worker_is_exposed_synchronisation(ranks: GlooPool, strategy: str) -> None:
    config = make_config(model=f"{HERE}:LateOnRankOne", model_args={}, gradient_sync=f"{HERE}:{strategy}")
    fast, slow = ranks.run(2, phases_of_this_rank, config)
    assert fast == pytest.approx({"data": 0, "forward_backward": 1, "gradient_sync": 20, "optimizer": 0})
    assert slow == pytest.approx({"data": 0, "forward_backward": 21, "gradient_sync": 0, "optimizer": 0})


def test_a_users_exception_passes_and_the_next_trial_is_sound(ranks: GlooPool) -> None:
    broken = make_config(model=f"{WORKLOADS}:RaisingNet", model_args={})
    with pytest.raises(RuntimeError, match="the user's own mistake"):
        ranks.run(2, run_training, broken)
    assert ranks.run(2, run_training, make_config())[0]["status"] == "finished"


def unused_layer(num_classes: int, in_channels: int) -> nn.Module:
    """A layer that forward leaves out."""

    class Net(nn.Sequential):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.used(inputs.flatten(1))

    model = Net()
    model.used = nn.Linear(784 * in_channels, num_classes)
    model.unused = nn.Linear(3, 2)
    return model


@pytest.mark.parametrize("strategy", ["ddp", "flat", "local_sgd"])
def test_a_layer_that_is_left_out_is_told_by_its_name(ranks: GlooPool, strategy: str) -> None:
    """On one worker too, where it would else train: the same study would fail at two."""
    config = make_config(model=f"{HERE}:unused_layer", model_args={}, gradient_sync=strategy)
    with pytest.raises(ValueError, match=r"unused.weight, unused.bias took no part .*; use them .* or say"):
        train(config, ALONE)
    with pytest.raises(RuntimeError, match=r"(?s)rank 0:.*took no part in the loss.*rank 1:.*took no part"):
        ranks.run(2, run_training, config)


def empty_parameter(num_classes: int, in_channels: int) -> nn.Module:
    """A parameter without any number, which takes part all the same."""

    class Net(nn.Linear):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return super().forward(inputs.flatten(1)) + self.empty.sum()

    model = Net(784 * in_channels, num_classes)
    model.empty = nn.Parameter(torch.zeros(0, 5))
    return model


def test_an_empty_parameter_does_no_harm(ranks: GlooPool) -> None:
    config = make_config(model=f"{HERE}:empty_parameter", model_args={})
    assert ranks.run(2, run_training, config)[0]["replica_max_diff"] == [0.0]


def test_a_worker_needs_its_process_group() -> None:
    with pytest.raises(ValueError, match="2 workers need a process group"):
        train(make_config(), Worker(0, 2, torch.device("cpu")))


# --- a training of `max_steps`: it ends after so many steps and is never evaluated ------------------------------------


EIGHT_STEPS = {"epochs": 5}  # 256 examples in batches of 32


def records_of(worker: Worker, config: TrainConfig) -> list[dict[str, Any]]:
    return [record.to_dict() for record in train(config, worker).records]


def test_it_ends_within_an_epoch_and_is_not_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("evaluated")

    monkeypatch.setattr("scalestudy.training.loop.train.evaluate", refuse)
    result = train(make_config(**EIGHT_STEPS, warm_up_steps=3, max_steps=19), ALONE)
    records = [json.loads(json.dumps(record.to_dict(), allow_nan=False)) for record in result.records]
    assert result.status == "finished"
    assert [(record["steps"], record["samples"]) for record in records] == [(8, 256), (8, 256), (3, 96)]
    for record in records:
        assert (record["test_accuracy"], record["test_loss"], record["eval_seconds"]) == (None, None, None)
        assert record["train_loss"] > 0
        assert record["samples_per_second"] > 0
    assert math.isnan(result.records[-1].test_metric)


def test_its_epochs_end_it_too() -> None:
    assert [record["steps"] for record in records_of(ALONE, make_config(epochs=1, max_steps=100))] == [8]


def test_its_rate_leaves_the_warm_up_out() -> None:
    """samples_per_second is null where fewer than five steps are left after the warm-up."""
    assert [record["samples_per_second"] is None for record in records_of(ALONE, make_config(max_steps=7))] == [True]
    assert records_of(ALONE, make_config(warm_up_steps=2, max_steps=7))[0]["samples_per_second"] > 0


def test_its_steps_are_those_of_a_whole_training() -> None:
    """To the bit: 16 of 16 steps, with and without an evaluation between the epochs."""
    whole = run_training(ALONE, make_config(epochs=2))
    cut = train(make_config(epochs=5, max_steps=16), ALONE)
    assert same_bits(state_of(cut.model), whole["state"])
    assert [record.train_loss for record in cut.records] == [loss for loss, *_ in whole["curve"]]


@pytest.mark.parametrize("gradient_sync", ["ddp", "powersgd", "local_sgd"])
def test_its_replicas_are_equal_at_the_end(ranks: GlooPool, gradient_sync: str) -> None:
    """Also where it ends between two averages of local SGD (8 and 10 steps)."""
    config = make_config(**EIGHT_STEPS, max_steps=10, gradient_sync=gradient_sync)
    for records in ranks.run(2, records_of, config):
        assert [record["steps"] for record in records] == [8, 2]
        assert [record["replica_max_diff"] for record in records] == [0.0, 0.0]


# --- one rank is asked to stop: all ranks end in the same step, without another update --------------------------------


class StopsAfter(LastUpdate):
    """Asks for the end, on one rank, once so many steps of the training are made."""

    def __init__(self, steps: int, on_rank: int) -> None:
        self.steps, self.on_rank = steps, on_rank

    def train_starts(self, trial: Trial) -> None:
        super().train_starts(trial)
        if trial.worker.rank == self.on_rank:
            trial.should_stop = lambda: self.updates >= self.steps


def stopped(worker: Worker, config: TrainConfig, steps: int, on_rank: int) -> dict[str, Any]:
    """How it ended; the steps that were made; whether the parameters are those of the last update."""
    hook = StopsAfter(steps, on_rank)
    result = outcome(train(config, worker, hooks=[hook]))
    return {**result, "made": hook.updates, "untouched": same_bits(result["state"], hook.state)}


IDLE = {"shards": (0, 1)}  # the rank that asks has no examples
BATCH_NORM = {"model": f"{WORKLOADS}:DoubleBatchNormNet", "model_args": {}, "sync_batch_norm": True}


@pytest.mark.parametrize(
    ("world_size", "changes", "steps", "on_rank"),
    [
        (2, {"gradient_sync": "ddp"}, 0, 0),
        (2, {"gradient_sync": "ddp"}, 11, 0),
        (2, {"gradient_sync": "ddp"}, 16, 1),
        (2, {"gradient_sync": "naive"}, 0, 1),
        (2, {"gradient_sync": "flat"}, 11, 0),
        (2, {"gradient_sync": "ring"}, 16, 1),
        (2, {"gradient_sync": "bf16"}, 11, 1),
        (2, {"gradient_sync": "powersgd"}, 0, 0),
        (2, {"gradient_sync": "powersgd"}, 11, 0),
        *((2, {"gradient_sync": name, **IDLE}, 5, 0) for name in sorted(GRADIENT_SYNCS) if name != "local_sgd"),
        (2, {**BATCH_NORM, **IDLE}, 5, 0),
        (1, {"accumulation": 1}, 5, 0),
        (1, {"accumulation": 3}, 5, 0),
    ],
)
def test_all_ranks_stop_in_the_step_in_which_one_asks(
    ranks: GlooPool, world_size: int, changes: dict[str, Any], steps: int, on_rank: int
) -> None:
    """The asker says "stopped", the others only know that NaN came; nobody has made another update."""
    results = ranks.run(world_size, stopped, make_config(**changes, epochs=4), steps, on_rank)
    for rank, result in enumerate(results):
        assert result["status"] == ("stopped" if rank == on_rank else "diverged")
        assert (result["message"] is None) == (rank == on_rank)
        assert result["made"] == steps
        assert result["untouched"]
        assert len(result["curve"]) == steps // 8  # of 8 steps an epoch


@pytest.mark.parametrize(("asked", "told"), [(0, 2), (2, 2), (3, 5), (7, 7), (8, 10)])
def test_local_sgd_stops_at_the_next_average(ranks: GlooPool, asked: int, told: int) -> None:
    """Averages end steps 3, 6 and 8 of an epoch. The step that would be the third makes no update any more, and its
    average is the last change."""
    config = make_config(gradient_sync="local_sgd", local_steps=3, epochs=2)
    asker, other = ranks.run(2, stopped, config, asked, 0)
    assert (asker["status"], other["status"]) == ("stopped", "diverged")
    assert other["message"].endswith(f"epoch {asked // 8 + 1}, step {asked % 8 + 1} of 8")
    assert (asker["made"], other["made"]) == (asked + 1, told + 1)
    assert len(asker["curve"]) == asked // 8
    assert same_bits(asker["state"], other["state"])


def test_a_stop_that_comes_too_late_changes_nothing(ranks: GlooPool) -> None:
    config = make_config(epochs=2)
    for result in ranks.run(2, stopped, config, 16, 0):
        assert (result["status"], result["made"]) == ("finished", 16)


# --- dropout and batch normalisation act in the steps, and not in the evaluation --------------------------------------


def test_the_recorded_loss_is_that_of_the_model_in_evaluation_mode() -> None:
    config = make_config(model_args={"hidden": [16], "dropout": 0.5, "batch_norm": True}, epochs=2)
    result = train(config, ALONE)
    data = open_data(config, ALONE)
    ((inputs, targets),) = data.test_batches(0, data.test_samples)

    def loss(model: nn.Module) -> float:
        with torch.no_grad():
            return nn.functional.cross_entropy(model(inputs), targets).item()

    in_training = loss(copy.deepcopy(result.model).train())
    assert abs(loss(result.model.eval()) - result.records[-1].test_loss) < 1e-6
    assert abs(in_training - result.records[-1].test_loss) > 1e-3


# --- what it says of itself to another thread -----------------------------------------------------------------------


def told_of(**changes: Any) -> list[tuple[str, str, int]]:
    diary = _Diary()
    train(make_config(batch_size=128, epochs=2, **changes), ALONE, hooks=[diary], pulse=Pulse())
    return [told for told in diary.told if told[0] in ("train_starts", "backward_ends", "step_ends", "epoch_ends")]


def test_it_counts_steps_and_evaluated_batches() -> None:
    tests = {"train_samples": 256, "test_samples": 2 * EVALUATION_BATCH + 1}
    steps = [(point, "training", step) for step in (0, 1) for point in ("backward_ends", "step_ends")]
    epoch = [*steps, ("epoch_ends", "evaluating", 3)]
    assert told_of(data_args=tests) == [("train_starts", "loading", 0), *epoch, *epoch]


def test_a_compiled_model_compiles_in_the_first_step_of_each_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    """256 + 44 examples: batches of 128, 128 and 44."""
    monkeypatch.setattr("scalestudy.training.loop.trial.compile_model", lambda model, mode: None)
    tests = {"train_samples": 300, "test_samples": 64}
    first, *steps = told_of(data_args=tests, compile=True)
    assert first == ("train_starts", "loading", 0)
    activities = [activity for point, activity, _ in steps if point == "backward_ends"]
    assert activities == ["compiling", "training", "compiling", "training", "training", "training"]


class _SlowToCompile(Hook):
    """Steps of 1 ms by the clock, and of a second where they compile."""

    def backward_ends(self, trial: Trial, step: int, micro_batch: int) -> None:
        CLOCK.now += 1.0 if trial.pulse.stage.activity == "compiling" else 0.001


def test_the_compilation_for_a_smaller_last_batch_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """19 batches of 16 but for the last, 12; the first five are warm-up. Phases of the last are not told either."""
    monkeypatch.setattr("scalestudy.training.loop.trial.compile_model", lambda model, mode: None)
    monkeypatch.setattr(measures, "time", CLOCK)
    monkeypatch.setattr(measures, "is_sampled", lambda step, steps: step == steps - 1)
    config = make_config(epochs=1, data_args={"train_samples": 300, "test_samples": 64}, batch_size=16, compile=True)
    record = train(config, ALONE, hooks=[_SlowToCompile()]).records[0]
    assert record.samples_per_second == pytest.approx(16 * 13 / 0.013)
    assert record.train_seconds == pytest.approx(2.017), "two compilations"
    assert set(record.phases.values()) == {0.0}


# --- how long, and when it is evaluated -------------------------------------------------------------------------------


def test_a_training_of_as_many_steps_is_that_of_epochs(ranks: GlooPool) -> None:
    epochs = make_config(epochs=3, batch_size=50, schedule="cosine", lr_rule="linear", warmup_steps=4)  # 6 steps each
    by_epochs = ranks.run(2, run_training, epochs)
    steps = epochs.replace(epochs=None, steps=18, eval_every={"steps": 6})
    by_steps = ranks.run(2, run_training, steps)
    often = ranks.run(2, run_training, steps.replace(eval_every={"steps": 4}))
    for one, other, third in zip(by_epochs, by_steps, often, strict=True):
        assert same_bits(one["state"], other["state"])
        assert same_bits(one["state"], third["state"]), "evaluations do not change what is learnt"


def test_records_are_of_the_steps_since_the_last_evaluation() -> None:
    """256 examples in batches of 50: the sixth step of an epoch has 6."""
    records = train(make_config(epochs=None, steps=15, eval_every={"steps": 4}, batch_size=50), ALONE).records
    assert [record.epoch for record in records] == [1, 2, 3, 4]
    assert [record.steps for record in records] == [4, 4, 4, 3]
    assert [record.samples for record in records] == [200, 156, 156, 150]
    rare = train(make_config(epochs=5, eval_every={"epochs": 2}, batch_size=50), ALONE).records
    assert [(record.epoch, record.steps, record.samples) for record in rare] == [
        (1, 12, 512),
        (2, 12, 512),
        (3, 6, 256),
    ]


def test_a_divergence_is_told_by_its_place_in_the_data() -> None:
    result = train(make_config(learning_rate=1e30, epochs=None, steps=30, eval_every={"steps": 3}), ALONE)
    assert result.status == "diverged"
    assert re.search(r"in epoch \d, step \d of 8", str(result.message))
