"""Stage 4, worker groups: tells the books, from a group's Ray Train controller, that it lives and who has died."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from ray.train import UserCallback
from ray.train.v2._internal.execution.callback import ControllerCallback

from orchestration.failures import Cause, describe
from orchestration.kernel_kills import killed_by_kernel
from orchestration.process_group import incarnation

ANSWER_SECONDS = 30.0


class ControllerHandle(ControllerCallback):
    """Gives the books a handle of the controller: `fit()` ends with it, even while it waits for workers.

    A callback of its own: of a `UserCallback`, Ray Train calls the public methods only.
    """

    def __init__(self, groups: Any, group_id: str) -> None:
        """groups: the actor that keeps the books."""
        self._groups, self._group_id = groups, group_id

    def after_controller_start(self, train_run_context: Any) -> None:
        """Runs in the controller, before it starts workers."""
        import ray

        self._groups.controller_started.remote(self._group_id, ray.get_runtime_context().current_actor)


class NotWantedError(RuntimeError):
    """The group is not to be started again."""


class GroupWatch(UserCallback):
    """Runs in the controller. What it raises ends the group's `fit()` without another start of the workers."""

    def __init__(self, groups: Any, group_id: str) -> None:
        """groups: the actor that keeps the books."""
        self._groups, self._group_id = groups, group_id

    def after_exception(self, run_context: Any, worker_exceptions: Mapping[int, Exception]) -> None:
        """Some workers have raised or died; raises if the group is to end, or the books are gone."""
        import ray

        killed, cause = out_of_memory_kills(worker_exceptions), cause_of(worker_exceptions)
        if cause == "worker_lost" and not killed:
            killed = self._kernel_kills(died(worker_exceptions))
        call = self._groups.workers_lost.remote(self._group_id, incarnation(), killed, cause)
        if not ray.get(call, timeout=ANSWER_SECONDS):
            raise NotWantedError(f"{self._group_id} was told to end")

    def _kernel_kills(self, ranks: Set[int]) -> dict[int, str]:
        import ray

        if not ranks:
            return {}
        counts = ray.get(self._groups.kernel_kills.remote(self._group_id), timeout=ANSWER_SECONDS)
        of_the_dead = {rank: count for rank, count in counts.items() if rank in ranks}
        return killed_by_kernel(of_the_dead, here=ray.get_runtime_context().get_node_id())


def died(errors: Mapping[int, BaseException]) -> set[int]:
    """The ranks whose process is gone; the others have raised, as a collective does that has lost its peer."""
    from ray.exceptions import RayActorError

    return {rank for rank, error in errors.items() if isinstance(_reason(error), RayActorError)}


def out_of_memory_kills(errors: Mapping[int, BaseException]) -> dict[int, str]:
    """What Ray says of the workers that its memory monitor has killed, by rank."""
    from ray.exceptions import OutOfMemoryError

    reasons = {rank: _reason(error) for rank, error in errors.items()}
    return {rank: describe(reason) for rank, reason in reasons.items() if isinstance(reason, OutOfMemoryError)}


def cause_of(errors: Mapping[int, BaseException]) -> Cause:
    """`node_lost` if Ray says of any worker that its node has died, else `worker_lost`."""
    return "node_lost" if any("node has died" in str(_reason(error)) for error in errors.values()) else "worker_lost"


def _reason(error: BaseException) -> BaseException:
    """Ray Train wraps what its health check has met."""
    return getattr(error, "health_check_failure", error)
