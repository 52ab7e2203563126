"""Checkpoints: a training that was killed, or left, and resumed is to the bit the one that was never killed."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from scalestudy.training.checkpoint.byte_store import LocalByteStore
from scalestudy.training.checkpoint.hook import FREE_TO_CHANGE, Checkpoints, Preemption
from scalestudy.training.config import LoaderConfig, OptimizerConfig, ScheduleConfig, TrainConfig
from scalestudy.training.distributed import Worker
from scalestudy.training.loop.hooks import Hook
from scalestudy.training.loop.train import train
from scalestudy.training.loop.trial import Trial
from scalestudy.training.pulse import Pulse
from scalestudy.training.registry import GRADIENT_SYNCS
from tests.support.gloo import GlooPool
from tests.support.training.helpers import (
    ALONE,
    largest_difference,
    make_config,
    outcome,
    run_training,
    same_bits,
    smallest_movement,
)
from tests.support.training.strangers import HERE as STRANGERS
from tests.support.training.streams import Counting
from tests.support.training.tasks import counted_config, stream_config, task_config

WORKLOADS = "tests.support.training.workloads"
STEPS = 4  # an epoch
EPOCHS = 3
LENET = {"model": "lenet", "model_args": {}}
DROPOUT = {"model_args": {"hidden": [16], "dropout": 0.5}}
BATCH_NORM = {"model": f"{WORKLOADS}:BatchNormNet", "model_args": {}}
GROWING = {"model": f"{STRANGERS}:GrowingTable", "model_args": {}}
MOMENTUM = {"optimizer": OptimizerConfig(momentum=0.9, weight_decay=1e-3)}


def config_of(**changes: Any) -> TrainConfig:
    """Three epochs of four steps, the last smaller, after which everything has moved."""
    values: dict[str, Any] = {
        "batch_size": 16,
        "epochs": EPOCHS,
        "learning_rate": 0.1,
        "data_args": {"train_samples": 3 * 16 + 10, "test_samples": 16},
    }
    return make_config(**(values | changes))


def double_config() -> TrainConfig:
    """Three epochs of four steps too, in float64."""
    return task_config("examples", epochs=EPOCHS, **MOMENTUM)


class KilledError(Exception):
    """Stands for SIGKILL, which the pool's processes would not survive; tests/long sends a real one."""


class KillAfter(Hook):
    """Ends the training after so many steps in all."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def step_ends(self, trial: Trial, step: int) -> None:
        self.left -= 1
        if not self.left:
            raise KilledError


def checkpointed(
    worker: Worker, config: TrainConfig, folder: str, every_steps: int, *hooks: Hook, preemptible: bool = False
) -> dict[str, Any]:
    """The outcome of a training that writes checkpoints, and goes on from what it finds, with what it said."""
    said: list[str] = []
    store = LocalByteStore(folder)
    checkpoints = Checkpoints(store, every_steps=every_steps, preemptible=preemptible, say=said.append)
    choices = checkpoints.find(config, worker)
    seen: list[int] = []
    all_hooks = [checkpoints, *hooks]
    result = train(config, worker, hooks=all_hooks, choices=choices, on_epoch=lambda r: seen.append(r.epoch))
    return {**outcome(result), "resumed": checkpoints.resumed, "said": said, "seen": seen}


def killed(
    worker: Worker, config: TrainConfig, folder: str, kill_after: int, every_steps: int = 0, *hooks: Hook
) -> None:
    """A training that ends so."""
    with pytest.raises(KilledError):
        checkpointed(worker, config, folder, every_steps, *hooks, KillAfter(kill_after))


def killed_and_resumed(worker: Worker, config: TrainConfig, folder: str, kill_after: int, every_steps: int = 0) -> Any:
    """The outcome after a kill and a resume in the same process."""
    killed(worker, config, folder, kill_after, every_steps)
    return checkpointed(worker, config, folder, every_steps)


def never_killed(worker: Worker, config: TrainConfig) -> dict[str, Any]:
    """The outcome without checkpoints."""
    return outcome(train(config, worker))


def check_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Equal to the bit in everything that a training computes."""
    assert one["curve"] == other["curve"]
    assert one["tokens"] == other["tokens"]
    assert same_bits(one["state"], other["state"])
    assert one["status"] == other["status"]


