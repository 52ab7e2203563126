"""A trial of worker groups that a test harms in its middle."""

from __future__ import annotations

from pathlib import Path

from scalestudy.orchestration.groups.events import EpochDone
from tests.support.groups import Pool, wait_until
from tests.support.processes import children_of, title_of

SLOW = "tests.support.user_models:Slow"


def slow_trial(pool: Pool, folder: Path, *, checkpointed: bool = True) -> tuple[str, dict[int, int]]:
    """A trial of two workers in its second epoch; its id and its workers' processes by rank."""
    pids = folder / "pids"
    pids.mkdir()
    arguments = {"seconds": 0.1, "pids": str(pids)}
    checkpoints = folder / "checkpoints" if checkpointed else None
    trial_id = pool.request(2, checkpoints, model=SLOW, model_args=arguments, epochs=4)
    pool.events(trial_id, until=lambda event: isinstance(event, EpochDone))
    if checkpoints:
        wait_until(lambda: list(checkpoints.glob("*/manifest.json")))
    ranks = dict(path.name.split("-") for path in pids.iterdir())
    return trial_id, {int(rank): int(pid) for rank, pid in ranks.items()}


def controllers_of(parent: int) -> list[int]:
    """The Ray Train controllers among the children of a process."""
    return [pid for pid in children_of(parent) if "TrainController" in title_of(pid)]
