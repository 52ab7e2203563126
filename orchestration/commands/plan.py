"""`scalestudy plan`: what a study costs, by which timings, and when each trial is expected to run, as bars."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from scalestudy.experiments.analysis.measures.units import plural
from scalestudy.experiments.plan.estimate import Between, Estimate, estimate, trial_spans
from scalestudy.experiments.plan.plan import Plan, make_plan
from scalestudy.experiments.plan.timing_runs import TIMING_RUNS
from scalestudy.experiments.spec.sections import Resources
from scalestudy.experiments.spec.study_spec import StudySpec
from scalestudy.orchestration.base.errors import RequestError
from scalestudy.orchestration.cluster.nodes import ClusterNode, choose_device, slots
from scalestudy.orchestration.cluster.ray_private import gpu_type_here
from scalestudy.orchestration.commands.earlier import earlier_timings
from scalestudy.orchestration.study.folders import read_spec
from scalestudy.orchestration.study.opening import PreparedStudy, open_extended
from scalestudy.orchestration.study.ready import (
    check_callables,
    check_configs,
    check_data,
    known_trials,
    logical_cpus,
)
from scalestudy.orchestration.study.rehearsal import Rehearsal, rehearse_study
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
        unit: `seconds`, or `epochs` (with `eval_every` or `steps`: `evaluations`) where not every trial has an
            earlier timing: each then counts as one unit.
        schedule: None where there is none, for the reason in `why`.
        why: why there is no schedule, or none in seconds.
        scaled: trials whose seconds are scaled from timings of another num_gpus or batch size.
        at_most: trials may stop early, by a scheduler or at the target, which the schedule does not foresee.
    """

    room: Room
    unit: Literal["seconds", "epochs", "evaluations"]
    schedule: Schedule | None
    why: str | None
    at_most: bool = False
    scaled: int = 0

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
            "scaled": self.scaled,
            "slots": [node.slots for node in self.room.nodes],
            "exclusive": self.room.exclusive,
            **(self.schedule.to_dict() if self.schedule else {}),
        }