BY_EPOCHS: dict[str, tuple[int, dict[str, Any]]] = {
    "lenet on one worker": (1, {**LENET, **MOMENTUM}),
    "ddp on four": (4, {}),
    "ring on four": (4, {"gradient_sync": "ring"}),
    "dropout by ddp on two": (2, {**DROPOUT, "optimizer": OptimizerConfig(name="adam"), "learning_rate": 1e-3}),
    "batch normalisation on two": (2, BATCH_NORM),
    "synchronised batch normalisation on two": (2, {**BATCH_NORM, "sync_batch_norm": True}),
    "powersgd on four, with momentum": (4, {**MOMENTUM, "gradient_sync": "powersgd"}),
    "local sgd with momentum on two": (2, {**MOMENTUM, "gradient_sync": "local_sgd", "local_steps": 2}),
    "adascale on two": (2, {"lr_rule": "adascale", "base_batch_size": 4, "schedule": "cosine"}),
    "adascale on one": (1, {"lr_rule": "adascale", "base_batch_size": 4}),
    "warm-up and one cycle, accumulated, augmented": (
        2,
        {
            "lr_rule": "linear",
            "base_batch_size": 8,
            "warmup_epochs": 1.5,
            "schedule": "cosine",
            "accumulation": 3,
            "augment": "crop_flip",
        },
    ),
    "a table that grows, on one": (1, {**GROWING, "batch_size": 17}),
    "a table that grows, of another length on each": (2, {**GROWING, "batch_size": 17}),
    "a table in the state_dict that grows": (
        2,
        {"model": GROWING["model"], "model_args": {"persistent": True}, "batch_size": 17, "gradient_sync": "flat"},
    ),
    "a buffer that comes with the first batch": (
        2,
        {"model": f"{STRANGERS}:LateBuffer", "model_args": {}, "batch_size": 17},
    ),
    "a buffer of another dtype on each": (2, {"model": f"{STRANGERS}:WiderBuffer", "model_args": {}, "batch_size": 17}),
    "a sparse buffer, averaged locally": (
        2,
        {"model": f"{STRANGERS}:SparseAdjacency", "model_args": {}, "gradient_sync": "local_sgd", "local_steps": 2},
    ),
    "extra state": (2, {"model": f"{STRANGERS}:WithState", "model_args": {}}),
    "a scheduler of PyTorch's, and a warm-up by share": (
        2,
        {"warmup_share": 0.2, "schedule": ScheduleConfig(name="ExponentialLR", args={"gamma": 0.9})},
    ),
    "a scheduler of PyTorch's by epochs": (
        1,
        {"schedule": ScheduleConfig(name="StepLR", args={"step_size": 1, "gamma": 0.5}, per="epoch")},
    ),
    "uneven shards, one empty": (4, {"shards": (2.0, 0.0, 1.0, 1.0), "schedule": "one_cycle"}),
}
FIRST_OR_LAST = itertools.cycle([STEPS + 1, 2 * STEPS + 2])  # into the second epoch, or the middle of the last one
BETWEEN = [
    ("ddp", STEPS + 2),
    ("powersgd", STEPS + 2),
    ("powersgd", 2 * STEPS + 3),
    ("local_sgd", STEPS - 1),
    ("local_sgd", 2 * STEPS + 3),
]
TRAININGS: dict[str, tuple[int, TrainConfig, int, int]] = {  # world size, config, killed after, a checkpoint every
    **{
        name: (world_size, config_of(**changes), kill_after, 0)
        for (name, (world_size, changes)), kill_after in zip(BY_EPOCHS.items(), FIRST_OR_LAST, strict=False)
    },
    # in the middle of epochs; local SGD has checkpoints only where it has just averaged
    **{
        f"{strategy}, {kill_after} steps": (
            2,
            config_of(**MOMENTUM, gradient_sync=strategy, local_steps=2, powersgd_rank=1),
            kill_after,
            2,
        )
        for strategy, kill_after in BETWEEN
    },
    # ragged texts, whose weights differ between workers and steps
    **{
        f"texts by {strategy}": (
            2,
            task_config("tagger", epochs=3, gradient_sync=strategy, local_steps=2 if strategy == "local_sgd" else None),
            6,
            2,
        )
        for strategy in ("ddp", "powersgd", "local_sgd")
    },
    "texts, of tokens": (2, task_config("tagger", epochs=None, tokens=3000, eval_every={"tokens": 800}), 6, 2),
    # passes of 3.1 steps, evaluations each four: in the middle of either, or at an evaluation
    **{
        f"{kind} stream, {kill_after} steps": (2, stream_config(kind, **MOMENTUM, shards=(2.0, 1.0)), kill_after, 1)
        for kind, kill_after in [*(("drawing", step) for step in (2, 4, 7, 9)), ("texts", 7)]
    },
}


