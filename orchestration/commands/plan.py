"""`scalestudy plan`: when each trial of a study is expected to run, as bars."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from scalestudy.experiments.plan.estimate import trial_seconds
from scalestudy.experiments.plan.plan import Plan
from scalestudy.experiments.spec.sections import Resources
from scalestudy.experiments.spec.study_spec import StudySpec
from scalestudy.orchestration.cluster.nodes import ClusterNode, choose_device, slots
from scalestudy.orchestration.study.schedule import (
    NO_COSTS,
    Costs,
    GroupSpan,
    Room,
    Schedule,
    TrialSpan,
    Work,
    simulate,
    trainings_rule,
)

NVIDIA_GPUS = Path("/proc/driver/nvidia/gpus")


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """A plan's expected schedule.

    Attributes:
        room: what the trials run on.
        unit: `seconds`, or `epochs` where not every trial has an earlier timing: each epoch then counts as one unit.
        schedule: None where there is none, for the reason in `why`.
        why: why there is no schedule, or none in seconds.
        at_most: trials may stop early, by a scheduler or at the target, which the schedule does not foresee.
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
    early = spec.search.scheduler != "none" or spec.stops_at_target
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


BAR_WIDTH = 60
MOST_GROUPS = 16
BUSY, STARTING, IDLE, ABSENT = "█", "░", "·", " "


def forecast_lines(forecast: Forecast) -> list[str]:
    """The expected schedule: groups as bars, then makespan, bound, starts and evictions."""
    schedule = forecast.schedule
    if schedule is None:
        return [f"schedule: none ({forecast.why})"]
    return [*_bars(schedule, forecast.unit), *_summary(forecast, schedule)]


def _bars(schedule: Schedule, unit: str) -> list[str]:
    if not schedule.makespan:
        return []
    drawn = schedule.groups[:MOST_GROUPS]
    by_group: dict[str, list[TrialSpan]] = {group.group_id: [] for group in drawn}
    for span in schedule.trials:
        if span.group_id in by_group:
            by_group[span.group_id].append(span)
    width = max(len(_name(group)) for group in drawn)
    lines = [
        f"{_name(group):<{width}} ▕{bar(group, by_group[group.group_id], schedule.makespan)}▏ {_trials(group.served)}"
        for group in drawn
    ]
    hidden = len(schedule.groups) - len(drawn)
    rest = [f"… and {hidden} more groups"] if hidden else []
    end = f"{schedule.makespan:.0f} {unit}"
    axis = f"{'':<{width}}  0{end:>{BAR_WIDTH - 1}}"
    return [*lines, *rest, f"{axis}   {STARTING} starts  {BUSY} trains  {IDLE} waits"]


def bar(group: GroupSpan, spans: Sequence[TrialSpan], makespan: float, width: int = BAR_WIDTH) -> str:
    """A group's life over time, in so many characters: what it does in the middle of each of them."""
    stopped = makespan if group.stopped is None else group.stopped
    ordered = sorted(spans, key=lambda span: span.start)
    letters, position = [], 0
    for index in range(width):
        now = (index + 0.5) / width * makespan
        while position < len(ordered) and ordered[position].end <= now:
            position += 1
        if not group.ordered <= now <= stopped:
            letters.append(ABSENT)
        elif now < group.ready:
            letters.append(STARTING)
        else:
            busy = position < len(ordered) and ordered[position].start <= now
            letters.append(BUSY if busy else IDLE)
    return "".join(letters)


def _summary(forecast: Forecast, schedule: Schedule) -> list[str]:
    slots = " + ".join(str(node.slots) for node in forecast.room.nodes)
    rule = "one trial at a time on a machine" if forecast.room.exclusive else "trials side by side where they fit"
    starts = f"{len(schedule.groups)} group starts, {schedule.evictions} of them ended early to make room"
    most = "at most, because trials may stop early: " if forecast.at_most else ""
    if forecast.unit == "seconds":
        bound = duration_text(schedule.lower_bound)
        times = f"about {duration_text(schedule.makespan)}; {bound} if starting workers took no time"
    else:
        times = f"{schedule.makespan:.0f} epochs one after another; in seconds not known ({forecast.why})"
    return [f"schedule: {most}{times}", f"with room for {slots} workers, {rule}: {starts}"]


def duration_text(seconds: float) -> str:
    """`48 s`, `12 min`, `3.5 h`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7_200 else f"{seconds / 3_600:.1f} h"


def _name(group: GroupSpan) -> str:
    return f"{group.num_workers} worker{'s' if group.num_workers > 1 else ''}"


def _trials(count: int) -> str:
    return f"{count} trial{'' if count == 1 else 's'}"
