"""`scalestudy plan`: which trials a study has, and how long they take by the last timings."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scalestudy.experiments.analysis.measures.units import money_text, plural, seconds_text
from scalestudy.experiments.plan.estimate import Estimate, LastTimings, Span, estimate
from scalestudy.experiments.plan.plan import Plan, make_plan
from scalestudy.experiments.spec.sections import Budget, Resources
from scalestudy.experiments.spec.study_spec import StudySpec
from scalestudy.orchestration.base.errors import RequestError
from scalestudy.orchestration.cluster.nodes import ClusterNode, choose_device
from scalestudy.orchestration.cluster.nodes import slots as slots_of
from scalestudy.orchestration.cluster.ray_private import gpu_type_here
from scalestudy.orchestration.commands.earlier import earlier_timings
from scalestudy.orchestration.commands.models import Variant, inspect_models
from scalestudy.orchestration.study.folders import read_trained_spec
from scalestudy.orchestration.study.opening import PreparedStudy, open_extended
from scalestudy.orchestration.study.ready import (
    check_callables,
    check_configs,
    check_data,
    known_trials,
    logical_cpus,
)
from scalestudy.orchestration.study.rehearsal import Rehearsal, kinds_of, rehearse_study
from scalestudy.orchestration.study.schedule import Costs, Room, Rule, Work, simulate, trainings_rule

NVIDIA_GPUS = Path("/proc/driver/nvidia/gpus")
NAMED_SOURCES = 3
NOT_TIMED = "time: not known: no earlier run of the same code and data tells how long the steps take"


@dataclass(frozen=True, kw_only=True)
class PlannedStudy:
    """The result of `plan`."""

    spec: StudySpec
    plan: Plan
    cost: Estimate | None  # None: see `estimate`
    seconds: Span | None  # from the first group's start to the last trial's end; None: unknown, and `why` says why
    why: str | None = None
    slots: Sequence[int]  # workers that fit each machine of the plan
    extends: str | None = None  # what an extended study has already; None: the study is new
    rehearsal: Rehearsal | None = None  # None: not asked for
    models: Sequence[Variant] = ()  # those that were rehearsed

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, for --json."""
        cost, worker_seconds = self.cost, self.cost.worker_seconds if self.cost else None
        counts: dict[str, Any] = {"budget": self.spec.budget.to_dict()}
        if cost:
            counts = {
                "trials": len(cost.trials),
                "epochs": cost.epochs,
                "worker_epochs": cost.worker_epochs,
                "timing_runs": len(cost.timing_runs),
                "timed": cost.timed,
            }
        figures = {
            **counts,
            "seconds": self.seconds._asdict() if self.seconds else None,
            "worker_seconds": worker_seconds._asdict() if worker_seconds else None,
            "why": self.why,
            "slots": list(self.slots),
            "rests_on": list(cost.rests_on) if cost else [],
        }
        more = {
            "estimate": figures,
            "extends": self.extends,
            "rehearsal": self.rehearsal.to_dict() if self.rehearsal else None,
            "models": [model.to_dict() for model in self.models],
        }
        return {**self.plan.to_dict(), **more}


def plan_study(
    source: str,
    overrides: Sequence[str] = (),
    *,
    slots: int | None = None,
    nodes: int = 1,
    storage: str | None = None,
    rehearse: bool = False,
    extend: str | Path | None = None,
) -> PlannedStudy:
    """Plan a study by the timings that earlier ones left. Write nothing.

    Args:
        source: a spec file, or the name of a study of the catalogue.
        overrides: as `run` takes them.
        slots: workers that fit each machine. None: as many as fit this one.
        nodes: number of machines.
        storage: a folder or URI with earlier studies, beside the usual places.
        rehearse: whether to try each kind of training, and show its model.
        extend: the folder of the study that the spec extends.

    Raises SpecError or RequestError for a study that can't run, and what `rehearse_study` raises.
    """
    spec = read_trained_spec(source, overrides)
    check_callables(spec)
    spec, plan, extends = (spec, make_plan(spec), None) if extend is None else what_is_left(open_extended(spec, extend))
    trials = known_trials(spec, plan)
    cluster = machines(spec.resources, slots, nodes, logical_cpus(plan, spec))
    device = choose_device(spec.resources.device, cluster)
    accelerator = gpu_type_here() if device == "cuda" and gpus_here() else ""
    timings = earlier_timings(spec, trials, device, storage, accelerator)
    rehearsal: Rehearsal | None = None
    models: Sequence[Variant] = ()
    if rehearse:
        root = check_data(spec)
        check_configs(trials, root)
        rehearsal = rehearse_study(spec, plan, trials, root)
    if rehearsal and not spec.workload.loop:
        unbuilt = [kind.trials[0].workload for name, kind in kinds_of(trials).items() if name in rehearsal.left_out]
        models = inspect_models([trial for trial in trials if trial.workload not in unbuilt], root)
    rule = trainings_rule(spec.resources, device, trains_for_all=spec.trains_for_all)
    fresh_workers = bool(spec.workload.loop) or (rehearsal is not None and bool(rehearsal.fresh_workers))
    room = room_of(spec, rule, device, cluster, fresh_workers=fresh_workers)
    cost = estimate(plan, LastTimings(timings), corners=trials, timed_alone=rule == "packed, then timed")
    seconds, why = how_long(cost, room) if cost else (None, at_most_words(spec.budget))
    return PlannedStudy(
        spec=spec,
        plan=plan,
        cost=cost,
        seconds=seconds,
        why=why,
        slots=[node.slots for node in room.nodes],
        extends=extends,
        rehearsal=rehearsal,
        models=models,
    )