QUICK = {  # one of each kind of state; the others are slow
    "lenet on one worker",
    "ring on four",
    "batch normalisation on two",
    "powersgd on four, with momentum",
    "adascale on one",
    "a table that grows, of another length on each",
    "a buffer of another dtype on each",
    "a scheduler of PyTorch's, and a warm-up by share",
    "ddp, 6 steps",
    "local_sgd, 3 steps",
    "texts by powersgd",
    "drawing stream, 2 steps",
    "drawing stream, 9 steps",
}


@pytest.mark.parametrize(
    "training",
    [pytest.param(training, marks=() if training in QUICK else pytest.mark.slow) for training in TRAININGS],
)
def test_killed_and_resumed_is_never_killed(ranks: GlooPool, tmp_path: Path, training: str) -> None:
    world_size, config, kill_after, every_steps = TRAININGS[training]
    whole = ranks.run(world_size, never_killed, config)
    resumed = ranks.run(world_size, killed_and_resumed, config, str(tmp_path), kill_after, every_steps)
    for one, other in zip(whole, resumed, strict=True):
        assert other["resumed"]
        check_same(one, other)
    all_epochs = list(range(1, len(whole[0]["curve"]) + 1))
    assert [rank["seen"] for rank in resumed] == [all_epochs, *[[]] * (world_size - 1)], "restored epochs are told"


OF_STEPS = {"epochs": None, "steps": 2 * STEPS + 3, "eval_every": {"steps": STEPS - 1}, "schedule": "cosine"}


@pytest.mark.parametrize(
    ("changes", "every_steps"),
    [
        pytest.param(DROPOUT, 3, id="dropout-3", marks=pytest.mark.slow),
        pytest.param(DROPOUT, 0, id="dropout-0", marks=pytest.mark.slow),
        pytest.param({**DROPOUT, **OF_STEPS}, 2, id="dropout of steps-2", marks=pytest.mark.slow),
        pytest.param({**DROPOUT, **OF_STEPS}, 1, id="dropout of steps-1"),
    ],
)
def test_a_kill_after_any_step(tmp_path: Path, changes: dict[str, Any], every_steps: int) -> None:
    """Evaluations of a training of steps fall into the middle of epochs, and its last comes sooner than the others."""
    config = config_of(**changes)
    whole = never_killed(ALONE, config)
    for kill_after in range(1, (config.steps or EPOCHS * STEPS) + 1):
        resumed = killed_and_resumed(ALONE, config, str(tmp_path / str(kill_after)), kill_after, every_steps)
        check_same(whole, resumed)
        assert resumed["resumed"] == (kill_after >= every_steps if every_steps else kill_after > STEPS)


def test_a_stream_that_is_read_ahead_goes_on_where_it_was_trained(tmp_path: Path) -> None:
    """Not where its two loader processes were; and with one."""
    config = stream_config(**MOMENTUM, eval_every={"steps": 11})
    whole = never_killed(ALONE, config)
    killed(ALONE, config.replace(loader=LoaderConfig(workers=2)), str(tmp_path), 7, 1)
    resumed = checkpointed(ALONE, config.replace(loader=LoaderConfig(workers=1)), str(tmp_path), 1)
    check_same(whole, resumed)
    assert resumed["resumed"]


