"""Stage 2 for the eye: what `plan` foretells of a study on this machine, or on the room that the user names. Pure."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from experiments.estimate import trial_seconds
from experiments.plan import Plan
from experiments.spec import StudySpec
from experiments.spec_models import Resources
from orchestration.cluster import ClusterNode, choose_device, slots
from orchestration.schedule import NO_COSTS, Costs, Room, Schedule, Work, simulate, trainings_rule

NVIDIA_GPUS = Path("/proc/driver/nvidia/gpus")


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """A plan's expected schedule.

    Attributes:
        room: what the trials run on.
        unit: `seconds`, or `epochs` where not every trial has an earlier timing: each epoch then counts as one unit.
        schedule: None where there is none, for the reason in `why`.
        why: why there is no schedule, or none in seconds.
        at_most: a scheduler may stop trials early, which the schedule does not foresee.
    """

    room: Room
    unit: Literal["seconds", "epochs"]
    schedule: Schedule | None
    why: str | None
    at_most: bool = False

    @property
    def makespan_seconds(self) -> float | None:
        """From the first group's order to the last trial's end; None where it is not known."""
        return self.schedule.makespan if self.schedule and self.unit == "seconds" else None

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for --json."""
        return {
            "makespan_seconds": self.makespan_seconds,
            "why": self.why,
            "unit": self.unit,
            "at_most": self.at_most,
            "slots": [node.slots for node in self.room.nodes],
            "exclusive": self.room.exclusive,
            **(self.schedule.to_dict() if self.schedule else {}),
        }


def forecast(
    spec: StudySpec, plan: Plan, earlier: Iterable[Mapping[str, Any]], nodes: Sequence[ClusterNode]
) -> Forecast:
    """When each trial of a plan is expected to run; of a factorised one each training.

    earlier: trials as `plan.estimate` takes them. nodes: the machines, as Ray would see them.
    """
    room = room_of(spec, nodes)
    if plan.to_suggest:
        later = f"{plan.to_suggest.method} chooses the points while the study runs"
        return Forecast(room=room, unit="epochs", schedule=None, why=later)
    seconds = trial_seconds(plan.trials, earlier)
    unknown = sum(each is None for each in seconds)
    durations = [
        trial.train["epochs"] if unknown else each or 0.0 for trial, each in zip(plan.trials, seconds, strict=True)
    ]
    works = [
        Work(trial_id=trial.trial_id, num_workers=trial.num_gpus, duration=duration)
        for trial, duration in zip(plan.trials, durations, strict=True)
    ]
    why: str | None = f"no earlier timing for {unknown} of {len(seconds)} trials" if unknown else None
    schedule: Schedule | None = None
    try:
        schedule = simulate(works, room, NO_COSTS if unknown else Costs())
    except ValueError as error:
        why = f"{error}; for other machines: --slots, --nodes"
    early = spec.search.scheduler != "none"
    return Forecast(room=room, unit="epochs" if unknown else "seconds", schedule=schedule, why=why, at_most=early)


def room_of(spec: StudySpec, nodes: Sequence[ClusterNode]) -> Room:
    """The room that a study would have on these machines, and the engine's rules there."""
    wanted = spec.resources
    device = choose_device(wanted.device, nodes)
    room = slots(nodes, device=device, cpus_per_worker=wanted.cpus_per_worker, gpus_per_worker=wanted.gpus_per_worker)
    factorised = spec.search.method == "factorised"
    exclusive = trainings_rule(wanted, device, factorised=factorised) == "exclusive"
    return Room(nodes=tuple(room), exclusive=exclusive, trials_per_group=spec.limits.trials_per_group)


def machines(resources: Resources, slots_each: int | None, count: int, logical_cpus: int | None) -> list[ClusterNode]:
    """The machines to plan for: `count` like this one, or each with room for so many workers.

    logical_cpus: of a cluster that a run would start here; None: one a core.
    """
    cpus, gpus = float(logical_cpus or os.cpu_count() or 1), float(gpus_here())
    if slots_each is not None:
        cpus = float(slots_each * resources.cpus_per_worker)
        gpus = slots_each * resources.gpus_per_worker if resources.device == "cuda" or gpus else 0.0
    return [ClusterNode(node_id=f"node-{n}", host=f"machine-{n}", cpus=cpus, gpus=gpus) for n in range(1, count + 1)]


def gpus_here() -> int:
    """NVIDIA GPUs of this machine, as its driver lists them: an answer without importing PyTorch or Ray."""
    return len(list(NVIDIA_GPUS.glob("*"))) if NVIDIA_GPUS.is_dir() else 0
