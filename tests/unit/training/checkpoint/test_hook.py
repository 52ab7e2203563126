"""Checkpoints: a training that was killed, or left, and resumed is to the bit the one that was never killed."""

from __future__ import annotations

import contextlib
import itertools
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scalestudy.training.checkpoint.byte_store import LocalByteStore
from scalestudy.training.checkpoint.hook import FREE_TO_CHANGE, Checkpoints, Preemption
from scalestudy.training.config import LoaderConfig, OptimizerConfig, TrainConfig
from scalestudy.training.data.loading import load_splits
from scalestudy.training.distributed import Worker
from scalestudy.training.loop.hooks import Hook
from scalestudy.training.loop.pace import MOST_BETWEEN
from scalestudy.training.loop.train import train
from scalestudy.training.loop.trial import Trial
from scalestudy.training.pulse import Pulse
from scalestudy.training.registry import GRADIENT_SYNCS
from tests.support.gloo import GlooPool
from tests.support.training.helpers import (
    ALONE,
    largest_difference,
    make_config,
    run_training,
    same_bits,
    smallest_movement,
)
from tests.support.training.resuming import (
    BATCH_NORM,
    DROPOUT,
    EPOCHS,
    LENET,
    MOMENTUM,
    STEPS,
    KillAfter,
    KilledError,
    check_same,
    checkpointed,
    config_of,
    killed,
    killed_and_resumed,
    never_killed,
)
from tests.support.training.streams import counted_config, stream_config
from tests.support.training.tasks import task_config

TRAININGS: dict[str, tuple[int, dict[str, Any]]] = {
    "lenet on one worker": (1, {**LENET, **MOMENTUM}),
    "lenet by ddp on two": (2, {**LENET, **MOMENTUM}),
    "lenet by ddp on four": (4, LENET),
    "lenet by ring on four": (4, {**LENET, "gradient_sync": "ring"}),
    "dropout on one": (1, DROPOUT),
    "dropout by ddp on two": (2, {**DROPOUT, "optimizer": OptimizerConfig(name="adam"), "learning_rate": 1e-3}),
    "batch normalisation on two": (2, BATCH_NORM),
    "synchronised batch normalisation on two": (2, {**BATCH_NORM, "sync_batch_norm": True}),
    "powersgd on two": (2, {**LENET, "gradient_sync": "powersgd", "powersgd_rank": 1}),
    "powersgd on four, with momentum": (4, {**LENET, **MOMENTUM, "gradient_sync": "powersgd"}),
    "local sgd with momentum on two": (2, {**LENET, **MOMENTUM, "gradient_sync": "local_sgd", "local_steps": 2}),
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
    "uneven shards, one empty": (4, {"shards": (2.0, 0.0, 1.0, 1.0), "schedule": "one_cycle"}),
}


@pytest.mark.parametrize("strategy", ["ddp", "powersgd", "local_sgd"])
def test_a_task_goes_on_to_the_bit(ranks: GlooPool, tmp_path: Path, strategy: str) -> None:
    """Ragged texts, whose weights differ between workers and steps; killed in the second epoch."""
    config = task_config("tagger", epochs=3, gradient_sync=strategy, local_steps=2 if strategy == "local_sgd" else None)
    expected = ranks.run(2, never_killed, config)
    resumed = ranks.run(2, killed_and_resumed, config, str(tmp_path), 6, 2)
    for one, other in zip(resumed, expected, strict=True):
        check_same(one, other)
        assert one["resumed"]


@pytest.mark.parametrize(
    ("kind", "kill_after"), [*itertools.product(["drawing", "stateful"], [2, 4, 7, 9]), ("texts", 7)]
)
def test_a_stream_goes_on_to_the_bit(ranks: GlooPool, tmp_path: Path, kind: str, kill_after: int) -> None:
    """Passes are of 3.1 steps, evaluations each four: killed in the middle of either, or at an evaluation."""
    config = stream_config(kind, **MOMENTUM, shards=(2.0, 1.0))
    expected = ranks.run(2, never_killed, config)
    resumed = ranks.run(2, killed_and_resumed, config, str(tmp_path), kill_after, 1)
    for one, other in zip(resumed, expected, strict=True):
        check_same(one, other)
        assert one["resumed"]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("kind", ["drawing", "stateful"])
