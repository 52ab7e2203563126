"""A `StudySpec` becomes the `Plan` of its trials: ids, seeds, order. Pure."""

import hashlib
import itertools
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from scalestudy.experiments.plan.look import Look
from scalestudy.experiments.spec.search_space import (
    Cell,
    Space,
    ToSuggest,
    cell_key,
    ordered,
    stated_places,
)
from scalestudy.experiments.spec.sections import NO_STEP, Resources, is_argument, length_of, result_keys
from scalestudy.experiments.spec.study_spec import REPORT, StudySpec
from scalestudy.experiments.spec.sweep_section import ITEMS
from scalestudy.training.config import ScheduleConfig, Train, Workload

PLAN_VERSION = 2
"""Version of a study's files: spec.yaml, plan.json, journal, trials.jsonl. scalestudy 0.1 and 0.2 wrote version 1."""
SHORT_NAMES: Mapping[str, str] = {"num_gpus": "workers", "batch_size": "batch", "learning_rate": "lr"}
"""Short names of parameters in run names and tables."""
ID_FORMAT = 2
"""Version of the parameters that a trial's id hashes, and of how they are written."""
NO_STEP_TIME = frozenset({"learning_rate", "seed", *(f"train.{key}" for key in NO_STEP)})
"""Swept parameters that can't change the time of a step."""


class WithParams:
    """Anything that has the parameters of a trial, or of a cell, which has no seed."""

    params: Mapping[str, Any]

    @property
    def num_gpus(self) -> int:
        """Workers that train together."""
        return int(self.params["num_gpus"])

    @property
    def batch_size(self) -> int:
        """Examples a step, all workers together."""
        return int(self.params["batch_size"])

    @property
    def learning_rate(self) -> float:
        """Nominal learning rate."""
        return float(self.params["learning_rate"])

    @property
    def seed(self) -> int:
        """Seed of initialisation and order of the examples."""
        return int(self.params["seed"])


@dataclass(frozen=True, kw_only=True)
class TrialPlan(WithParams):
    """One point of the sweep with one seed, as plain data, made before any resource is asked for."""

    trial_id: str  # 12 hex digits, the same for the same resolved parameters
    kind: Literal["training", "timing"] = "training"
    """A timing trial (`timing_runs.timing_trials`) only times a few steps; its `train` also has `max_steps`."""
    params: dict[str, Any]
    """num_gpus, batch_size (examples, all workers together), learning_rate (nominal) and seed, then the other swept
    parameters by their dotted name.
    """
    workload: dict[str, Any]  # the spec's section with the swept values put in
    train: dict[str, Any]  # the spec's section with the swept values put in
    look: Look | None = None  # why an adaptive search asked for it; None: another search made it

    @property
    def evaluations(self) -> int:
        """How often it is evaluated, if it comes to its end."""
        return length_of(self.train).evaluations

    @property
    def period_word(self) -> str:
        """What a period is called: `epoch` where it is one, else `evaluation`; of a Ray Train loop, `report`."""
        return REPORT if self.workload.get("loop") else length_of(self.train).period_word

    @property
    def cell(self) -> dict[str, Any]:
        """The parameters without the seed."""
        return cell_of(self.params)

    @property
    def name(self) -> str:
        """`workers=2 batch=256 lr=0.2 seed=0`, then other swept parameters; or `timing workers=2 batch=256`."""
        return name_of(self.kind, self.params)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "trial_id": self.trial_id,
            "kind": self.kind,
            "params": self.params,
            "workload": self.workload,
            "train": self.train,
            **({"look": self.look.to_dict()} if self.look else {}),
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "TrialPlan":
        """Return the trial behind `to_dict`'s data."""
        look = plain.get("look")
        return cls(**{**plain, "look": Look.from_dict(look) if look else None})