def test_a_stream_that_goes_on_reads_no_pass_before_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed after 42 examples, the second of the third pass. The first pass is begun to learn the examples' form."""
    config, begun = counted_config(steps=9, eval_every={"steps": 9}), list[int]()
    killed(ALONE, config, str(tmp_path), 7, 1)
    monkeypatch.setattr(Counting, "set_epoch", lambda dataset, epoch: begun.append(epoch))
    assert checkpointed(ALONE, config, str(tmp_path), 0)["resumed"]
    assert set(begun) == {0, 2}


def test_a_stream_goes_on_with_other_workers(ranks: GlooPool, tmp_path: Path) -> None:
    config = stream_config()
    whole = never_killed(ALONE, config)
    ranks.run(2, killed, config, str(tmp_path), 7, 1)
    for world_size in (4, 1):
        (first, *_) = ranks.run(world_size, checkpointed, config, str(tmp_path), 0)
        assert first["resumed"]
        assert largest_difference(first["state"], whole["state"]) < 1e-11


def test_parts_of_their_own_go_on_to_the_bit_and_with_as_many_workers(ranks: GlooPool, tmp_path: Path) -> None:
    config = counted_config(data_args={"kind": "Sharded", "count": 10}, steps=9)
    expected = ranks.run(2, never_killed, config)
    ranks.run(2, killed, config, str(tmp_path), 5, 1)
    with pytest.raises(ValueError, match="checkpoint: its 2 workers had parts of the train set of their own"):
        checkpointed(ALONE, config, str(tmp_path), 1)
    for one, other in zip(ranks.run(2, checkpointed, config, str(tmp_path), 1), expected, strict=True):
        check_same(one, other)
        assert one["resumed"]


@pytest.mark.parametrize(("before", "after", "every_steps"), [(4, 1, 0), (1, 4, 3), (4, 2, 3), (2, 4, 0)])
def test_resumed_at_another_world_size(
    ranks: GlooPool, tmp_path: Path, before: int, after: int, every_steps: int
) -> None:
    """Exact sums: the same parameters as one worker's, but for rounding, and every example counts once."""
    config = double_config()
    whole = never_killed(ALONE, config)
    ranks.run(before, killed, config, str(tmp_path), STEPS + 3, every_steps)
    resumed = ranks.run(after, checkpointed, config, str(tmp_path), every_steps)
    assert all(rank["resumed"] for rank in resumed)
    assert largest_difference(whole["state"], resumed[0]["state"]) < 1e-10
    assert resumed[0]["curve"] == [pytest.approx(epoch, abs=1e-9) for epoch in whole["curve"]]


@pytest.mark.parametrize(("strategy", "before", "after"), [("powersgd", 4, 2), ("powersgd", 2, 4), ("local_sgd", 2, 4)])
def test_lossy_strategies_go_on_at_another_world_size(
    ranks: GlooPool, tmp_path: Path, strategy: str, before: int, after: int
) -> None:
    config = config_of(**MOMENTUM, gradient_sync=strategy, local_steps=2)
    ranks.run(before, killed, config, str(tmp_path), 2 * STEPS + 1, 0)
    resumed = ranks.run(after, checkpointed, config, str(tmp_path), 0)
    assert {rank["status"] for rank in resumed} == {"finished"}
    assert all(same_bits(resumed[0]["state"], rank["state"]) for rank in resumed)
    assert resumed[0]["curve"][-1][0] < resumed[0]["curve"][0][0], "the loss went on falling"


DOUBLE_LENET: dict[str, Any] = {
    "model": f"{WORKLOADS}:DoubleLeNet",
    "model_args": {"init": "xavier", "image_size": 16},
    "data_args": {"train_samples": 3 * 16 + 10, "test_samples": 16, "image_size": 16},
}


