"""The timing runs that follow a sweep whose trials ran side by side, or that an adaptive search asks for. Pure.

Trials that share a node disturb each other's timings. So each kind of step gets short runs that have the node to
themselves, and timings are taken from these (docs/concepts.md: Timed alone). A kind of step is one combination of the
swept parameters that change the time of a step.

Within a run steps take the same time, and between runs they differ: memory lies elsewhere, a neighbour came or went. So
each kind of step is timed by separate runs, with runs of other kinds between them.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from scalestudy.experiments.plan.plan import TrialPlan, step_params, trial_id
from scalestudy.experiments.plan.timing_flags import TimingFlag
from scalestudy.experiments.spec.sections import NO_STEP, length_of
from scalestudy.experiments.spec.study_spec import StudySpec

TIMING_RUNS = 2
"""Timing runs of each kind of step."""
TIMED_STEPS = 60
"""Least steps of a timing run after its warm-up."""
TIMED_SECONDS = 2.0
"""Least seconds of these steps: sixty of a small model take a GPU some milliseconds."""
LEAST_WARM_UP = 5
"""Least steps of its warm-up, even if the spec's trials have fewer: such a run has no other warm-up."""
LOOP_REPORTS = 3
"""Reports of a timing run of a Ray Train loop. The first one, with the loop's set-up, is left out of its times."""
TIMED = ("finished", "at_target", "stopped")
"""Statuses of trials whose epochs were all timed."""

Record = Mapping[str, Any]


def timing_trials(spec: StudySpec, trials: Iterable[TrialPlan], records: Mapping[str, Record]) -> list[TrialPlan]:
    """Return the timing runs that a study needs when its sweep is over.

    Each round times every kind of step once. The largest num_gpus comes first, so that the sweep's last groups are used
    before others start. The next round runs backwards, so that it begins with the group at hand. A kind of step is left
    out if no trial of it came to its end, or if none of these shared its node. That one was starved is no reason: what
    took its cores is not the study's, and would disturb a timing run too. A Ray Train loop that tells no examples has
    none.

    Args:
        spec: of the study.
        trials: of the study, in their order, with those that a search made.
        records: lines of `trials.jsonl`, by trial id.
    """
    alike: dict[str, list[tuple[TrialPlan, Record]]] = {}
    for trial in trials:
        record = records.get(trial.trial_id)
        if trial.kind == "training" and record and record["status"] in TIMED and record.get("epochs"):
            alike.setdefault(step_key(trial.params), []).append((trial, record))

    resources = spec.to_dict()["resources"]
    rounds: list[list[TrialPlan]] = [[] for _ in range(TIMING_RUNS)]
    for pairs in alike.values():
        if not any(TimingFlag.SHARED_NODE in record.get("flags", ()) for _, record in pairs):
            continue
        first, record = pairs[0]
        if spec.workload.loop and not all(epoch.get("samples") for epoch in record["epochs"]):
            continue  # seconds alone say nothing of its steps
        for number, timings in enumerate(rounds):
            timings.append(timing_trial(spec, first, number, record, resources=resources))
    return [
        trial
        for number, timings in enumerate(rounds)
        for trial in sorted(timings, key=lambda trial: trial.num_gpus * (-1) ** (number + 1))
    ]


def timing_trial(
    spec: StudySpec,
    like: TrialPlan,
    number: int,
    record: Record | None = None,
    *,
    resources: Mapping[str, Any] | None = None,
) -> TrialPlan:
    """Return a timing run of the steps of a training.

    number: of the run among those of its kind of step, from 0. record: of such a training, which says how many steps an
    epoch has; None: none has run yet. resources: the spec's, as plain data.
    """
    train = timed_reports() if spec.workload.loop else _timed_training(like, record)
    hashed = {key: value for key, value in train.items() if key not in NO_STEP}
    # The id leaves out learning rate and seed: when the study is extended, another trial may be the first.
    of_run = {**like.params, "learning_rate": None, "seed": number or None}
    return replace(
        like,
        trial_id=trial_id(of_run, like.workload, hashed, resources or spec.to_dict()["resources"]),
        kind="timing",
        train=train,
    )


def timed_reports() -> dict[str, Any]:
    """Return the `train` of the timing run for a trial of a Ray Train loop, which makes reports and no steps."""
    return {"epochs": LOOP_REPORTS}


def _timed_training(like: TrialPlan, record: Record | None) -> dict[str, Any]:
    """Return the `train` of the timing run for a trial of the built-in loop."""
    most = timed_steps(like)
    return {
        **like.train,
        "warm_up_steps": most - TIMED_STEPS,
        "max_steps": most,
        **_longer(like.train, most, record),
        "checkpoint_every": 0,
        "min_seconds": TIMED_SECONDS,
    }


def _longer(train: Mapping[str, Any], most: int, record: Record | None) -> dict[str, Any]:
    """Return keys of `train` that let a timing run make so many steps.

    A training that is not counted in epochs has one record. An epoch has a step at least.
    """
    length = length_of(train)
    if length.unit != "epochs":
        return {"steps": max(length.steps or 0, most), "eval_every": {"steps": most}, "tokens": None}
    periods = math.ceil(most / record["epochs"][0]["steps"]) if record else most
    return {"epochs": max(length.length, periods * length.period)}


def timing_run_seconds(warm_up_steps: int, step: float) -> float:
    """Return how long the steps of a timing run take. step: seconds of one. warm_up_steps: of the study's trainings."""
    return _warm_up(warm_up_steps) * step + max(TIMED_STEPS * step, TIMED_SECONDS)


def timed_steps(like: TrialPlan) -> int:
    """Return the steps of the timing run for a trial, with its warm-up."""
    return _warm_up(int(like.train["warm_up_steps"])) + TIMED_STEPS


def _warm_up(steps: int) -> int:
    """Return the warm-up steps of a timing run. steps: those of the study's trainings."""
    return max(steps, LEAST_WARM_UP)


def timing_kinds(trials: Iterable[TrialPlan]) -> list[TrialPlan]:
    """Return the first trial of each kind of step."""
    first: dict[str, TrialPlan] = {}
    for trial in trials:
        first.setdefault(step_key(trial.params), trial)
    return list(first.values())


def step_key(params: Mapping[str, Any]) -> str:
    """Return the kind of a trial's steps. Trials with the same key have steps of the same duration."""
    return json.dumps(step_params(params), sort_keys=True)