@dataclass(frozen=True)
class Plan:
    """The trials of a study, in the order in which they run."""

    study: str
    trials: tuple[TrialPlan, ...]
    to_suggest: ToSuggest | None = None
    """Set if a search makes the trials while the study runs; `with_trials` adds them in the order of suggestion."""

    @property
    def expected_trials(self) -> int:
        """Number of trials when the study has ended. The most, if a search makes them.

        Of an adaptive search whose budget is no number of trainings, the number of trials known so far.
        """
        suggested = self.to_suggest.trials if self.to_suggest else 0
        return max(len(self.trials), suggested)

    @property
    def cells(self) -> list[Cell]:
        """Every cell of the trials once, in their order."""
        return list({cell_key(trial.cell): trial.cell for trial in self.trials}.values())

    @property
    def is_adaptive(self) -> bool:
        """Whether an adaptive search makes its trials. A training then stands for the same with every num_gpus."""
        return self.to_suggest is not None and self.to_suggest.method == "adaptive"

    @property
    def sizes(self) -> tuple[int, ...]:
        """Each num_gpus that a trial has or may have, ascending."""
        more = self.to_suggest.sizes if self.to_suggest else ()
        return tuple(sorted({*more, *(trial.num_gpus for trial in self.trials)}))

    def by_id(self) -> dict[str, TrialPlan]:
        """Return the trials by their ids, in order."""
        return {trial.trial_id: trial for trial in self.trials}

    def with_trials(self, trials: Iterable[TrialPlan]) -> "Plan":
        """Return a copy of the plan with these trials added. Trials that it already has stay as they are."""
        known = self.by_id()
        for trial in trials:
            known.setdefault(trial.trial_id, trial)
        return replace(self, trials=tuple(known.values()))

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, as in `plan.json`."""
        trials = [trial.to_dict() for trial in self.trials]
        search = {"to_suggest": asdict(self.to_suggest)} if self.to_suggest else {}
        return {"version": PLAN_VERSION, "study": self.study, "trials": trials, **search}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "Plan":
        """Read the data of `to_dict`. Raises ValueError if it has another version."""
        if plain.get("version") != PLAN_VERSION:
            version = plain.get("version")
            raise ValueError(f"plan.json: has version {version!r}, and this scalestudy reads {PLAN_VERSION}")
        search = plain.get("to_suggest")
        return cls(
            study=plain["study"],
            trials=tuple(TrialPlan.from_dict(trial) for trial in plain["trials"]),
            to_suggest=ToSuggest(**{**search, "sizes": tuple(search["sizes"])}) if search else None,
        )


def make_plan(spec: StudySpec) -> Plan:
    """Make the trials of a spec, ordered by num_gpus, so that worker groups are seldom replaced.

    A grid runs over the chosen points, then batch_size, learning_rate, other swept keys in the spec's order, and the
    seed, which changes fastest. Random points keep the order in which they were drawn. TPE and an adaptive search have
    no trials yet: `to_suggest` says what will come.
    """
    sweep, search = spec.sweep, spec.search
    if search.method in ("tpe", "adaptive"):
        return Plan(spec.name, (), ToSuggest.of(spec))
    if search.method == "random":
        cells = Space.of(sweep).sample(search.samples, search.seed)
    else:
        lists = {key: values for key, values in sweep.lists().items() if key != "seed"}
        cells = [
            {**point, **dict(zip(lists, values, strict=True))}
            for point in sweep.points or ({},)
            for values in itertools.product(*lists.values())
        ]
    resolved = spec.to_dict()
    trials = [trial for cell in cells for trial in _trials(cell, sweep.seed, resolved)]
    return Plan(spec.name, tuple(sorted(trials, key=lambda trial: trial.num_gpus)))


def point_trials(spec: StudySpec, cell: Cell) -> list[TrialPlan]:
    """Return the trials of one point of a spec's space, one for each seed."""
    return _trials(cell, spec.sweep.seed, spec.to_dict())


def cell_trial(spec: StudySpec, cell: Cell, seed: int) -> TrialPlan:
    """Return the training of any cell with any seed. A cell and a seed of the sweep give the trial of the grid."""
    return _trials(cell, (seed,), spec.to_dict())[0]


