"""A `StudySpec` becomes the `Plan` of its trials: ids, seeds, order. Pure."""

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from scalestudy.experiments.spec.search_space import Cell, Factorised, Space, ToSuggest, cell_key, ordered
from scalestudy.experiments.spec.sections import Resources
from scalestudy.experiments.spec.study_spec import StudySpec
from scalestudy.experiments.spec.sweep import ITEMS

RUN_NAMES: Mapping[str, str] = {"num_gpus": "gpus", "batch_size": "batch", "learning_rate": "lr"}
"""Short names of parameters in run names and tables."""
PLAN_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class TrialPlan:
    """One point of the sweep, rendered to plain data before any resource is asked for.

    trial_id: 12 hex digits, the same for the same resolved parameters in every run. params: the swept parameters,
    always num_gpus, batch_size (examples, all workers together), learning_rate (nominal) and seed, then others by
    their dotted name. workload, train: the spec's sections, the swept values put in. kind: a timing trial
    (`timing_runs.timing_trials`) makes a few steps, to be timed; its `train` has `max_steps` too.
    """

    trial_id: str
    kind: Literal["training", "timing"] = "training"
    params: dict[str, Any]
    workload: dict[str, Any]
    train: dict[str, Any]

    @property
    def num_gpus(self) -> int:
        """Workers that train this trial together."""
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

    @property
    def cell(self) -> dict[str, Any]:
        """The parameters without the seed."""
        return cell_of(self.params)

    @property
    def run_name(self) -> str:
        """`gpus=2 batch=256 lr=0.2 seed=0`, other swept parameters appended; `timing gpus=2 batch=256`."""
        return name_of(self.kind, self.params)

    def to_dict(self) -> dict[str, Any]:
        """Plain data; `TrialPlan(**plain)` gives an equal trial."""
        return {
            "trial_id": self.trial_id,
            "kind": self.kind,
            "params": self.params,
            "workload": self.workload,
            "train": self.train,
        }


@dataclass(frozen=True)
class Plan:
    """The trials of a study, in the order in which they run.

    to_suggest: where a search makes the trials while the study runs; those that it has made are then in `trials`, in
    the order in which they were suggested, as far as somebody has put them there (`with_trials`). factorised: where
    the trials are trainings that stand for a whole grid; the cells that are held out and run in full are chosen when
    these have ended, and added likewise.
    """

    study: str
    trials: tuple[TrialPlan, ...]
    to_suggest: ToSuggest | None = None
    factorised: Factorised | None = None

    @property
    def expected_trials(self) -> int:
        """How many trials the study comes to; at most, where a search makes them."""
        suggested = self.to_suggest.trials if self.to_suggest else 0
        return max(len(self.trials), suggested, len(self.swept) + self.held_out_trials)

    @property
    def held_out_trials(self) -> int:
        """Trials of the cells that a factorised study holds out, those of the cells with most seeds."""
        seeds = Counter(cell_key(trial.cell) for trial in self.swept)
        cells = self.factorised.cells_held_out(len(seeds)) if self.factorised else 0
        return cells * max(seeds.values(), default=0)

    @property
    def swept(self) -> tuple[TrialPlan, ...]:
        """The trials of the sweep itself; of a factorised study the trainings alone."""
        return tuple(trial for trial in self.trials if self.is_swept(trial))

    def is_swept(self, trial: TrialPlan) -> bool:
        """Whether a trial is of the sweep itself, and of no cell that a factorised study holds out."""
        return self.factorised is None or trial.num_gpus == self.factorised.train_on

    @property
    def cells(self) -> list[Cell]:
        """Every cell of the study, each once, in the order of the trials; of a factorised study those of its grid."""
        cells = {cell_key(trial.cell): trial.cell for trial in self.swept}
        if self.factorised is None:
            return list(cells.values())
        return [{**cell, "num_gpus": size} for size in self.factorised.sizes for cell in cells.values()]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Each num_gpus that a trial has or may have, ascending."""
        more = next((each.sizes for each in (self.to_suggest, self.factorised) if each), ())
        return tuple(sorted({*more, *(trial.num_gpus for trial in self.trials)}))

    def by_id(self) -> dict[str, TrialPlan]:
        """The trials by their ids, in their order."""
        return {trial.trial_id: trial for trial in self.trials}

    def with_trials(self, trials: Iterable[TrialPlan]) -> "Plan":
        """The plan with these trials added, as a search has suggested them; those that it has are left alone."""
        known = self.by_id()
        for trial in trials:
            known.setdefault(trial.trial_id, trial)
        return replace(self, trials=tuple(known.values()))

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as in `plan.json`."""
        trials = [trial.to_dict() for trial in self.trials]
        more = {"to_suggest": self.to_suggest, "factorised": self.factorised}
        there = {key: asdict(part) for key, part in more.items() if part}
        return {"version": PLAN_VERSION, "study": self.study, "trials": trials, **there}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "Plan":
        """The plan of `to_dict`'s data. Raises ValueError where this version can't read it."""
        if plain.get("version") != PLAN_VERSION:
            raise ValueError(f"plan.json: version {plain.get('version')!r} is not {PLAN_VERSION}; plan the study again")
        parts = {
            key: {**plain[key], "sizes": tuple(plain[key]["sizes"])}
            for key in ("to_suggest", "factorised")
            if plain.get(key)
        }
        return cls(
            study=plain["study"],
            trials=tuple(TrialPlan(**trial) for trial in plain["trials"]),
            to_suggest=ToSuggest(**parts["to_suggest"]) if "to_suggest" in parts else None,
            factorised=Factorised(**parts["factorised"]) if "factorised" in parts else None,
        )


