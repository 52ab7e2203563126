"""A training that was killed and resumed is, to the bit, the one that was never killed."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.gloo import GlooPool
from tests.training.helpers import ALONE, largest_difference, make_config, outcome, same_bits, smallest_movement
from training.checkpoint.byte_store import LocalByteStore
from training.checkpoint.hook import Checkpoints
from training.config import OptimizerConfig, TrainConfig
from training.distributed import Worker
from training.hooks import Hook
from training.loop import train
from training.trial import Trial

STEPS = 4  # an epoch
EPOCHS = 3


class KilledError(Exception):
    """Stands for SIGKILL, which the pool's processes would not survive; the last test sends a real one."""


class KillAfter(Hook):
    """Ends the training after so many steps in all."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def step_ends(self, trial: Trial, step: int) -> None:
        self.left -= 1
        if not self.left:
            raise KilledError


def config_of(**changes: Any) -> TrainConfig:
    """Three epochs of four steps, the last smaller, after which everything has moved."""
    values: dict[str, Any] = {"batch_size": 64, "epochs": EPOCHS, "learning_rate": 0.1,
                              "data_args": {"train_samples": 3 * 64 + 38, "test_samples": 48}}  # fmt: skip
    return make_config(**(values | changes))


def checkpointed(worker: Worker, config: TrainConfig, folder: str, every_steps: int, *hooks: Hook) -> dict[str, Any]:
    """The outcome of a training that writes checkpoints, and goes on from what it finds, with what it said."""
    said: list[str] = []
    checkpoints = Checkpoints(LocalByteStore(folder), every_steps=every_steps, say=said.append)
    picked = checkpoints.find(config, worker)
    seen: list[int] = []
    result = train(config, worker, hooks=[checkpoints, *hooks], picked=picked, on_epoch=lambda r: seen.append(r.epoch))
    return {**outcome(result), "resumed": checkpoints.resumed, "said": said, "seen": seen}


def killed_and_resumed(worker: Worker, config: TrainConfig, folder: str, kill_after: int, every_steps: int = 0) -> Any:
    """The outcome after a kill and a resume in the same process."""
    try:
        checkpointed(worker, config, folder, every_steps, KillAfter(kill_after))
    except KilledError:
        return checkpointed(worker, config, folder, every_steps)
    raise AssertionError("it was not killed")


def never_killed(worker: Worker, config: TrainConfig) -> dict[str, Any]:
    """The outcome without checkpoints."""
    return outcome(train(config, worker))


def check_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Equal to the bit in everything that a training computes."""
    assert one["curve"] == other["curve"]
    assert same_bits(one["state"], other["state"])
    assert one["status"] == other["status"]


LENET = {"model": "lenet", "model_args": {}}
DROPOUT = {"model_args": {"hidden": [16], "dropout": 0.5}}
BATCH_NORM = {"model": "tests.training.workloads:BatchNormNet", "model_args": {}}
MOMENTUM = {"optimizer": OptimizerConfig(momentum=0.9, weight_decay=1e-3)}
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
    "adascale on two": (2, {"lr_rule": "adascale", "base_batch_size": 16, "schedule": "cosine"}),
    "adascale on one": (1, {"lr_rule": "adascale", "base_batch_size": 16}),
    "warm-up and one cycle, accumulated, augmented": (2, {"lr_rule": "linear", "base_batch_size": 32,
        "warmup_epochs": 1.5, "schedule": "cosine", "accumulation": 3, "augment": "crop_flip"}),
    "uneven shards, one empty": (4, {"shards": (2.0, 0.0, 1.0, 1.0), "schedule": "one_cycle"}),
}  # fmt: skip


@pytest.mark.parametrize("training", TRAININGS)
def test_killed_and_resumed_is_never_killed(ranks: GlooPool, tmp_path: Path, training: str) -> None:
    """Killed in the middle of the last epoch, and after the first step of the second."""
    world_size, changes = TRAININGS[training]
    config = config_of(**changes)
    whole = ranks.run(world_size, never_killed, config)
    for kill_after in (STEPS + 1, 2 * STEPS + 2):
        folder = str(tmp_path / str(kill_after))
        resumed = ranks.run(world_size, killed_and_resumed, config, folder, kill_after)
        for one, other in zip(whole, resumed, strict=True):
            assert other["resumed"]
            check_same(one, other)
        assert [rank["seen"] for rank in resumed] == [[1, 2, 3], *[[]] * (world_size - 1)], "restored epochs are told"


@pytest.mark.parametrize("every_steps", [0, 1, 3])
@pytest.mark.parametrize("changes", [LENET, DROPOUT], ids=["lenet", "dropout"])
def test_a_kill_after_any_step(tmp_path: Path, changes: dict[str, Any], every_steps: int) -> None:
    config = config_of(**changes)
    whole = never_killed(ALONE, config)
    for kill_after in range(1, EPOCHS * STEPS + 1):
        resumed = killed_and_resumed(ALONE, config, str(tmp_path / str(kill_after)), kill_after, every_steps)
        check_same(whole, resumed)
        assert resumed["resumed"] == (kill_after >= every_steps if every_steps else kill_after > STEPS)


@pytest.mark.parametrize("strategy", ["ddp", "powersgd", "local_sgd"])
@pytest.mark.parametrize("kill_after", [STEPS - 1, STEPS + 2, 2 * STEPS + 3])
def test_a_kill_between_checkpoints_of_steps(ranks: GlooPool, tmp_path: Path, strategy: str, kill_after: int) -> None:
    """A checkpoint every second step, in the middle of epochs; local SGD's only where it has just averaged."""
    config = config_of(**LENET, **MOMENTUM, gradient_sync=strategy, local_steps=2, powersgd_rank=1)
    whole = ranks.run(2, never_killed, config)
    resumed = ranks.run(2, killed_and_resumed, config, str(tmp_path), kill_after, 2)
    for one, other in zip(whole, resumed, strict=True):
        assert other["resumed"]
        check_same(one, other)