@pytest.mark.parametrize(("strategy", "after"), [("ddp", 2), ("flat", 1), ("local_sgd", 2), ("local_sgd", 1)])
def test_a_resumed_optimizer_lies_in_memory_as_its_parameters_do(
    ranks: GlooPool, tmp_path: Path, strategy: str, after: int
) -> None:
    """Channels-last goes on as the other order does: fused optimizers add numbers by their place in memory."""
    states = []
    for channels_last in (False, True):
        config = config_of(
            **DOUBLE_LENET,
            **MOMENTUM,
            epochs=2,
            gradient_sync=strategy,
            local_steps=2 if strategy == "local_sgd" else None,
            channels_last=channels_last,
        )
        folder = str(tmp_path / str(channels_last))
        ranks.run(2, killed, config, folder, STEPS + 1, 0)
        resumed = ranks.run(after, checkpointed, config, folder, 0)[0]
        assert resumed["resumed"]
        states.append(resumed["state"])
    assert largest_difference(*states) < 1e-10


class AtTheStart(Hook):
    """What the training says of itself, and the momentum of its output's bias, once a checkpoint is restored."""

    def train_starts(self, trial: Trial) -> None:
        self.details = trial.details()
        self._keep(trial)

    def epoch_ends(self, trial: Trial, record: Any) -> None:
        self._keep(trial)

    def _keep(self, trial: Trial) -> None:
        buffer = trial.optimizer.state.get(trial.parameters[-1], {}).get("momentum_buffer")
        self.momentum = [] if buffer is None else buffer.tolist()


def kept_until(worker: Worker, config: TrainConfig, folder: str, kill_after: int) -> tuple[dict[str, Any], list[float]]:
    """The details, and the momentum when it began or when its last epoch ended, of a training that is killed."""
    kept = AtTheStart()
    killed(worker, config, folder, kill_after, 0, kept)
    return dict(kept.details), kept.momentum


def test_what_a_probe_picked_is_kept(ranks: GlooPool, tmp_path: Path) -> None:
    """Speeds are measured once: the resumed training has the shards that it began with."""
    config = config_of(shards="speed")
    (before, _), _ = ranks.run(2, kept_until, config, str(tmp_path), STEPS + 1)
    for after, _ in ranks.run(2, kept_until, config, str(tmp_path), 1):
        assert after["shards"] == before["shards"]
        assert sum(after["shards"]) == pytest.approx(1.0, abs=2e-3)


def test_the_momentum_of_local_sgd_is_the_mean_at_another_world_size(ranks: GlooPool, tmp_path: Path) -> None:
    """Two workers' momenta, then one worker: it has their mean, and each differs from it."""
    config = config_of(**MOMENTUM, gradient_sync="local_sgd", local_steps=2)
    momenta = [momentum for _, momentum in ranks.run(2, kept_until, config, str(tmp_path), STEPS + 1)]
    _, mean = kept_until(ALONE, config, str(tmp_path), 1)
    assert mean == pytest.approx([(one + other) / 2 for one, other in zip(*momenta, strict=True)], rel=1e-5)
    assert max(abs(one - other) for one, other in zip(*momenta, strict=True)) > 1e-4


def test_everything_moved() -> None:
    """What these tests compare is not what the training began with."""
    trained = run_training(ALONE, config_of())
    assert smallest_movement(trained["first_state"], trained["state"]) > 1e-4


# --- a training that rank 0 is asked to leave is left by all ranks at one step, and goes on to the bit ----------------


class LeavesAfter(Hook):
    """Asks rank 0 to leave once so many steps of the training are made; no other rank is asked."""

    def __init__(self, steps: int) -> None:
        self.steps, self.made = steps, 0

    def train_starts(self, trial: Trial) -> None:
        if trial.worker.rank == 0:
            trial.should_preempt = lambda: self.made >= self.steps

    def gradients_ready(self, trial: Trial, step: int) -> None:
        """Before the checkpoints' own hook looks, at the end of the step."""
        self.made += 1


def left(worker: Worker, config: TrainConfig, folder: str, steps: int, every_steps: int = 0) -> dict[str, Any]:
    """The outcome of a training that is asked to leave, and the steps that it made."""
    hook = LeavesAfter(steps)
    return {**checkpointed(worker, config, folder, every_steps, hook, preemptible=True), "made": hook.made}