def cell_of(params: Mapping[str, Any]) -> dict[str, Any]:
    """A trial's parameters without the seed."""
    return {key: value for key, value in params.items() if key != "seed"}


def label(params: Mapping[str, Any]) -> str:
    """`gpus=2 batch=256 lr=0.2 seed=0`; parameters beyond these by the last part of their dotted name."""
    return " ".join(f"{short_name(key)}={_value_text(value)}" for key, value in params.items())


def name_of(kind: str, params: Mapping[str, Any]) -> str:
    """What a trial is called, by its kind."""
    return f"timing {label(step_params(params))}" if kind == "timing" else label(params)


def short_name(key: str) -> str:
    """The name of a parameter in run names and table heads: `train.optimizer.momentum` is momentum."""
    return RUN_NAMES.get(key, key.rpartition(".")[2])


def _value_text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if type(value) is int:
        return str(value)
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def make_plan(spec: StudySpec) -> Plan:
    """The trials of a spec: by num_gpus, then as the grid runs or as they were drawn.

    The grid runs over the chosen points, then batch_size, learning_rate, other swept keys in the spec's order, and
    the seed fastest. Trials of one num_gpus stand together, so that worker groups are seldom exchanged. TPE has none
    before the study runs: `to_suggest` says what is to come. A factorised study has those of the grid with one
    num_gpus, and their ids.
    """
    if spec.search.method == "tpe":
        return Plan(spec.name, (), ToSuggest.of(spec))
    resolved = spec.to_dict()
    factorised = Factorised.of(spec) if spec.search.method == "factorised" else None
    if spec.search.method == "random":
        cells = Space.of(spec.sweep).sample(spec.search.samples, spec.search.seed)
        params = [each for cell in cells for each in _with_seeds(cell, spec.sweep)]
    else:
        params = list(_grid(spec.sweep))
    if factorised:
        params = [each for each in params if each["num_gpus"] == factorised.train_on]
    trials = [_trial(each, resolved) for each in params]
    return Plan(spec.name, tuple(sorted(trials, key=lambda trial: trial.num_gpus)), factorised=factorised)


def point_trials(spec: StudySpec, cell: Cell) -> list[TrialPlan]:
    """The trials of one point of a spec's space: one a seed."""
    resolved = spec.to_dict()
    return [_trial(params, resolved) for params in _with_seeds(cell, spec.sweep)]


def corner_trials(spec: StudySpec, most: int = 1_000) -> list[TrialPlan]:
    """Trials at the corners of a spec's space, one seed each: what holds for them holds for what a search suggests."""
    corners = itertools.islice(Space.of(spec.sweep).corners(), most)
    return [point_trials(spec, cell)[0] for cell in corners]


def _with_seeds(cell: Cell, sweep: Any) -> list[Cell]:
    if sweep.seed is None:  # the chosen points have it
        return [cell]
    return [ordered({**cell, "seed": seed}) for seed in sweep.seed]


def _grid(sweep: Any) -> Iterator[dict[str, Any]]:
    lists = sweep.lists()
    order = sorted(lists, key=lambda key: key == "seed")
    points: tuple[dict[str, Any], ...] = sweep.points or ({},)
    for point in points:
        for values in itertools.product(*(lists[key] for key in order)):
            yield ordered({**point, **dict(zip(order, values, strict=True))})


def _trial(params: dict[str, Any], resolved: dict[str, Any]) -> TrialPlan:
    train = resolved["train"]
    for key, value in params.items():
        if key not in ITEMS:
            train = _with(train, key.split(".")[1:], value)
    params = json.loads(json.dumps(params))
    train = json.loads(json.dumps(train))
    workload = resolved["workload"]
    return TrialPlan(
        trial_id=trial_id(params, workload, train, resolved["resources"]),
        params=params,
        workload=workload,
        train=train,
    )


def _with(section: dict[str, Any], path: Sequence[str], value: Any) -> dict[str, Any]:
    """A copy of a section with the value at `path` replaced."""
    first, *rest = path
    return {**section, first: _with(section[first], rest, value) if rest else value}


NO_EFFECT = frozenset({"checkpoint_every"})
"""Keys of `train` that can't change a trial's result."""
NO_TIME = frozenset({"epochs", "warm_up_steps", "warmup_epochs", "schedule"})
"""Keys of `train` that can change a result, but not the time of an epoch."""
NO_STEP_TIME = frozenset({"learning_rate", "seed", *(f"train.{key}" for key in NO_EFFECT | NO_TIME)})
"""Swept parameters that can't change the time of a step."""
RESULT_RESOURCES = tuple(key for key in Resources.model_fields if key not in ("exclusive", "oversubscribe"))
"""Resources that change rounding (threads, device) and so the result; the others only say what may run when."""


def trial_id(
    params: Mapping[str, Any], workload: Mapping[str, Any], train: Mapping[str, Any], resources: Mapping[str, Any]
) -> str:
    """12 hex digits of SHA-256 over canonical JSON of every resolved parameter that can change the result."""
    parameters = {
        "num_gpus": params["num_gpus"],
        "batch_size": params["batch_size"],
        "learning_rate": params["learning_rate"],
        "seed": params["seed"],
        "workload": workload,
        "train": without(train, NO_EFFECT),
        "resources": {key: resources[key] for key in RESULT_RESOURCES},
    }
    canonical = json.dumps(parameters, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]


def at_size(trial: TrialPlan, num_gpus: int) -> TrialPlan:
    """The same training with another num_gpus, and without an id."""
    return replace(trial, trial_id="", params={**trial.params, "num_gpus": num_gpus})


def without(section: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
    """A section without these keys."""
    return {key: value for key, value in section.items() if key not in keys}


def step_params(params: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a trial's parameters that change the time of a step."""
    return without(params, NO_STEP_TIME)