def test_a_stream_that_is_read_ahead_goes_on_where_it_was_trained(tmp_path: Path, kind: str, workers: int) -> None:
    """Not where its loader processes were; and with other ones."""
    config = stream_config(kind, **MOMENTUM)
    whole = never_killed(ALONE, config)
    killed(ALONE, config.replace(loader=LoaderConfig(workers=workers)), str(tmp_path), 7, 1)
    resumed = checkpointed(ALONE, config.replace(loader=LoaderConfig(workers=2 - workers)), str(tmp_path), 1)
    check_same(whole, resumed)
    assert resumed["resumed"]


def test_a_stream_with_a_state_is_not_read_again(tmp_path: Path) -> None:
    """Eleven steps of 16; killed after the seventh. Some are read beside them, to learn the examples' form."""
    config = stream_config("stateful", data_args={"kind": "stateful", "count": 1000})
    killed(ALONE, config, str(tmp_path), 7, 1)
    dataset = load_splits(config, ALONE.device).train.dataset
    before = dataset.read
    checkpointed(ALONE, config, str(tmp_path), 0)
    assert before >= 6 * 16, "it was read"
    assert 4 * 16 <= dataset.read - before < 6 * 16


@pytest.mark.parametrize("kind", ["drawing", "stateful"])
def test_a_stream_goes_on_with_other_workers(ranks: GlooPool, tmp_path: Path, kind: str) -> None:
    config = stream_config(kind)
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


@pytest.mark.parametrize(
    ("training", "kill_after"), list(zip(TRAININGS, itertools.cycle([STEPS + 1, 2 * STEPS + 2]), strict=False))
)
def test_killed_and_resumed_is_never_killed(ranks: GlooPool, tmp_path: Path, training: str, kill_after: int) -> None:
    """Killed after the first step of the second epoch, or in the middle of the last one, by turns."""
    world_size, changes = TRAININGS[training]
    config = config_of(**changes)
    whole = ranks.run(world_size, never_killed, config)
    resumed = ranks.run(world_size, killed_and_resumed, config, str(tmp_path), kill_after)
    for one, other in zip(whole, resumed, strict=True):
        assert other["resumed"]
        check_same(one, other)
    assert [rank["seen"] for rank in resumed] == [[1, 2, 3], *[[]] * (world_size - 1)], "restored epochs are told"


@pytest.mark.parametrize(
    ("changes", "every_steps"), [(LENET, 3), (DROPOUT, 0), (DROPOUT, 1)], ids=["lenet-3", "dropout-0", "dropout-1"]
)
def test_a_kill_after_any_step(tmp_path: Path, changes: dict[str, Any], every_steps: int) -> None:
    config = config_of(**changes)
    whole = never_killed(ALONE, config)
    for kill_after in range(1, EPOCHS * STEPS + 1):
        resumed = killed_and_resumed(ALONE, config, str(tmp_path / str(kill_after)), kill_after, every_steps)
        check_same(whole, resumed)
        assert resumed["resumed"] == (kill_after >= every_steps if every_steps else kill_after > STEPS)


@pytest.mark.parametrize(("changes", "every_steps"), [(LENET, 2), (DROPOUT, 1)], ids=["lenet", "dropout"])
def test_a_training_of_steps_goes_on_after_a_kill_at_any_step(
    tmp_path: Path, changes: dict[str, Any], every_steps: int
) -> None:
    """Its evaluations fall into the middle of epochs, and its last one comes sooner than the others."""
    length = 2 * STEPS + 3
    config = config_of(**changes, epochs=None, steps=length, eval_every={"steps": STEPS - 1}, schedule="cosine")
    whole = never_killed(ALONE, config)
    for kill_after in range(every_steps, length):
        resumed = killed_and_resumed(ALONE, config, str(tmp_path / str(kill_after)), kill_after, every_steps)
        check_same(whole, resumed)
        assert resumed["resumed"]