@dataclass(frozen=True, kw_only=True)
class PlannedStudy:
    """What `plan` says of a study.

    rests_on: the timings behind its figures, a line each. extends: what an extended study has already; None: it is new.
    rehearsal: what it did; None: it was not asked for.
    """

    spec: StudySpec
    plan: Plan
    cost: Estimate
    expected: Forecast
    rests_on: tuple[str, ...]
    extends: str | None = None
    rehearsal: Rehearsal | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for --json."""
        figures = {"estimate": self.cost.to_dict(), "schedule": self.expected.to_dict()}
        rehearsal = self.rehearsal.to_dict() if self.rehearsal else None
        words = {"rests_on": list(self.rests_on), "extends": self.extends, "rehearsal": rehearsal}
        return {**self.plan.to_dict(), **figures, **words}


def plan_study(
    source: str,
    overrides: Sequence[str] = (),
    *,
    slots: int | None = None,
    nodes: int = 1,
    storage: str | None = None,
    measure: bool = False,
    rehearse: bool = False,
    extend: str | Path | None = None,
) -> PlannedStudy:
    """Plans a study by the timings that earlier ones left; with `measure` also by some steps that are trained now.
    With `rehearse` it makes a step of each kind of training.

    storage: a folder or URI with earlier studies, beside the usual places. extend: of the study that the spec extends.
    Raises SpecError or RequestError for a study that can't be, and what `rehearse_study` and `measure_cells` raise.
    """
    from scalestudy.orchestration.commands.measure import measure_cells

    spec = read_spec(source, overrides)
    check_callables(spec)
    spec, plan, extends = (spec, make_plan(spec), None) if extend is None else what_is_left(open_extended(spec, extend))
    trials = known_trials(spec, plan)
    room = machines(spec.resources, slots, nodes, logical_cpus(plan, spec))
    device, threads = choose_device(spec.resources.device, room), spec.resources.cpus_per_worker
    accelerator = gpu_type_here() if device == "cuda" and gpus_here() else ""
    earlier = earlier_timings(spec, trials, device, storage, accelerator)
    timed, rests_on = list(earlier.trials), [words] if (words := earlier.words()) else []
    rehearsal = None
    if rehearse:
        root = check_data(spec)
        check_configs(trials, root)
        rehearsal = rehearse_study(trials, root)
    if measure:
        if device == "cuda" and not gpus_here():
            problem = "--measure: the plan is for workers with a GPU, and this machine has none"
            raise RequestError(problem, "measure on a machine that has, or set resources.device: cpu")
        root = check_data(spec)
        check_configs(trials, root)
        measured = measure_cells(trials, root, device=device, threads=threads)
        timed += measured.trials
        rests_on.append(measured.words)
    cost = estimate(plan, timed, TIMING_RUNS, corners=trials)
    return PlannedStudy(
        spec=spec,
        plan=plan,
        cost=cost,
        expected=forecast(spec, plan, timed, room),
        rests_on=tuple(rests_on),
        extends=extends,
        rehearsal=rehearsal,
    )


def what_is_left(study: PreparedStudy) -> tuple[StudySpec, Plan, str]:
    """The spec and the plan of an extended study without the trials that have ended, and how many these are, in words.

    Of a search, and of a factorised study, the plan stays whole: which trials follow is known only after the run.
    """
    ended = [trial for trial in study.plan.trials if trial.trial_id in study.history.ended]
    verb = "has ended and does" if len(ended) == 1 else "have ended and do"
    words = f"{plural(len(ended), 'trial')} of {study.folder.address} {verb} not run again"
    if study.plan.to_suggest or study.plan.factorised:
        return study.spec, study.plan, f"{words}; the figures count them too"
    left = tuple(trial for trial in study.plan.trials if trial.trial_id not in study.history.ended)
    if not left:
        problem = f"--extend: {study.folder.address}: every trial of the spec has ended there"
        raise RequestError(problem, "add a value to the spec's sweep")
    return study.spec, replace(study.plan, trials=left), words


def forecast(
    spec: StudySpec, plan: Plan, earlier: Iterable[Mapping[str, Any]], nodes: Sequence[ClusterNode]
) -> Forecast:
    """When each trial of a plan is expected to run; of a factorised one each training.

    earlier: trials as `plan.estimate` takes them. nodes: the machines, as Ray would see them.
    """
    room = room_of(spec, nodes)
    periods: Literal["epochs", "evaluations"] = "epochs" if spec.train.period_word == "epoch" else "evaluations"
    if plan.to_suggest:
        later = f"{plan.to_suggest.method} chooses the points while the study runs"
        return Forecast(room=room, unit=periods, schedule=None, why=later)
    spans = trial_spans(plan.trials, earlier)
    known = [span for span in spans if span is not None]
    unknown = len(spans) - len(known)
    durations = [trial.evaluations for trial in plan.trials] if unknown else [span.middle for span in known]
    works = [
        Work(trial_id=trial.trial_id, num_workers=trial.num_gpus, duration=duration)
        for trial, duration in zip(plan.trials, durations, strict=True)
    ]
    why: str | None = f"no earlier timing for {unknown} of {len(spans)} trials" if unknown else None
    schedule: Schedule | None = None
    try:
        schedule = simulate(works, room, NO_COSTS if unknown else Costs())
    except ValueError as error:
        why = f"{error}; for other machines: --slots, --nodes"
    early = spec.search.scheduler != "none" or spec.stops_at_target
    return Forecast(
        room=room,
        unit=periods if unknown else "seconds",
        schedule=schedule,
        why=why,
        at_most=early,
        scaled=0 if unknown else sum(not span.timed for span in known),
    )


def room_of(spec: StudySpec, nodes: Sequence[ClusterNode]) -> Room:
    """The room that a study would have on these machines, and the engine's rules there."""
    wanted = spec.resources
    device = choose_device(wanted.device, nodes)
    room = slots(nodes, device=device, cpus_per_worker=wanted.cpus_per_worker, gpus_per_worker=wanted.gpus_per_worker)
    factorised = spec.search.method == "factorised"
    exclusive = trainings_rule(wanted, device, factorised=factorised) == "exclusive"
    return Room(
        nodes=tuple(room),
        exclusive=exclusive,
        trials_per_group=spec.limits.trials_per_group,
        placement=wanted.placement,
    )


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
AROUND_SECONDS = 25
"""From a command's start to its study's, and from the study's end to the command's, on two cores."""
MOST_GROUPS = 16
BUSY, STARTING, IDLE, ABSENT = "█", "░", "·", " "