def left_and_resumed(worker: Worker, config: TrainConfig, folder: str, steps: int) -> list[dict[str, Any]]:
    """Both parts of a training that is left once; the second makes no more than the steps that are missing."""
    first = left(worker, config, folder, steps)
    second = left(worker, config, folder, EPOCHS * STEPS) if first["status"] == "left" else first
    return [first, second]


def check_left(parts: list[list[dict[str, Any]]], whole: list[dict[str, Any]], steps: int) -> None:
    """All ranks left after the same step, at the next look; none was made twice, and the end is that of the whole."""
    made = {first["made"] for first, _ in parts}
    assert len(made) == 1
    assert steps <= made.pop() <= 2 * steps + 2
    for (first, second), one in zip(parts, whole, strict=True):
        epochs, more = divmod(first["made"], STEPS)
        assert (first["status"], len(first["curve"])) == ("left", epochs)
        assert first["message"] == f"{epochs} epochs and {more} steps of the next are made"
        assert second["resumed"]
        assert first["made"] + second["made"] == EPOCHS * STEPS
        check_same(one, second)


@pytest.mark.parametrize(
    ("strategy", "steps"), list(zip(sorted(GRADIENT_SYNCS), itertools.cycle([1, STEPS + 1]), strict=False))
)
def test_all_ranks_leave_at_one_step_and_go_on_to_the_bit(
    ranks: GlooPool, tmp_path: Path, strategy: str, steps: int
) -> None:
    config = config_of(**MOMENTUM, gradient_sync=strategy, local_steps=2, powersgd_rank=1)
    whole = ranks.run(2, never_killed, config)
    check_left(ranks.run(2, left_and_resumed, config, str(tmp_path), steps), whole, steps)


@pytest.mark.parametrize("changes", [DROPOUT, BATCH_NORM], ids=["dropout", "batch normalisation"])
def test_generators_and_buffers_are_those_of_the_step(ranks: GlooPool, tmp_path: Path, changes: dict[str, Any]) -> None:
    """What an agreement by NaN would leave changed: the step that carries it draws numbers and counts a batch."""
    config = config_of(**changes)
    whole = ranks.run(2, never_killed, config)
    check_left(ranks.run(2, left_and_resumed, config, str(tmp_path), 2), whole, 2)


@pytest.mark.parametrize("steps", range(1, EPOCHS * STEPS))
def test_one_worker_leaves_after_any_step(tmp_path: Path, steps: int) -> None:
    config = config_of(**DROPOUT)
    first, second = left_and_resumed(ALONE, config, str(tmp_path), steps)
    check_left([[first, second]], [never_killed(ALONE, config)], steps)
    assert first["made"] == steps


def test_who_is_asked_after_the_last_step_has_finished(tmp_path: Path) -> None:
    done = left(ALONE, config_of(), str(tmp_path), EPOCHS * STEPS)
    assert (done["status"], done["message"]) == ("finished", None)


def test_checkpoints_that_may_not_leave_do_not(tmp_path: Path) -> None:
    done = checkpointed(ALONE, config_of(), str(tmp_path), 0, LeavesAfter(1))
    assert done["status"] == "finished"


def test_a_checkpoint_that_is_due_anyway_is_written_once(tmp_path: Path) -> None:
    left(ALONE, config_of(), str(tmp_path), 2, every_steps=2)
    assert len(list(tmp_path.iterdir())) == 1
    left(ALONE, config_of(), str(tmp_path), 2, every_steps=100)  # two more: the end of the first epoch
    assert len(list(tmp_path.iterdir())) == 2


# --- when rank 0 looks -------------------------------------------------------------------------------------------


def looks(worker: Worker) -> list[int]:
    """The moments at which rank 0 looks, if 100 moments follow each other at 1/32 s."""
    moment, seen = 0, []
    trial: Any = SimpleNamespace(worker=worker, should_preempt=lambda: bool(seen.append(moment)))
    preemption = Preemption(lambda: moment / 32)
    while moment < 100:
        moment += 1
        assert not preemption.is_now(trial)
    return seen


