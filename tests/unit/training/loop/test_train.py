"""The loop: the same trial in a used and in a fresh process, divergence, hooks, options, records."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
import torch

from scalestudy.experiments.analysis.answers.verdicts import STRAGGLER_RATIO
from scalestudy.training.config import OptimizerConfig, TrainConfig
from scalestudy.training.distributed import Worker
from scalestudy.training.loop.hooks import Hook
from scalestudy.training.loop.train import run_steps, train
from scalestudy.training.loop.trial import Trial, start_trial
from scalestudy.training.records import EpochRecord
from tests.support.gloo import GlooPool, gloo_pool
from tests.support.training.helpers import ALONE, make_config, outcome, run_training, same_bits, state_of

WORKLOADS = "tests.support.training.workloads"


LENET = {"model": "lenet", "model_args": {"init": "xavier"}, "data": "digits", "data_args": {}, "epochs": 2}


class _Stops(Hook):
    def train_starts(self, trial: Trial) -> None:
        trial.should_stop = lambda: trial.progress.tally.steps == 3


def stop_and_train(worker: Worker, stopped: TrainConfig, *configs: TrainConfig) -> dict[str, Any]:
    """The outcome of the last config, after a training that is stopped and all of the others."""
    train(stopped, worker, hooks=[_Stops()])
    return run_training(worker, *configs)


def test_a_used_process_trains_like_a_fresh_one(ranks: GlooPool) -> None:
    """To the bit, after another model, another optimizer, another strategy, dropout, a stopped and a diverged trial."""
    config = make_config(**LENET, batch_size=96, learning_rate=0.2, seed=3)
    before = [
        make_config(optimizer=OptimizerConfig(name="adamw"), learning_rate=0.001, gradient_sync="naive"),
        make_config(model=f"{WORKLOADS}:DropoutNet", model_args={}, seed=8),
        make_config(**(LENET | {"model_args": {"init": "normal"}}), batch_size=200, learning_rate=1e20),
    ]
    assert ranks.run(2, run_training, before[-1])[0]["status"] == "diverged"
    used = ranks.run(2, stop_and_train, make_config(gradient_sync="powersgd"), *before, config)
    with gloo_pool(2) as fresh_ranks:
        fresh = fresh_ranks.run(2, run_training, config)
    for one, other in zip(used, fresh, strict=True):
        assert one["curve"] == other["curve"]
        assert same_bits(one["state"], other["state"])


def test_training_again_gives_the_same_with_dropout() -> None:
    config = make_config(model=f"{WORKLOADS}:DropoutNet", model_args={})
    assert run_training(ALONE, config)["curve"] == run_training(ALONE, make_config(), config)["curve"]


class _GeneratorSeed(Hook):
    def train_starts(self, trial: Trial) -> None:
        self.seed = torch.initial_seed()


def seed_of_the_steps(worker: Worker, config: TrainConfig) -> int:
    """What this rank's generator is seeded with when the steps begin."""
    hook = _GeneratorSeed()
    train(config, worker, hooks=[hook])
    return hook.seed


def test_ranks_draw_different_numbers_in_their_steps(ranks: GlooPool) -> None:
    first, second = ranks.run(2, seed_of_the_steps, make_config())
    assert first != second
    assert ranks.run(2, seed_of_the_steps, make_config()) == [first, second]


def test_another_seed_gives_another_training() -> None:
    assert run_training(ALONE, make_config(seed=1))["curve"] != run_training(ALONE, make_config(seed=2))["curve"]


class LastUpdate(Hook):
    """Keeps the parameters after the latest update and how many there were."""

    def train_starts(self, trial: Trial) -> None:
        self.state, self.updates = state_of(trial.model), 0

    def step_ends(self, trial: Trial, step: int) -> None:
        self.state, self.updates = state_of(trial.model), self.updates + 1


def train_with_last_update(worker: Worker, config: TrainConfig) -> dict[str, Any]:
    """The outcome, and what the parameters were after the last update."""
    last = LastUpdate()
    result = train(config, worker, hooks=[last])
    return {**outcome(result), "last": last.state, "updates": last.updates}


@pytest.mark.parametrize("strategy", ["ddp", "naive"])
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
        trial.shard_loss.loss = lambda outputs, targets: outputs.sum(dim=1) + float("inf")
    first = state_of(trial.model)
    done = run_steps(trial)
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


class _BreaksInEpoch(Hook):
    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def epoch_ends(self, trial: Trial, record: EpochRecord) -> None:
        if record.epoch == self.epoch - 1:
            trial.parameters[0].data.fill_(float("nan"))


class _Diary(Hook):
    def __init__(self) -> None:
        self.points: list[str] = []

    def train_starts(self, trial: Trial) -> None:
        self.points.append("train_starts")

    def backward_ends(self, trial: Trial, step: int, micro_batch: int) -> None:
        self.points.append(f"backward_ends {step} {micro_batch}")

    def gradients_ready(self, trial: Trial, step: int) -> None:
        self.points.append(f"gradients_ready {step}")

    def step_ends(self, trial: Trial, step: int) -> None:
        self.points.append(f"step_ends {step}")

    def epoch_ends(self, trial: Trial, record: EpochRecord) -> None:
        self.points.append(f"epoch_ends {record.epoch}")

    def epoch_measured(self, trial: Trial) -> dict[str, float]:
        self.points.append("epoch_measured")
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