def test_a_training_of_tokens_goes_on_to_the_bit(ranks: GlooPool, tmp_path: Path) -> None:
    config = task_config("tagger", epochs=None, tokens=3000, eval_every={"tokens": 800})
    expected = ranks.run(2, never_killed, config)
    resumed = ranks.run(2, killed_and_resumed, config, str(tmp_path), 6, 2)
    for one, other in zip(resumed, expected, strict=True):
        check_same(one, other)
        assert one["resumed"]
        assert all(one["tokens"])


@pytest.mark.parametrize(
    ("strategy", "kill_after"),
    [
        ("ddp", STEPS + 2),
        ("powersgd", STEPS + 2),
        ("powersgd", 2 * STEPS + 3),
        ("local_sgd", STEPS - 1),
        ("local_sgd", 2 * STEPS + 3),
    ],
)
def test_a_kill_between_checkpoints_of_steps(ranks: GlooPool, tmp_path: Path, strategy: str, kill_after: int) -> None:
    """A checkpoint every second step, in the middle of epochs; local SGD's only where it has just averaged."""
    config = config_of(**LENET, **MOMENTUM, gradient_sync=strategy, local_steps=2, powersgd_rank=1)
    whole = ranks.run(2, never_killed, config)
    resumed = ranks.run(2, killed_and_resumed, config, str(tmp_path), kill_after, 2)
    for one, other in zip(whole, resumed, strict=True):
        assert other["resumed"]
        check_same(one, other)


@pytest.mark.parametrize(("before", "after", "every_steps"), [(4, 1, 0), (1, 4, 3), (4, 2, 3), (2, 4, 0)])
def test_resumed_at_another_world_size(
    ranks: GlooPool, tmp_path: Path, before: int, after: int, every_steps: int
) -> None:
    """Exact sums: the same parameters as one worker's, but for rounding, and every example counts once."""
    model = {"model": "tests.support.training.workloads:DoubleLeNet", "model_args": {"init": "xavier"}}
    config = config_of(**model, **MOMENTUM)
    (whole,) = ranks.run(1, never_killed, config)
    ranks.run(before, killed, config, str(tmp_path), STEPS + 3, every_steps)
    resumed = ranks.run(after, checkpointed, config, str(tmp_path), every_steps)
    assert all(rank["resumed"] for rank in resumed)
    assert largest_difference(whole["state"], resumed[0]["state"]) < 1e-10
    assert resumed[0]["curve"] == [pytest.approx(epoch, abs=1e-9) for epoch in whole["curve"]]


@pytest.mark.parametrize("strategy", ["powersgd", "local_sgd"])
@pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 4)])
def test_lossy_strategies_go_on_at_another_world_size(
    ranks: GlooPool, tmp_path: Path, strategy: str, before: int, after: int
) -> None:
    config = config_of(**LENET, **MOMENTUM, gradient_sync=strategy, local_steps=2)
    ranks.run(before, killed, config, str(tmp_path), 2 * STEPS + 1, 0)
    resumed = ranks.run(after, checkpointed, config, str(tmp_path), 0)
    assert {rank["status"] for rank in resumed} == {"finished"}
    assert all(same_bits(resumed[0]["state"], rank["state"]) for rank in resumed)
    assert resumed[0]["curve"][-1][0] < resumed[0]["curve"][0][0], "the loss went on falling"