@pytest.mark.parametrize(("before", "after"), [(4, 1), (1, 4), (4, 2), (2, 4)])
@pytest.mark.parametrize("every_steps", [0, 3])
def test_resumed_at_another_world_size(
    ranks: GlooPool, tmp_path: Path, before: int, after: int, every_steps: int
) -> None:
    """Exact sums: the same parameters as one worker's, but for rounding, and every example counts once."""
    model = {"model": "tests.training.workloads:DoubleLeNet", "model_args": {"init": "xavier"}}
    config = config_of(**model, **MOMENTUM)
    (whole,) = ranks.run(1, never_killed, config)
    ranks.run(before, killed, config, str(tmp_path), STEPS + 3, every_steps)
    resumed = ranks.run(after, checkpointed, config, str(tmp_path), every_steps)
    assert all(rank["resumed"] for rank in resumed)
    assert largest_difference(whole["state"], resumed[0]["state"]) < 1e-10
    assert resumed[0]["curve"] == [pytest.approx(epoch, abs=1e-9) for epoch in whole["curve"]]


def killed(worker: Worker, config: TrainConfig, folder: str, kill_after: int, every_steps: int) -> None:
    """A training that ends so."""
    try:
        checkpointed(worker, config, folder, every_steps, KillAfter(kill_after))
    except KilledError:
        return


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
    assert resumed[0]["said"][0].startswith("checkpoint 2 is passed over: part-1.pt")
    check_same(whole[0], resumed[0])


def test_a_checkpoint_of_another_model_is_refused_on_every_rank(ranks: GlooPool, tmp_path: Path) -> None:
    ranks.run(2, killed, config_of(**LENET), str(tmp_path), STEPS + 1, 0)
    with pytest.raises(RuntimeError, match="is of another training") as refused:
        ranks.run(2, checkpointed, config_of(), str(tmp_path), 0)
    assert str(refused.value).count("is of another training") == 2


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"batch_size": 32}, "batch_size: 64 there, 32 here"),
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


def test_more_epochs_may_be_asked_for_and_other_shards(ranks: GlooPool, tmp_path: Path) -> None:
    """What changes no result, or only makes it longer; the shards are those that are asked for now."""
    config = config_of(model="tests.training.workloads:DoubleLeNet", model_args={"init": "xavier"})
    ranks.run(2, killed, config, str(tmp_path), 2 * STEPS + 1, 0)
    longer = dataclasses.replace(config, epochs=EPOCHS + 1, shards=(3.0, 1.0))
    resumed = ranks.run(2, checkpointed, longer, str(tmp_path), 0)
    (whole,) = ranks.run(1, never_killed, dataclasses.replace(config, epochs=EPOCHS + 1))
    assert resumed[0]["resumed"]
    assert largest_difference(whole["state"], resumed[0]["state"]) < 1e-10


def test_a_users_model_that_has_changed_is_refused(tmp_path: Path) -> None:
    """The same name, other shapes: found when the parameters are loaded."""
    config = config_of(model="tests.training.workloads:changing_model", model_args={})
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


def test_after_the_last_epoch_there_is_nothing_to_go_on_with(tmp_path: Path) -> None:
    checkpointed(ALONE, config_of(epochs=1), str(tmp_path), 0)
    assert not list(tmp_path.iterdir())


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
    picked = checkpoints.find(config, worker)
    assert picked is not None
    return dict(train(config, worker, hooks=[checkpoints], picked=picked).details)


def details_until_killed(worker: Worker, config: TrainConfig, folder: str) -> dict[str, Any]:
    """The same of one that is killed in its second epoch."""

    class Details(Hook):
        def train_starts(self, trial: Trial) -> None:
            self.found = trial.details()

    details = Details()
    with contextlib.suppress(KilledError):
        checkpointed(worker, config, folder, 0, details, KillAfter(STEPS + 1))
    return details.found


def test_a_real_kill_under_torchrun(tmp_path: Path) -> None:
    """SIGKILL of the whole group while it trains; the same command goes on, and ends as an undisturbed one."""
    arguments = ["--model", "lenet", "--data", "digits", "--batch-size", "64", "--learning-rate", "0.1",
                 "--epochs", "12", "--threads", "1", "--device", "cpu"]  # fmt: skip
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m", "training"]
    store = ["--checkpoints", str(tmp_path / "checkpoints")]
    process = subprocess.Popen(
        [*command, *arguments, *store], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(3)]
    time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    resumed = subprocess.run([*command, *arguments, *store], capture_output=True, text=True, check=True).stdout
    whole = subprocess.run([*command, *arguments], capture_output=True, text=True, check=True).stdout
    assert [json.loads(line)["epoch"] for line in lines] == [1, 2, 3]
    assert curve(resumed) == curve(whole)
    assert len(curve(whole)) == 12


def curve(printed: str) -> list[tuple[float, float, float]]:
    """Losses and accuracies, epoch by epoch."""
    records = [json.loads(line) for line in printed.splitlines()]
    return [(r["train_loss"], r["test_loss"], r["test_accuracy"]) for r in records if "epoch" in r]


def test_everything_moved() -> None:
    """What these tests compare is not what the training began with."""
    from tests.training.helpers import run_training

    trained = run_training(ALONE, dataclasses.replace(config_of(**LENET), epochs=EPOCHS))
    assert smallest_movement(trained["first_state"], trained["state"]) > 1e-4