@pytest.mark.parametrize(
    ("config", "reference"),
    [
        (OptimizerConfig(momentum=0.9, weight_decay=0.01), lambda p: torch.optim.SGD(p, 0.05, 0.9, weight_decay=0.01)),
        (OptimizerConfig(name="adam", weight_decay=0.1), lambda p: torch.optim.Adam(p, 0.05, weight_decay=0.1)),
        (OptimizerConfig(name="adamw", weight_decay=0.1), lambda p: torch.optim.AdamW(p, 0.05, weight_decay=0.1)),
    ],
    ids=["sgd", "adam", "adamw"],
)
def test_optimizers_are_pytorchs(config: OptimizerConfig, reference: Any) -> None:
    """Ours, fused, against PyTorch's plain ones on the same three gradients."""
    from scalestudy.training.loop.trial import make_optimizer

    torch.manual_seed(0)
    ours = torch.nn.Parameter(torch.randn(7))
    theirs = torch.nn.Parameter(ours.detach().clone())
    optimizers = (make_optimizer(config, 0.05, [ours]), reference([theirs]))
    for gradient in torch.randn(3, 7):
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        for optimizer in optimizers:
            optimizer.step()
    assert (ours - theirs).abs().max() < 1e-6


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
    config = make_config(learning_rate=1e-12, batch_size=100)
    trial = start_trial(config, ALONE)
    with torch.no_grad():
        expected = sum(trial.shard_loss(*batch).item() for batch in trial.shards(epoch=1)) / 256
    assert train(config, ALONE).records[0].train_loss == pytest.approx(expected, rel=1e-6)


def phases_of_this_rank(worker: Worker, config: TrainConfig) -> dict[str, float]:
    """One epoch's phases as this rank measured them, per step."""
    trial = start_trial(config, worker)
    done = run_steps(trial)
    return {name: seconds / done.tally.steps for name, seconds in done.phases.items()}


@pytest.mark.parametrize("strategy", ["ddp", "naive"])
def test_waiting_for_a_slow_worker_is_exposed_synchronisation(ranks: GlooPool, strategy: str) -> None:
    """Rank 1 sleeps 20 ms in each forward: rank 0 waits for it, after its own last gradient."""
    config = make_config(model=f"{WORKLOADS}:SlowOnRankOne", model_args={}, gradient_sync=strategy)
    fast, slow = ranks.run(2, phases_of_this_rank, config)
    assert fast["gradient_sync"] > 0.012
    assert slow["forward_backward"] > 0.019
    assert 0 <= slow["gradient_sync"] < 0.012


def test_the_records_phases_are_those_of_the_slowest_rank_and_its_lag_is_told(ranks: GlooPool) -> None:
    config = make_config(model=f"{WORKLOADS}:SlowOnRankOne", model_args={})
    ((_, records), _) = ranks.run(2, train_and_listen, config)
    phases = records[0]["phases"]
    assert phases["forward_backward"] > phases["gradient_sync"]
    assert records[0]["straggler_ratio"] > STRAGGLER_RATIO


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 257}, "batch_size: 257 is more than the 256 training examples"),
        ({"shards": (0.5, 0.5)}, "not one weight for each of 1 workers"),
        ({"model": f"{WORKLOADS}:no_module", "model_args": {}}, "must return an nn.Module"),
        ({"model": f"{WORKLOADS}:parameterless", "model_args": {}}, "nothing to train"),
        ({"model_args": {"widths": [3]}}, "unexpected keyword argument 'widths'; it takes num_classes"),
        ({"model_args": {"init": "zeros"}}, "model_args.init: 'zeros' is not known"),
        ({"data_args": {"samples": 3}}, "unexpected keyword argument 'samples'"),
        (
            {"data": f"{WORKLOADS}:no_splits", "data_args": {}},
            "gave a int; return scalestudy.training.data.Splits",
        ),
        ({"model": "no.such:Model"}, "there is no module 'no'"),
        ({"model": "scalestudy.training.models:NoNet"}, "has no callable 'NoNet'"),
    ],
)
def test_what_does_not_fit_is_a_value_error(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        train(make_config(**changes), ALONE)


def test_a_users_exception_passes_and_the_next_trial_is_sound(ranks: GlooPool) -> None:
    broken = make_config(model=f"{WORKLOADS}:RaisingNet", model_args={})
    with pytest.raises(RuntimeError, match="the user's own mistake"):
        ranks.run(2, run_training, broken)
    assert ranks.run(2, run_training, make_config())[0]["status"] == "finished"


@pytest.mark.parametrize("strategy", ["ddp", "flat", "local_sgd"])
def test_a_layer_that_is_left_out_is_told_by_its_name(ranks: GlooPool, strategy: str) -> None:
    """On one worker too, where it would else train: the same study would fail at two."""
    config = make_config(model=f"{WORKLOADS}:unused_layer", model_args={}, gradient_sync=strategy)
    with pytest.raises(ValueError, match=r"unused.weight, unused.bias took no part .*; use them in forward, or set"):
        train(config, ALONE)
    with pytest.raises(RuntimeError, match=r"(?s)rank 0:.*took no part in the loss.*rank 1:.*took no part"):
        ranks.run(2, run_training, config)


def test_an_empty_parameter_does_no_harm(ranks: GlooPool) -> None:
    config = make_config(model=f"{WORKLOADS}:empty_parameter", model_args={})
    assert ranks.run(2, run_training, config)[0]["replica_max_diff"] == [0.0]


def test_a_worker_needs_its_process_group() -> None:
    with pytest.raises(ValueError, match="2 workers need a process group"):
        train(make_config(), Worker(0, 2, torch.device("cpu")))