def test_the_momentum_of_local_sgd_is_the_mean_at_another_world_size(ranks: GlooPool, tmp_path: Path) -> None:
    """Two workers' momenta, then one worker: it has their mean, and each differs from it."""
    config = config_of(**LENET, **MOMENTUM, gradient_sync="local_sgd", local_steps=2)
    momenta = ranks.run(2, momentum_at_the_kill, config, str(tmp_path), True)
    (mean,) = ranks.run(1, momentum_at_the_kill, config, str(tmp_path), False)
    assert mean == pytest.approx([(one + other) / 2 for one, other in zip(*momenta, strict=True)], rel=1e-5)
    assert max(abs(one - other) for one, other in zip(*momenta, strict=True)) > 1e-4


@pytest.mark.parametrize(("strategy", "after"), [("ddp", 2), ("flat", 1), ("local_sgd", 2), ("local_sgd", 4)])
def test_a_resumed_optimizer_lies_in_memory_as_its_parameters_do(
    ranks: GlooPool, tmp_path: Path, strategy: str, after: int
) -> None:
    """Channels-last goes on as the other order does: fused optimizers add numbers by their place in memory."""
    states = []
    for channels_last in (False, True):
        config = config_of(
            model="tests.support.training.workloads:DoubleLeNet",
            model_args={"init": "xavier"},
            **MOMENTUM,
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


class LastMomentum(Hook):
    """The momentum of the output's bias, after the checkpoint was restored or when an epoch has ended."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def train_starts(self, trial: Trial) -> None:
        self._take(trial)

    def epoch_ends(self, trial: Trial, record: Any) -> None:
        self._take(trial)

    def _take(self, trial: Trial) -> None:
        buffer = trial.optimizer.state.get(trial.parameters[-1], {}).get("momentum_buffer")
        self.values = [] if buffer is None else buffer.tolist()


def momentum_at_the_kill(worker: Worker, config: TrainConfig, folder: str, kill: bool) -> list[float]:
    """As it was when the first epoch's checkpoint was written, or as it is after resuming from that."""
    momentum = LastMomentum()
    killer = KillAfter(STEPS + 1 if kill else 1)
    with contextlib.suppress(KilledError):
        checkpointed(worker, config, folder, 0, momentum, killer)
    return momentum.values


def test_what_a_probe_picked_is_kept(ranks: GlooPool, tmp_path: Path) -> None:
    """Speeds are measured once: the resumed training has the shards that it began with."""
    config = config_of(**LENET, shards="speed")
    before = ranks.run(2, details_until_killed, config, str(tmp_path))
    after = ranks.run(2, details_of, config, str(tmp_path))
    assert before[0]["shards"] == after[0]["shards"] == after[1]["shards"]
    assert sum(after[0]["shards"]) == pytest.approx(1.0, abs=2e-3)


def details_of(worker: Worker, config: TrainConfig, folder: str) -> dict[str, Any]:
    """What the training says of itself."""
    checkpoints = Checkpoints(LocalByteStore(folder))
    choices = checkpoints.find(config, worker)
    assert choices is not None
    return dict(train(config, worker, hooks=[checkpoints], choices=choices).details)


def details_until_killed(worker: Worker, config: TrainConfig, folder: str) -> dict[str, Any]:
    """The same of one that is killed in its second epoch."""

    class Details(Hook):
        def train_starts(self, trial: Trial) -> None:
            self.found = trial.details()

    details = Details()
    with contextlib.suppress(KilledError):
        checkpointed(worker, config, folder, 0, details, KillAfter(STEPS + 1))
    return details.found


def test_everything_moved() -> None:
    """What these tests compare is not what the training began with."""
    trained = run_training(ALONE, config_of(**LENET).replace(epochs=EPOCHS))
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
    config = config_of(**LENET, **MOMENTUM, gradient_sync=strategy, local_steps=2, powersgd_rank=1)
    whole = ranks.run(2, never_killed, config)
    check_left(ranks.run(2, left_and_resumed, config, str(tmp_path), steps), whole, steps)


@pytest.mark.parametrize("changes", [DROPOUT, BATCH_NORM], ids=["dropout", "batch normalisation"])
def test_generators_and_buffers_are_those_of_the_step(ranks: GlooPool, tmp_path: Path, changes: dict[str, Any]) -> None:
    """What an agreement by NaN would leave changed: the step that carries it draws numbers and counts a batch."""
    config = config_of(**changes)
    whole = ranks.run(4, never_killed, config)
    check_left(ranks.run(4, left_and_resumed, config, str(tmp_path), 2), whole, 2)


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


def looks(worker: Worker, paces: list[tuple[int, float]]) -> list[int]:
    """The moments at which rank 0 looks, if so many moments follow each other at so many seconds."""
    now, moment, seen = 0.0, 0, []
    trial: Any = SimpleNamespace(worker=worker, should_preempt=lambda: bool(seen.append(moment)))
    preemption = Preemption(lambda: now)
    for moments, seconds in paces:
        for _ in range(moments):
            now, moment = now + seconds, moment + 1
            assert not preemption.is_now(trial)
    return seen


def test_looks_are_half_a_second_apart_and_their_distance_grows_by_doubling(ranks: GlooPool) -> None:
    seen, others = ranks.run(2, looks, [(100, 0.03125)])
    assert seen[:6] == [1, 3, 7, 15, 31, 47]
    assert others == [], "only rank 0 is asked"


def test_fast_steps_that_become_slow_are_not_skipped_for_long(ranks: GlooPool) -> None:
    """64 at most; then each."""
    seen, _ = ranks.run(2, looks, [(1_000, 0.0001), (100, 2.0)])
    distances = [after - before for before, after in itertools.pairwise(seen)]
    assert max(distances) == MOST_BETWEEN == 64
    assert [moment for moment in seen if moment > 1_000 + MOST_BETWEEN][-30:] == list(range(1_071, 1_101))


def test_one_rank_alone_looks_each_time() -> None:
    assert looks(ALONE, [(5, 0.0001)]) == [1, 2, 3, 4, 5]


# --- checkpoints that are damaged, of another training, or can't be written -------------------------------------------


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(ranks: GlooPool, tmp_path: Path, damage: str) -> None:
    config = config_of(**LENET)
    whole = ranks.run(2, never_killed, config)
    ranks.run(2, killed, config, str(tmp_path), 2 * STEPS + 1, 0)
    assert [folder.name for folder in sorted(tmp_path.iterdir())] == ["00000001", "00000002"]
    victim = tmp_path / "00000002" / "part-1.pt"
    content = victim.read_bytes()
    middle = len(content) // 2
    flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    victim.write_bytes({"flip": flipped, "truncate": content[:middle], "remove": b""}[damage])
    if damage == "remove":
        victim.unlink()
    resumed = ranks.run(2, checkpointed, config, str(tmp_path), 0)
    assert len(resumed[0]["said"]) == 1
    assert resumed[0]["said"][0].startswith("checkpoint 2 is skipped: part-1.pt")
    check_same(whole[0], resumed[0])


def test_a_checkpoint_of_another_model_is_refused_on_every_rank(ranks: GlooPool, tmp_path: Path) -> None:
    ranks.run(2, killed, config_of(**LENET), str(tmp_path), STEPS + 1, 0)
    with pytest.raises(RuntimeError, match="is of another training") as refused:
        ranks.run(2, checkpointed, config_of(), str(tmp_path), 0)
    assert str(refused.value).count("is of another training") == 2


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"batch_size": 32}, "batch_size: 16 there, 32 here"),
        ({"seed": 9}, "seed: 0 there, 9 here"),
        ({"lr_rule": "sqrt"}, "lr_rule: 'none' there, 'sqrt' here"),
        ({"optimizer": OptimizerConfig(name="adam")}, "optimizer: .*'sgd'.* there, .*'adam'.* here"),
        ({"epochs": 1}, "epochs: 1 are fewer than the 2 that the checkpoint has"),
    ],
)
def test_another_configuration_is_refused_by_its_field(tmp_path: Path, changes: dict[str, Any], text: str) -> None:
    killed(ALONE, config_of(), str(tmp_path), 2 * STEPS + 1, 0)
    with pytest.raises(ValueError, match=text):
        checkpointed(ALONE, config_of(**changes), str(tmp_path), 0)