def test_rank_zero_is_asked_each_half_second_and_a_rank_alone_each_time(ranks: GlooPool) -> None:
    seen, others = ranks.run(2, looks)
    assert seen[:6] == [1, 3, 7, 15, 31, 47]
    assert others == [], "only rank 0 is asked"
    assert looks(ALONE) == list(range(1, 101))


# --- checkpoints that are damaged, of another training, or can't be written -------------------------------------------


def test_a_damaged_checkpoint_falls_back_to_the_one_before(ranks: GlooPool, tmp_path: Path) -> None:
    config = config_of()
    whole = ranks.run(2, never_killed, config)
    ranks.run(2, killed, config, str(tmp_path), 2 * STEPS + 1)
    assert [folder.name for folder in sorted(tmp_path.iterdir())] == ["00000001", "00000002"]
    victim = tmp_path / "00000002" / "part-1.pt"
    victim.write_bytes(victim.read_bytes()[:-1])
    resumed = ranks.run(2, checkpointed, config, str(tmp_path), 0)
    assert len(resumed[0]["said"]) == 1
    assert resumed[0]["said"][0].startswith("checkpoint 2 is skipped: part-1.pt")
    check_same(whole[0], resumed[0])


def test_a_checkpoint_of_another_model_is_refused_on_every_rank(ranks: GlooPool, tmp_path: Path) -> None:
    ranks.run(2, killed, config_of(**LENET), str(tmp_path), STEPS + 1, 0)
    with pytest.raises(RuntimeError, match="is of another training") as refused:
        ranks.run(2, checkpointed, config_of(), str(tmp_path), 0)
    assert str(refused.value).count("is of another training") == 2


STEPS_20 = {"epochs": None, "steps": 20, "eval_every": {"steps": 4}}
EACH_THIRD = {"eval_every": {"epochs": 3}}
TOKENS = {"epochs": None, "tokens": 3000, "eval_every": {"tokens": 800}}


@pytest.mark.parametrize(
    ("before", "after", "kill_after", "text"),
    [
        (config_of(), config_of(batch_size=32), 9, "batch_size: 16 there, 32 here"),
        (config_of(), config_of(seed=9), 9, "seed: 0 there, 9 here"),
        (config_of(), config_of(lr_rule="sqrt"), 9, "lr_rule: 'none' there, 'sqrt' here"),
        (
            config_of(),
            config_of(optimizer=OptimizerConfig(name="adam")),
            9,
            "optimizer: .*'sgd'.* there, .*'adam'.* here",
        ),
        (config_of(), config_of(epochs=1), 9, "epochs: 1 are fewer than the 2 that the checkpoint has"),
        (
            config_of(**STEPS_20),
            config_of(**{**STEPS_20, "steps": 11}),
            14,
            "steps: 11 are fewer than the 12 that the checkpoint has",
        ),
        (
            config_of(**STEPS_20),
            config_of(**{**STEPS_20, "steps": 13}),
            14,
            "steps: 13 are fewer than the checkpoint has; ask for more",
        ),
        (config_of(epochs=6, **EACH_THIRD), config_of(epochs=2, **EACH_THIRD), 14, "epochs: 2 are fewer"),
        (
            task_config("tagger", **TOKENS),
            task_config("tagger", **{**TOKENS, "tokens": 4000}),  # its evaluations move with the length
            5,
            "tokens: 3000 there, 4000 here",
        ),
    ],
)
def test_another_or_a_shorter_training_is_refused_by_its_field(
    tmp_path: Path, before: TrainConfig, after: TrainConfig, kill_after: int, text: str
) -> None:
    killed(ALONE, before, str(tmp_path), kill_after, 2)
    with pytest.raises(ValueError, match=text):
        checkpointed(ALONE, after, str(tmp_path), 2)


def test_a_longer_training_of_steps_goes_on(tmp_path: Path) -> None:
    killed(ALONE, config_of(**STEPS_20), str(tmp_path), 14, 2)
    longer = config_of(**{**STEPS_20, "steps": 27})
    check_same(checkpointed(ALONE, longer, str(tmp_path), 2), never_killed(ALONE, longer))


