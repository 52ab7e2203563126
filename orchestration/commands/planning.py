"""`scalestudy plan`: which trials a study has, and about how long they take by the last timings."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scalestudy.experiments.analysis.measures.units import money_text, plural, seconds_text
from scalestudy.experiments.plan.estimate import Estimate, LastTimings, estimate
from scalestudy.experiments.plan.plan import Plan, make_plan
from scalestudy.experiments.spec.sections import Budget, Resources
from scalestudy.experiments.spec.study_spec import StudySpec
from scalestudy.orchestration.base.errors import RequestError
from scalestudy.orchestration.cluster.nodes import ClusterNode, choose_device
from scalestudy.orchestration.cluster.nodes import slots as slots_of
from scalestudy.orchestration.cluster.ray_private import gpu_type_here
from scalestudy.orchestration.commands.earlier import earlier_timings
from scalestudy.orchestration.commands.models import Variant, inspect_models
from scalestudy.orchestration.study.concurrency import sharing_rule
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

NVIDIA_GPUS = Path("/proc/driver/nvidia/gpus")
NAMED_SOURCES = 3
NOT_TIMED = "no earlier run of the same code and data tells how long the steps take"


@dataclass(frozen=True, kw_only=True)
class PlannedStudy:
    """The result of `plan`."""

    spec: StudySpec
    plan: Plan
    cost: Estimate | None  # None: see `estimate`
    seconds: float | None  # see `how_long`; None: unknown, and `why` says why
    why: str | None = None
    slots: Sequence[int]  # workers that fit each machine of the plan
    exclusive: bool  # whether a machine trains one trial at a time
    extends: str | None = None  # what an extended study has already; None: the study is new
    rehearsal: Rehearsal | None = None  # None: not asked for
    models: Sequence[Variant] = ()  # those that were rehearsed

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, for --json."""
        cost = self.cost
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
            "seconds": self.seconds,
            "worker_seconds": cost.worker_seconds if cost else None,
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
    rule = sharing_rule(spec, device)
    cpus, gpus = spec.resources.cpus_per_worker, spec.resources.gpus_per_worker
    room = [node.slots for node in slots_of(cluster, device=device, cpus_per_worker=cpus, gpus_per_worker=gpus)]
    cost = estimate(plan, LastTimings(timings), corners=trials, timed_alone=rule == "packed, then timed")
    why = why_unknown(cost, room) if cost else at_most_words(spec.budget)
    return PlannedStudy(
        spec=spec,
        plan=plan,
        cost=cost,
        seconds=how_long(cost, room, exclusive=rule == "exclusive") if cost and why is None else None,
        why=why,
        slots=room,
        exclusive=rule == "exclusive",
        extends=extends,
        rehearsal=rehearsal,
        models=models,
    )


def what_is_left(study: PreparedStudy) -> tuple[StudySpec, Plan, str]:
    """Return the spec and the plan of an extended study without the trials that have ended, and in words how many.

    The plan of a search stays whole: only the run decides which trials follow.
    """
    ended = [trial for trial in study.plan.trials if trial.trial_id in study.history.ended]
    verb = "has ended and does" if len(ended) == 1 else "have ended and do"
    words = f"{plural(len(ended), 'trial')} of {study.folder.address} {verb} not run again"
    if study.plan.to_suggest:
        counts = "the budget counts" if study.plan.is_adaptive else "the figures count"
        return study.spec, study.plan, f"{words}; {counts} them too"
    left = tuple(trial for trial in study.plan.trials if trial.trial_id not in study.history.ended)
    if not left:
        problem = f"--extend: {study.folder.address}: every trial of the spec has ended there"
        raise RequestError(problem, "add a value to the spec's sweep")
    return study.spec, replace(study.plan, trials=left), words


def how_long(cost: Estimate, slots: Sequence[int], *, exclusive: bool) -> float:
    """Return about how many seconds the trials of a timed plan take, and then its timing runs.

    That is each trial's seconds ÷ the trials of its size that fit at a time, summed, and no less than the longest
    trial. The starts of workers are left out.

    Args:
        cost: of the plan, timed.
        slots: workers that fit each machine.
        exclusive: whether a machine trains one trial at a time; a timing run has its machine to itself in any case.
    """
    known, count = cost.seconds or (), len(cost.trials)
    total = 0.0
    for trials, seconds, alone in (
        (cost.trials, known[:count], exclusive),
        (cost.timing_runs, known[count:], True),
    ):
        fitting = (trials_at_a_time(trial.num_gpus, slots, exclusive=alone) for trial in trials)
        shares = (each / fit for each, fit in zip(seconds, fitting, strict=True))
        total += max(sum(shares), max(seconds, default=0.0))
    return total


def trials_at_a_time(num_workers: int, slots: Sequence[int], *, exclusive: bool) -> int:
    """Return how many trials of a size fit at a time, each on as few machines as hold it; 0: not one fits.

    A trial that needs several machines counts as if it had them to itself. slots: workers that fit each machine, the
    same number on all. exclusive: whether a machine trains one trial at a time.
    """
    each, machines = slots[0], len(slots)
    if num_workers > each:
        return machines // math.ceil(num_workers / each) if each else 0
    return machines if exclusive else machines * (each // num_workers)


def why_unknown(cost: Estimate, slots: Sequence[int]) -> str | None:
    """Return why nothing tells how long a plan takes; None: it is known."""
    sizes = [trial.num_gpus for trial in (*cost.trials, *cost.timing_runs)]
    largest, most = max(sizes, default=0), sum(slots)
    if largest > most:
        room = f"there is room for {plural(most, 'worker')}, too few for num_gpus {largest}"
        return f"{room}; for other machines: --slots, --nodes"
    return NOT_TIMED if cost.seconds is None else None


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
    return f"the search ends {ends}, and at the latest with its budget, {most}"


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
    """Return lines that say about how long the study takes, what it costs, and which timings say so."""
    cost, used = planned.cost, planned.cost.worker_seconds if planned.cost else None
    if planned.seconds is None or cost is None or used is None:
        return [f"time: not known beforehand: {planned.why}"]
    may_end_early = planned.spec.search.scheduler != "none" or planned.spec.stops_at_target
    at_most = "at most " if planned.plan.to_suggest or may_end_early else ""
    several = len(planned.slots) > 1
    room = f"{plural(planned.slots[0], 'worker')}{f' on each of {len(planned.slots)} machines' if several else ''}"
    alone = f", one trial at a time{' on each' if several else ''}" if planned.exclusive else ""
    costs = f"{used:.0f} worker-seconds"
    if price := planned.spec.targets.price_per_gpu_hour:
        costs += f", {money_text(price * used / 3_600)} at {price:g} a GPU-hour"
    more = len(cost.rests_on) - NAMED_SOURCES
    sources = ", ".join(cost.rests_on[:NAMED_SOURCES]) + (f" and {more} more" if more > 0 else "")
    lines = [
        f"time: {at_most}about {seconds_text(planned.seconds)} with room for {room}{alone} ({costs}), by {sources}; "
        "the starts of workers come on top"
    ]
    if scaled := len(cost.trials) - cost.timed:
        lines.append(
            f"{scaled} of {len(cost.trials)} trials have a num_gpus or batch size that was not timed: "
            "they count by the examples a second of the others"
        )
    return lines