STEPS_20 = {"epochs": None, "steps": 20, "eval_every": {"steps": 4}}


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        (STEPS_20, {**STEPS_20, "steps": 11}, "steps: 11 are fewer than the 12 that the checkpoint has"),
        (STEPS_20, {**STEPS_20, "steps": 13}, "steps: 13 are fewer than the checkpoint has; ask for more"),
        ({"epochs": 6, "eval_every": {"epochs": 3}}, {"epochs": 2, "eval_every": {"epochs": 3}}, "epochs: 2 are fewer"),
    ],
)
def test_a_shorter_training_is_refused(
    tmp_path: Path, before: dict[str, Any], after: dict[str, Any], text: str
) -> None:
    """Three evaluations and two more steps are made, or one evaluation after three epochs."""
    killed(ALONE, config_of(**before), str(tmp_path), 14, 2)
    with pytest.raises(ValueError, match=text):
        checkpointed(ALONE, config_of(**after), str(tmp_path), 2)


def test_a_longer_training_of_steps_goes_on_and_one_of_tokens_is_another(tmp_path: Path) -> None:
    """The evaluations of a length in tokens move with it."""
    killed(ALONE, config_of(**STEPS_20), str(tmp_path / "steps"), 14, 2)
    longer = config_of(**{**STEPS_20, "steps": 27})
    check_same(checkpointed(ALONE, longer, str(tmp_path / "steps"), 2), never_killed(ALONE, longer))
    tokens = {"epochs": None, "tokens": 3000, "eval_every": {"tokens": 800}}
    killed(ALONE, task_config("tagger", **tokens), str(tmp_path / "tokens"), 5, 2)
    with pytest.raises(ValueError, match="tokens: 3000 there, 4000 here"):
        checkpointed(ALONE, task_config("tagger", **{**tokens, "tokens": 4000}), str(tmp_path / "tokens"), 2)