def test_more_epochs_may_be_asked_for_and_other_shards(ranks: GlooPool, tmp_path: Path) -> None:
    """What changes no result, or only makes it longer; the shards are those that are asked for now."""
    config = double_config()
    ranks.run(2, killed, config, str(tmp_path), 2 * STEPS + 1, 0)
    longer = config.replace(epochs=EPOCHS + 1, shards=(3.0, 1.0))
    resumed = ranks.run(2, checkpointed, longer, str(tmp_path), 0)
    whole = never_killed(ALONE, config.replace(epochs=EPOCHS + 1))
    assert resumed[0]["resumed"]
    assert largest_difference(whole["state"], resumed[0]["state"]) < 1e-10


def changing_model(num_classes: int, in_channels: int) -> nn.Module:
    """A user's model whose width the environment says."""
    width = int(os.environ["SCALESTUDY_TEST_WIDTH"])
    return nn.Sequential(nn.Flatten(), nn.Linear(784 * in_channels, width), nn.Linear(width, num_classes))


def test_a_users_model_that_has_changed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same name, other shapes: found when the parameters are loaded."""
    config = config_of(model=f"{__name__}:changing_model", model_args={})
    monkeypatch.setenv("SCALESTUDY_TEST_WIDTH", "8")
    killed(ALONE, config, str(tmp_path), STEPS + 1)
    monkeypatch.setenv("SCALESTUDY_TEST_WIDTH", "9")
    with pytest.raises(ValueError, match=r"checkpoint: it is of another model \(.*size mismatch"):
        checkpointed(ALONE, config, str(tmp_path), 0)


def test_a_store_that_can_not_be_written_does_not_stop_the_training(ranks: GlooPool, tmp_path: Path) -> None:
    """Rank 1's part fails: no rank keeps that checkpoint."""
    (tmp_path / "00000001").mkdir()
    (tmp_path / "00000001" / "part-1.pt").mkdir()  # a folder where the file would be
    outcomes = ranks.run(2, checkpointed, config_of(), str(tmp_path), 0)
    check_same(ranks.run(2, never_killed, config_of())[0], outcomes[0])
    assert any("checkpoint 1 is not kept" in message for message in outcomes[0]["said"])
    assert any("part-1.pt can't be written" in message for message in outcomes[1]["said"])


T0, T1, T2 = (("training", number) for number in range(3))
WRITES = [("checkpointing", 0)] * 3  # what all ranks share, the rank's own, the manifest


@pytest.mark.parametrize(
    ("every", "expected"),
    [
        ({"every_epochs": 0, "every_steps": 2}, [T0, *WRITES, T1, T2, T0, *WRITES, T1, T2]),
        ({"every_epochs": 1}, [T0, T1, T2, *WRITES, T0, T1, T2]),
    ],
    ids=["of steps", "of epochs"],
)
def test_while_it_writes_the_training_says_so_and_then_goes_on_counting(
    tmp_path: Path, every: dict[str, int], expected: list[tuple[str, int]]
) -> None:
    """Three steps an epoch; none is written with an epoch's last step, nor after the last epoch."""
    pulse, seen = Pulse(), []

    class Store(LocalByteStore):
        def write(self, name: str, data: bytes) -> None:
            seen.append((pulse.stage.activity, pulse.stage.count))
            super().write(name, data)

    class Looks(Hook):
        def step_ends(self, trial: Trial, step: int) -> None:
            seen.append((pulse.stage.activity, pulse.stage.count))

    hooks = [Checkpoints(Store(tmp_path), **every), Looks()]
    train(make_config(batch_size=100, epochs=2), ALONE, hooks=hooks, pulse=pulse)  # of 256 examples
    assert seen == expected


def test_after_the_last_epoch_there_is_nothing_to_go_on_with(tmp_path: Path) -> None:
    checkpointed(ALONE, config_of(epochs=1), str(tmp_path), 0)
    assert not list(tmp_path.iterdir())


def test_the_fields_that_are_free_to_change_are_there() -> None:
    assert {*FREE_TO_CHANGE} <= TrainConfig.model_fields.keys()
