"""The timing runs that follow a sweep whose trials ran side by side, or a factorised one. Pure.

Trials that share a node disturb each other's timings. So each combination of swept parameters that change the time of
a step gets one short run with the node to itself, from which its timings are then taken (docs/concepts.md: Timed
alone).
"""

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from scalestudy.experiments.plan.plan import NO_TIME, TrialPlan, at_size, step_params, trial_id
from scalestudy.experiments.spec.search_space import Factorised
from scalestudy.experiments.spec.study_spec import StudySpec

TIMED_STEPS = 60
"""Steps of a timing run after its warm-up."""
LEAST_WARM_UP = 5
"""Steps before them, also where the spec's trials have fewer: it is all that such a run gets to warm up."""
TIMED_STATUSES = ("finished", "stopped")
DISTURBED = "shared_node"

Record = Mapping[str, Any]


def step_key(params: Mapping[str, Any]) -> str:
    """What trials have in common whose steps take the same time."""
    return json.dumps(step_params(params), sort_keys=True)


def timed_steps(like: TrialPlan) -> int:
    """Steps of a timing run of a trial's steps, its warm-up included."""
    return max(int(like.train["warm_up_steps"]), LEAST_WARM_UP) + TIMED_STEPS


def timing_kinds(trials: Iterable[TrialPlan]) -> list[TrialPlan]:
    """The first trial of each kind of step."""
    first: dict[str, TrialPlan] = {}
    for trial in trials:
        first.setdefault(step_key(trial.params), trial)
    return list(first.values())


def timing_trials(
    spec: StudySpec, trials: Iterable[TrialPlan], records: Mapping[str, Record], factorised: Factorised | None = None
) -> list[TrialPlan]:
    """The timing runs that a study needs once its sweep is over, the most workers first.

    In that order the groups that the sweep has left are used before others are started. Left out: what no trial
    finished (or was stopped at), for there is nothing to time, and what was not disturbed in any trial. A factorised
    study times every kind of step that its trainings have, with every num_gpus of its grid, disturbed or not.

    Args:
        spec: the study's.
        trials: of the study, in their order, those that a search has made included; of a factorised one its trainings.
        records: lines of `trials.jsonl`, by trial id.
        factorised: how the study's grid is divided; None: it is not.
    """
    alike: dict[str, list[tuple[TrialPlan, Record]]] = {}
    for trial in trials:
        record = records.get(trial.trial_id)
        if trial.kind == "training" and record and record["status"] in TIMED_STATUSES and record.get("epochs"):
            alike.setdefault(step_key(trial.params), []).append((trial, record))
    resources = spec.to_dict()["resources"]
    found = [
        _timing_trial(at_size(trial, size), record["epochs"][0]["steps"], resources)
        for pairs in alike.values()
        for (trial, record) in pairs[:1]
        for size in (factorised.sizes if factorised else (trial.num_gpus,))
        if factorised or any(DISTURBED in other.get("flags", ()) for _, other in pairs)
    ]
    return sorted(found, key=lambda trial: -trial.num_gpus)


def _timing_trial(like: TrialPlan, steps: int, resources: Mapping[str, Any]) -> TrialPlan:
    """A run of the same steps as a trial's, `steps` an epoch. Its id does not say whose learning rate and seed it has,
    for they may be another trial's once the study is extended."""
    most = timed_steps(like)
    train = {
        **like.train,
        "warm_up_steps": most - TIMED_STEPS,
        "max_steps": most,
        "epochs": max(like.train["epochs"], math.ceil(most / steps)),
        "checkpoint_every": 0,
    }
    hashed = {key: value for key, value in train.items() if key not in NO_TIME}
    nobody = {**like.params, "learning_rate": None, "seed": None}
    return TrialPlan(
        trial_id=trial_id(nobody, like.workload, hashed, resources),
        kind="timing",
        params=like.params,
        workload=like.workload,
        train=train,
    )