def corner_trials(spec: StudySpec, most: int = 1_000) -> list[TrialPlan]:
    """Return trials at the corners of a spec's space, with one seed; of an adaptive search, at all its places.

    What holds for them holds for all suggested trials.
    """
    if spec.is_adaptive:
        return [point_trials(spec, cell)[0] for cell in stated_places(spec)[:most]]
    corners = itertools.islice(Space.of(spec.sweep).corners(), most)
    return [point_trials(spec, cell)[0] for cell in corners]


def _trials(cell: Cell, seeds: Iterable[int] | None, resolved: Mapping[str, Any]) -> list[TrialPlan]:
    """Return the trials of one point. seeds: None if the point has its own. resolved: the spec as plain data."""
    trials = []
    for params in [cell] if seeds is None else [{**cell, "seed": seed} for seed in seeds]:
        swept = with_swept(resolved, params)
        plain = json.loads(json.dumps({"params": ordered(params), "train": swept["train"]}))
        identity = trial_id(plain["params"], swept["workload"], plain["train"], resolved["resources"])
        trials.append(TrialPlan(trial_id=identity, workload=swept["workload"], **plain))
    return trials


def with_swept(resolved: Mapping[str, Any], params: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a spec's plain data with the swept values of a trial or cell in its `train` and `workload`."""
    for key, value in sorted(params.items(), key=lambda item: item[0].count(".")):  # a section before its keys
        if key not in ITEMS:
            resolved = _with(resolved, key.split("."), value)
    return resolved


def _with(section: Mapping[str, Any], path: Sequence[str], value: Any) -> dict[str, Any]:
    """Return a copy of a section with the value at `path` replaced. A name may stand for the section around it."""
    first, *rest = path
    if not rest:
        return {**section, first: value}
    below = section.get(first, {})
    return {**section, first: _with({"name": below} if isinstance(below, str) else below, rest, value)}


def trial_id(
    params: Mapping[str, Any], workload: Mapping[str, Any], train: Mapping[str, Any], resources: Mapping[str, Any]
) -> str:
    """Return 12 hex digits of SHA-256 over canonical JSON of what can change the result.

    Of a section only the values that are not the defaults count, so a key that a later version adds changes no id.
    """
    parameters = {
        "format": ID_FORMAT,
        "num_gpus": params["num_gpus"],
        "batch_size": params["batch_size"],
        "learning_rate": params["learning_rate"],
        "seed": params["seed"],
        "workload": result_keys(Workload, workload),
        "train": result_keys(Train, train),
        "resources": result_keys(Resources, resources),
    }
    canonical = json.dumps(parameters, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]


def cell_of(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a trial without the seed."""
    return {key: value for key, value in params.items() if key != "seed"}


def step_params(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a trial that change the time of a step."""
    return {key: value for key, value in params.items() if not {key, ".".join(key.split(".")[:2])} & NO_STEP_TIME}


def without(section: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
    """Return a copy of a section without these keys."""
    return {key: value for key, value in section.items() if key not in keys}


def name_of(kind: str, params: Mapping[str, Any]) -> str:
    """Return the run name of a trial, by its kind."""
    return f"timing {label(step_params(params))}" if kind == "timing" else label(params)


def label(params: Mapping[str, Any]) -> str:
    """Return the parameters as `workers=2 batch=256 lr=0.2 seed=0`. Others have the last part of their dotted name."""
    return " ".join(f"{short_name(key)}={value_text(value)}" for key, value in params.items())


def value_text(value: Any) -> str:
    """Return the value of a parameter in run names: `0.2`, `sgd`, `[1,2]`, `cosine(floor=0.1)` of a whole schedule."""
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping) and value.keys() == ScheduleConfig.model_fields.keys():
        given = [f"{key}={value_text(each)}" for key, each in value["args"].items()]
        given += [f"per={value['per']}"] if value["per"] == "epoch" else []
        return f"{value['name']}({','.join(given)})"
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def short_name(key: str) -> str:
    """Return the name of a parameter in run names and table heads: `train.optimizer.momentum` is momentum.

    The argument `workload.model_args.width` is model.width: a user's name may equal another key's.
    """
    if is_argument(key):
        return re.sub(r"^(workload|train)\.(\w+?)(_|\.)args\.", r"\2.", key)
    return SHORT_NAMES.get(key, key.rpartition(".")[2])
