"""The timing runs that follow a factorised sweep, or one whose trials ran side by side. Pure.

Trials that share a node disturb each other's timings. So each kind of step gets one short run that has the node to
itself, and timings are taken from that run (docs/concepts.md: Timed alone). A kind of step is one combination of the
swept parameters that change the time of a step.
"""

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from scalestudy.experiments.plan.plan import NO_TIME, TrialPlan, step_params, trial_id
from scalestudy.experiments.spec.search_space import Factorised
from scalestudy.experiments.spec.study_spec import StudySpec

TIMED_STEPS = 60
"""Steps of a timing run after its warm-up."""
LEAST_WARM_UP = 5
"""Least steps of its warm-up, even if the spec's trials have fewer: such a run has no other warm-up."""
TIMED_STATUSES = ("finished", "stopped")
DISTURBED = "shared_node"

Record = Mapping[str, Any]


def timing_trials(
    spec: StudySpec, trials: Iterable[TrialPlan], records: Mapping[str, Record], factorised: Factorised | None = None
) -> list[TrialPlan]:
    """The timing runs that a study needs when its sweep is over.

    The largest num_gpus comes first, so that the groups that the sweep has left are used before others start. A kind of
    step is left out if no trial of it finished or stopped, or if none of these was disturbed. A factorised study times
    every kind of step of its trainings with every num_gpus of its grid, disturbed or not.

    Args:
        spec: of the study.
        trials: of the study, in their order, with those that a search made. In a factorised study, the trainings.
        records: lines of `trials.jsonl`, by trial id.
        factorised: how the study's grid is divided. None: it is not.
    """
    alike: dict[str, list[tuple[TrialPlan, Record]]] = {}
    for trial in trials:
        record = records.get(trial.trial_id)
        if trial.kind == "training" and record and record["status"] in TIMED_STATUSES and record.get("epochs"):
            alike.setdefault(step_key(trial.params), []).append((trial, record))

    resources = spec.to_dict()["resources"]
    timings = []
    for pairs in alike.values():
        if not factorised and not any(DISTURBED in record.get("flags", ()) for _, record in pairs):
            continue
        first, record = pairs[0]
        most = timed_steps(first)
        train = {
            **first.train,
            "warm_up_steps": most - TIMED_STEPS,
            "max_steps": most,
            "epochs": max(first.train["epochs"], math.ceil(most / record["epochs"][0]["steps"])),
            "checkpoint_every": 0,
        }
        hashed = {key: value for key, value in train.items() if key not in NO_TIME}
        for size in factorised.sizes if factorised else (first.num_gpus,):
            params = {**first.params, "num_gpus": size}
            # The id leaves out learning rate and seed: when the study is extended, another trial may be the first.
            of_step = {**params, "learning_rate": None, "seed": None}
            timings.append(
                TrialPlan(
                    trial_id=trial_id(of_step, first.workload, hashed, resources),
                    kind="timing",
                    params=params,
                    workload=first.workload,
                    train=train,
                )
            )
    return sorted(timings, key=lambda trial: -trial.num_gpus)


def timed_steps(like: TrialPlan) -> int:
    """Steps of the timing run for a trial, with its warm-up."""
    return max(int(like.train["warm_up_steps"]), LEAST_WARM_UP) + TIMED_STEPS


def timing_kinds(trials: Iterable[TrialPlan]) -> list[TrialPlan]:
    """The first trial of each kind of step."""
    first: dict[str, TrialPlan] = {}
    for trial in trials:
        first.setdefault(step_key(trial.params), trial)
    return list(first.values())


def step_key(params: Mapping[str, Any]) -> str:
    """The kind of a trial's steps. Trials with the same key have steps of the same duration."""
    return json.dumps(step_params(params), sort_keys=True)