def cost_lines(cost: Estimate, price: float | None, rests_on: Sequence[str] = ()) -> list[str]:
    """What a study costs, with intervals, and what these figures rest on. price: of a GPU-hour."""
    between, on_gpus = cost.seconds_between, cost.worker_seconds_between
    if between is None or on_gpus is None:
        how = "--measure times one cell now" if not rests_on else "the trials timed are of other ways of training"
        return [f"time: not known before a first run ({cost.why}); {how}"]
    if cost.seconds is not None and cost.worker_seconds is not None:
        ends, gpu_ends = _between(between, duration_text), _between(on_gpus, "{:.0f}".format)
        times = f"about {duration_text(cost.seconds)} one trial at a time{f' ({ends})' if ' to ' in ends else ''}"
        times += f", {cost.worker_seconds:.0f} worker-seconds{f' ({gpu_ends})' if ' to ' in gpu_ends else ''}"
    else:
        times = f"{_between(between, duration_text)} one trial at a time"
        times += f", {_between(on_gpus, '{:.0f}'.format)} worker-seconds"
    lines = [f"time: {times}, from {'; '.join(rests_on) or 'earlier runs'}"]
    if cost.seconds is None:
        lines.append(
            f"{cost.timed} of {cost.trials} trials have a num_gpus and a batch size that were timed; the times of the "
            "others are scaled from the nearest"
        )
    if price:
        hours = [seconds / 3_600 for seconds in on_gpus]
        lines.append(f"cost: {_between((price * hours[0], price * hours[1]), '{:.3g}'.format)} at {price:g} a GPU-hour")
    return lines


def _between(ends: Between, text: Callable[[float], str]) -> str:
    """`9 s to 12 s`; one of the two if they are written alike."""
    low, high = map(text, ends)
    return low if low == high else f"{low} to {high}"


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
    spanning = f"; {_trials(schedule.spanning)} on several nodes" if schedule.spanning else ""
    starts = f"workers are started {_times(len(schedule.groups))}"
    if schedule.evictions:
        starts += f", {_times(schedule.evictions)} in the room of others that end for them"
    most = "at most, because trials may stop early: " if forecast.at_most else ""
    if forecast.unit == "seconds":
        bound = duration_text(schedule.lower_bound)
        about = "roughly" if forecast.scaled else "about"
        times = f"{about} {duration_text(schedule.makespan)}, {bound} without the starts of workers"
        times += f"; Ray's start and end take some {AROUND_SECONDS} s more"
    else:
        times = f"{schedule.makespan:.0f} {forecast.unit} one after another; in seconds not known ({forecast.why})"
    return [f"schedule: {most}{times}", f"with room for {slots} workers, {rule}: {starts}{spanning}"]


def duration_text(seconds: float) -> str:
    """`48 s`, `12 min`, `3.5 h`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7_200 else f"{seconds / 3_600:.1f} h"


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def _name(group: GroupSpan) -> str:
    return f"{group.num_workers} worker{'s' if group.num_workers > 1 else ''}"


def _trials(count: int) -> str:
    return f"{count} trial{'' if count == 1 else 's'}"
