"""Stage 2, plan: a `StudySpec` becomes the `Plan` of its trials – ids, seeds, order, cost. Pure."""

import hashlib
import itertools
import json
import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from experiments.spec_models import Resources
from experiments.spec_sweep import ITEMS

RUN_NAMES: Mapping[str, str] = {"num_gpus": "gpus", "batch_size": "batch", "learning_rate": "lr"}
"""Short names of parameters in run names and tables."""
PLAN_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class TrialPlan:
    """One point of the sweep, rendered to plain data before any resource is asked for.

    trial_id: 12 hex digits, the same for the same resolved parameters in every run. params: the swept parameters,
    always num_gpus, batch_size (examples, all workers together), learning_rate (nominal) and seed, then others by
    their dotted name. workload, train: the spec's sections, the swept values put in.
    """

    trial_id: str
    kind: Literal["training"] = "training"
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
        """`gpus=2 batch=256 lr=0.2 seed=0`, other swept parameters appended."""
        return label(self.params)

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
    """The trials of a study, in the order in which they run."""

    study: str
    trials: tuple[TrialPlan, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as in `plan.json`."""
        return {"version": PLAN_VERSION, "study": self.study, "trials": [trial.to_dict() for trial in self.trials]}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "Plan":
        """The plan of `to_dict`'s data. Raises ValueError where this version can't read it."""
        if plain.get("version") != PLAN_VERSION:
            raise ValueError(f"plan.json: version {plain.get('version')!r} is not {PLAN_VERSION}; plan the study again")
        return cls(plain["study"], tuple(TrialPlan(**trial) for trial in plain["trials"]))


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What a plan costs before it is run.

    worker_epochs: epochs times workers, summed. seconds: training and evaluation one trial at a time, without
    start-up; gpu_seconds: the same times num_gpus; both None, with a why, where nothing like it was measured.
    """

    trials: int
    epochs: int
    worker_epochs: int
    seconds: float | None
    gpu_seconds: float | None
    why: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for --json."""
        return dict(vars(self))


def cell_of(params: Mapping[str, Any]) -> dict[str, Any]:
    """A trial's parameters without the seed."""
    return {key: value for key, value in params.items() if key != "seed"}


def label(params: Mapping[str, Any]) -> str:
    """`gpus=2 batch=256 lr=0.2 seed=0`; parameters beyond these by the last part of their dotted name."""
    return " ".join(f"{short_name(key)}={_value_text(value)}" for key, value in params.items())


def short_name(key: str) -> str:
    """The name of a parameter in run names and table heads: `train.optimizer.momentum` is momentum."""
    return RUN_NAMES.get(key, key.rpartition(".")[2])


def _value_text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def make_plan(spec: Any) -> Plan:
    """The trials of a spec (`experiments.spec.StudySpec`): by num_gpus, then as the grid runs.

    The grid runs over the chosen points, then batch_size, learning_rate, other swept keys in the spec's order, and
    the seed fastest. Trials of one num_gpus stand together, so that worker groups are seldom exchanged.
    """
    resolved = spec.to_dict()
    trials = [_trial(params, resolved) for params in _grid(spec.sweep)]
    return Plan(spec.name, tuple(sorted(trials, key=lambda trial: trial.num_gpus)))


def _grid(sweep: Any) -> Iterator[dict[str, Any]]:
    lists = sweep.lists()
    order = sorted(lists, key=lambda key: key == "seed")
    points: tuple[dict[str, Any], ...] = sweep.points or ({},)
    for point in points:
        for values in itertools.product(*(lists[key] for key in order)):
            given = {**point, **dict(zip(order, values, strict=True))}
            yield {key: given[key] for key in (*ITEMS, *(key for key in given if key not in ITEMS))}


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
        "train": _without(train, NO_EFFECT),
        "resources": {key: resources[key] for key in RESULT_RESOURCES},
    }
    canonical = json.dumps(parameters, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]


def _without(section: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
    return {key: value for key, value in section.items() if key not in keys}


def estimate(plan: Plan, earlier_trials: Iterable[Mapping[str, Any]]) -> Estimate:
    """What the plan costs, from epochs measured earlier.

    earlier_trials: trials as in trials.jsonl, each with its `workload` and `train` (`StudyFolder.measured_trials`). A
    trial counts for another of the same workload, num_gpus, batch_size and way of training: the learning rate, its
    schedule, the seed and the number of epochs don't change the time of an epoch.
    """
    measured = _epoch_seconds(earlier_trials)
    epochs = [trial.train["epochs"] for trial in plan.trials]
    workers = [trial.num_gpus for trial in plan.trials]
    seconds = [measured.get(_timing_key(trial.workload, trial.train, trial.params)) for trial in plan.trials]
    totals = [each * count for each, count in zip(seconds, epochs, strict=True) if each is not None]
    complete = bool(totals) and len(totals) == len(plan.trials)
    unknown = len(plan.trials) - len(totals)
    return Estimate(
        trials=len(plan.trials),
        epochs=sum(epochs),
        worker_epochs=sum(count * number for count, number in zip(epochs, workers, strict=True)),
        seconds=sum(totals) if complete else None,
        gpu_seconds=sum(total * number for total, number in zip(totals, workers, strict=True)) if complete else None,
        why=None if complete else f"no earlier timing for {unknown} of {len(plan.trials)} trials",
    )


def _timing_key(workload: Mapping[str, Any], train: Mapping[str, Any], params: Mapping[str, Any]) -> str:
    way = _without(train, NO_EFFECT | NO_TIME)
    return json.dumps([workload, way, params["num_gpus"], params["batch_size"]], sort_keys=True)


def _epoch_seconds(earlier_trials: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Median seconds an epoch, evaluation included, by workload, num_gpus and batch_size."""
    found: dict[str, list[float]] = {}
    for trial in earlier_trials:
        if "workload" in trial and "train" in trial:
            key = _timing_key(trial["workload"], trial["train"], trial["params"])
            epochs = [e["train_seconds"] + (e.get("eval_seconds") or 0.0) for e in trial.get("epochs", ())]
            found.setdefault(key, []).extend(epochs)
    return {key: statistics.median(values) for key, values in found.items() if values}
