"""Checkpoints: a training that rank 0 is asked to leave is left by all ranks at one step, and goes on to the bit."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scalestudy.training.checkpoint.hook import MOST_BETWEEN, Preemption
from scalestudy.training.config import TrainConfig
from scalestudy.training.distributed import Worker
from scalestudy.training.loop.hooks import Hook
from scalestudy.training.loop.trial import Trial
from scalestudy.training.registry import GRADIENT_SYNCS
from tests.support.gloo import GlooPool
from tests.support.training.helpers import ALONE
from tests.support.training.resuming import (
    BATCH_NORM,
    DROPOUT,
    EPOCHS,
    LENET,
    MOMENTUM,
    STEPS,
    check_same,
    checkpointed,
    config_of,
    never_killed,
)


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
