"""How the gradients of all workers become one sum; a strategy by name.

Imports the ground floor.
"""

from __future__ import annotations

from scalestudy.training.distributed import Worker
from scalestudy.training.exceptions import InputError
from scalestudy.training.gradient_sync.base import GradientSync, StepPlan, SyncOptions
from scalestudy.training.registry import GRADIENT_SYNCS, call_with, resolve_field
from scalestudy.training.task import ShardLoss

__all__ = ["GradientSync", "StepPlan", "SyncOptions", "make_gradient_sync"]


def make_gradient_sync(
    name: str, shard_loss: ShardLoss, worker: Worker, options: SyncOptions | None = None
) -> GradientSync:
    """Make the strategy of that name for this trial. One worker gets the base class, which synchronises nothing.

    Raises ValueError if the name is unknown or a user's callable returns no GradientSync.
    """
    strategy = resolve_field("gradient_sync", name, GRADIENT_SYNCS)
    chosen = options or SyncOptions()
    if worker.world_size == 1:
        return GradientSync(shard_loss, worker, chosen)
    sync = call_with(strategy, f"gradient_sync: {name!r}", shard_loss, worker, chosen)
    if not isinstance(sync, GradientSync):
        raise InputError(
            f"gradient_sync: {name!r} gave a {type(sync).__name__}",
            "the callable must return a scalestudy.training.gradient_sync.GradientSync",
        )
    return sync