def test_more_epochs_may_be_asked_for_and_other_shards(ranks: GlooPool, tmp_path: Path) -> None:
    """What changes no result, or only makes it longer; the shards are those that are asked for now."""
    config = config_of(model="tests.support.training.workloads:DoubleLeNet", model_args={"init": "xavier"})
    ranks.run(2, killed, config, str(tmp_path), 2 * STEPS + 1, 0)
    longer = config.replace(epochs=EPOCHS + 1, shards=(3.0, 1.0))
    resumed = ranks.run(2, checkpointed, longer, str(tmp_path), 0)
    (whole,) = ranks.run(1, never_killed, config.replace(epochs=EPOCHS + 1))
    assert resumed[0]["resumed"]
    assert largest_difference(whole["state"], resumed[0]["state"]) < 1e-10


def test_a_users_model_that_has_changed_is_refused(tmp_path: Path) -> None:
    """The same name, other shapes: found when the parameters are loaded."""
    config = config_of(model="tests.support.training.workloads:changing_model", model_args={})
    os.environ["SCALESTUDY_TEST_WIDTH"] = "8"
    try:
        killed(ALONE, config, str(tmp_path), STEPS + 1, 0)
        os.environ["SCALESTUDY_TEST_WIDTH"] = "9"
        with pytest.raises(ValueError, match=r"checkpoint: it is of another model \(.*size mismatch"):
            checkpointed(ALONE, config, str(tmp_path), 0)
    finally:
        del os.environ["SCALESTUDY_TEST_WIDTH"]


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