def what_is_left(study: PreparedStudy) -> tuple[StudySpec, Plan, str]:
    """Return the spec and the plan of an extended study without the trials that have ended, and in words how many.

    The plan of a search, or of a factorised study, stays whole: only the run decides which trials follow.
    """
    ended = [trial for trial in study.plan.trials if trial.trial_id in study.history.ended]
    verb = "has ended and does" if len(ended) == 1 else "have ended and do"
    words = f"{plural(len(ended), 'trial')} of {study.folder.address} {verb} not run again"
    if study.plan.to_suggest or study.plan.factorised:
        counts = "the budget counts" if study.plan.is_adaptive else "the figures count"
        return study.spec, study.plan, f"{words}; {counts} them too"
    left = tuple(trial for trial in study.plan.trials if trial.trial_id not in study.history.ended)
    if not left:
        problem = f"--extend: {study.folder.address}: every trial of the spec has ended there"
        raise RequestError(problem, "add a value to the spec's sweep")
    return study.spec, replace(study.plan, trials=left), words


def how_long(cost: Estimate, room: Room) -> tuple[Span | None, str | None]:
    """Return how long the trials take in a room, by the engine's own decisions, or None and why it is not known."""
    if cost.spans is None:
        return None, NOT_TIMED
    trials, ends = cost.trials, []
    for seconds in zip(*cost.spans, strict=True):
        works = [
            Work(trial_id=str(number), num_workers=trial.num_gpus, duration=duration)
            for number, (trial, duration) in enumerate(zip(trials, seconds, strict=False))
        ]
        try:
            ends.append(simulate(works, room, Costs()).makespan + sum(seconds[len(trials) :]))
        except ValueError as error:
            return None, f"time not known: {error}; for other machines: --slots, --nodes"
    return Span(*ends), None


def at_most_words(budget: Budget) -> str:
    """Return when an adaptive search ends, in words."""
    texts = {
        "minutes": "{:g} min of wall time".format,
        "worker_hours": "{:g} worker-hours".format,
        "trials": lambda count: plural(count, "training"),
    }
    most = ", ".join(texts[key](value) for key, value in budget.limits.items())
    ends = "when it is sure of the answer"
    if budget.uses:
        ends += f", when another look costs more than it saves over {budget.uses:g} uses"
    return f"time: not known beforehand: the search ends {ends}, and at the latest with its budget, {most}"


def room_of(
    spec: StudySpec, rule: Rule, device: str, nodes: Sequence[ClusterNode], *, fresh_workers: bool = False
) -> Room:
    """Return the room that a study would have on these machines, and the engine's rules there.

    fresh_workers: whether a group trains one trial alone, as for a Ray Train loop.
    """
    wanted = spec.resources
    cpus, gpus = wanted.cpus_per_worker, wanted.gpus_per_worker
    return Room(
        nodes=tuple(slots_of(nodes, device=device, cpus_per_worker=cpus, gpus_per_worker=gpus)),
        exclusive=rule == "exclusive",
        trials_per_group=1 if fresh_workers else spec.limits.trials_per_group,
        placement=wanted.placement,
    )


def machines(resources: Resources, slots_each: int | None, count: int, logical_cpus: int | None) -> list[ClusterNode]:
    """Return the machines to plan for: `count` like this one, or each with room for `slots_each` workers.

    logical_cpus: of a cluster that a run would start here; None: one a core.
    """
    cpus, gpus = float(logical_cpus or os.cpu_count() or 1), float(gpus_here())
    if slots_each is not None:
        cpus = float(slots_each * resources.cpus_per_worker)
        gpus = slots_each * resources.gpus_per_worker if resources.device == "cuda" or gpus else 0.0
    return [ClusterNode(node_id=f"node-{n}", host=f"machine-{n}", cpus=cpus, gpus=gpus) for n in range(1, count + 1)]


def gpus_here() -> int:
    """Return the number of NVIDIA GPUs that this machine's driver lists, without importing PyTorch or Ray."""
    return len(list(NVIDIA_GPUS.glob("*"))) if NVIDIA_GPUS.is_dir() else 0


def time_lines(planned: PlannedStudy) -> list[str]:
    """Return lines that say how long the study takes, what it costs, and which timings say so."""
    cost, used = planned.cost, planned.cost.worker_seconds if planned.cost else None
    if planned.seconds is None or cost is None or used is None:
        return [planned.why or ""]
    more = len(cost.rests_on) - NAMED_SOURCES
    sources = ", ".join(cost.rests_on[:NAMED_SOURCES]) + (f" and {more} more" if more > 0 else "")
    room = " + ".join(map(str, planned.slots))
    may_end_early = planned.spec.search.scheduler != "none" or planned.spec.stops_at_target
    at_most = "at most " if planned.plan.to_suggest or may_end_early else ""
    lines = [
        f"time: {at_most}{_text(planned.seconds, seconds_text)} with room for {room} workers, by {sources}",
        f"worker-seconds: {at_most}{_text(used, '{:.0f}'.format)}",
    ]
    if price := planned.spec.targets.price_per_gpu_hour:
        hours = Span(*(price * seconds / 3_600 for seconds in used))
        lines.append(f"cost: {at_most}{_text(hours, money_text)} at {price:g} a GPU-hour")
    if scaled := len(cost.trials) - cost.timed:
        lines.append(
            f"{scaled} of {len(cost.trials)} trials have a num_gpus or batch size that was not timed: "
            "they count by the examples a second of the others"
        )
    return lines


def _text(span: Span, text: Callable[[float], str]) -> str:
    """Return a span as `about 12 min (10 min to 15 min)`; the middle alone if the ends have the same text."""
    low, middle, high = map(text, span)
    return f"about {middle}" if low == high else f"about {middle} ({low} to {high})"
