"""`StudySpec`: all sections as one model, and the values that a parameter takes in it."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, Field, WithJsonSchema, model_validator

from scalestudy.experiments.spec.sections import (
    Budget,
    FolderName,
    Judged,
    Limits,
    Resources,
    Search,
    StorageFolder,
    Targets,
    Tracking,
    is_argument,
)
from scalestudy.experiments.spec.sweep_section import Sweep
from scalestudy.training.config import JUDGED, OF_ANY, OF_LOOP, Train, Workload
from scalestudy.training.redaction import redacted
from scalestudy.training.section import Section, value_of, wrong

VERSION = 2
OF_JUDGED = ("version", "name", "description", "workload", "targets", "judged")
"""Sections of a spec that say something of runs that others made."""
REPORT = "report"
"""What a period of a Ray Train loop is called: the loop alone knows what it does between two of them."""


def _version(value: int) -> int:
    if value != VERSION:
        raise wrong("is not the form of this version's specs", f"write version: {VERSION}, or remove the key")
    return value


class StudySpec(Section):
    """One study with every default filled in: what is trained, which parameters vary, on which resources, and why."""

    version: Annotated[int, AfterValidator(_version), WithJsonSchema({"enum": [VERSION]})] = VERSION
    """version of the form of a spec"""
    name: FolderName
    """names the study's folder and its MLflow experiment"""
    description: str = ""
    """the question that the study answers, in one line, for the report"""
    workload: Workload = Workload()
    train: Train = Train()
    sweep: Sweep = Field(default_factory=lambda: Sweep.model_validate({}))
    search: Search = Search()
    budget: Budget = Budget()
    resources: Resources = Resources()
    targets: Targets = Targets()
    limits: Limits = Limits()
    storage: StorageFolder = "runs"
    """the folder, or the URI such as s3://bucket/runs, that holds the studies' folders"""
    tracking: Tracking = Tracking()
    judged: Judged | None = None
    """written by scalestudy judge: where the runs come from that others made; null: the study makes its runs"""

    @model_validator(mode="before")
    @classmethod
    def _targets_by_name(cls, raw: Any) -> Any:
        """Take `targets: {r2: [0.9]}` where the metric is r2. It is kept as `accuracy`, the key for every metric."""
        if not isinstance(raw, dict):
            return raw
        workload, targets = raw.get("workload"), raw.get("targets")
        if not isinstance(workload, dict) or not isinstance(targets, dict) or "accuracy" in targets:
            return raw
        name = metric_name(str(workload.get("metric")))
        if name not in targets or name in Targets.model_fields:
            return raw
        return {**raw, "targets": {"accuracy" if key == name else key: value for key, value in targets.items()}}

    @property
    def stops_at_target(self) -> bool:
        """Whether a training ends once it has reached the hardest target."""
        if self.targets.stop != "auto":
            return bool(self.targets.stop)
        timed = self.is_adaptive or self.search.objective != "metric"
        return timed and bool(self.targets.accuracy)

    @property
    def minimises(self) -> Literal["time", "cost"]:
        """What an adaptive search looks for the least of, until the hardest target: seconds, or worker-seconds."""
        return "cost" if self.search.objective == "cost_to_target" else "time"

    @property
    def is_adaptive(self) -> bool:
        """Whether it chooses its trainings: one stands for the same with every num_gpus, timing runs give seconds."""
        return self.search.method == "adaptive"

    @property
    def needs_exact(self) -> bool:
        """Whether the model must train the same at every num_gpus: one training stands for those with the others.

        Of a Ray Train loop, `workload.exact` says it.
        """
        return self.is_adaptive and not self.workload.loop

    @property
    def hardest_target(self) -> float | None:
        """The target that is reached last; None if there is none."""
        hardest = min if self.workload.metric_mode == "min" else max
        return hardest(self.targets.accuracy, default=None)

    @property
    def stop_target(self) -> float | None:
        """The target at which trainings end; None: after their last epoch."""
        return self.hardest_target if self.stops_at_target else None

    @property
    def notes(self) -> list[str]:
        """What is allowed, and likely not meant."""
        if self.judged:
            return []
        return [*self._few_evaluations(), *self._another_warm_up()]

    def _another_warm_up(self) -> list[str]:
        """Say where the warm-up is another share of the training at each batch size."""
        batches, unit, notes = self.sweep.values_of("batch_size"), self.train.unit, []
        for key in ("warmup_epochs", "warmup_tokens") if unit == "steps" else ("warmup_steps",):
            low, high = min(batches, default=1), max(batches, default=1)
            value = next(filter(None, values_in(self, f"train.{key}")), None)
            if value and low < high:
                most, least = (high, low) if key == "warmup_steps" else (low, high)
                notes.append(
                    f"train.{key}: {value:g} with train.{unit}: at batch_size {most} the warm-up is {high / low:.3g} "
                    f"times as large a share of the training as at {least}; train.warmup_share keeps the share"
                )
        return notes

    def _few_evaluations(self) -> list[str]:
        """Say where too few evaluations leave a target out of reach."""
        count, length = self.evaluations, f"train.{self.train.unit}"
        if not self.targets.accuracy or count > 2:
            return []
        chance = "none can be" if count == 1 else "only one that is met at the first evaluation can be"
        why = f"a target is reached once two evaluations in a row meet it, so {chance}"
        often, remedy = "once" if count == 1 else "twice", "train longer, or evaluate more often: three times at least"
        does = "evaluated"
        if self.workload.loop:
            does, remedy = "reported", "let the loop report more often: three times at least"
        return [f"{length}: {value_in(self, length)}, {does} {often}: {why}; {remedy}"]

    @property
    def period_word(self) -> str:
        """What a period of its trainings is called: `epoch`, `evaluation`, or `report` of a Ray Train loop."""
        return REPORT if self.workload.loop else self.train.period_word

    @property
    def evaluations(self) -> int:
        """The most evaluations that a training of the study has."""
        if self.judged:
            return self.judged.evaluations
        unit, values_of = self.train.unit, self.sweep.values_of
        lengths = values_of(f"train.{unit}") or [self.train.length]
        periods = values_of("train.eval_every") or [self.train.eval_every]
        pairs = itertools.product(lengths, periods)
        return max(self.train.replace(**{unit: length}, eval_every=every).evaluations for length, every in pairs)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data with every default filled in. `StudySpec.model_validate` gives an equal spec.

        The tracking address loses its password, since everything stored or shown is made from this. Keys of the
        workload for the other kind of loop are left out; of a Ray Train loop, also the keys of `train` that it does not
        obey. Of runs that others made, only what is known of them is there.
        """
        plain = self.model_dump(mode="json")
        plain["tracking"]["uri"] = self.tracking.uri and redacted(self.tracking.uri)
        plain["sweep"] = {key: values for key, values in plain["sweep"].items() if values is not None}
        name = metric_name(self.workload.metric)
        if name not in Targets.model_fields:
            plain["targets"] = {name if key == "accuracy" else key: value for key, value in plain["targets"].items()}
        for key in Workload.model_fields.keys() - OF_ANY:
            if self.judged or (key in OF_LOOP) != bool(self.workload.loop):
                del plain["workload"][key]
        if self.workload.loop:
            plain["train"] = {"epochs": plain["train"]["epochs"]}
        if self.judged is None:
            del plain["judged"]
            return plain
        return {key: plain[key] for key in OF_JUDGED}

    def to_yaml(self) -> str:
        """Return the resolved spec as YAML, with the sections in the order of this class."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True)


def metric_name(metric: str) -> str:
    """Return the short name of a metric: `top_two` of `my_metrics:top_two`, `val/acc` of `judged:val/acc`."""
    return metric.removeprefix(JUDGED) if metric.startswith(JUDGED) else metric.rpartition(":")[2]


def values_in(spec: StudySpec, key: str) -> list[Any]:
    """Return every value that a parameter has in some trial, or the bounds of its range.

    Keys of `train` include their section, here and below: `train.lr_rule`.
    """
    return spec.sweep.values_of(key) or [value_in(spec, key)]


def value_in(spec: StudySpec, key: str) -> Any:
    """Return what a section says of a key that is not swept. None: an argument that is not given."""
    if is_argument(key):
        mapping, _, name = key.rpartition(".")
        return value_of(spec, mapping).get(name)
    return value_of(spec, key)


def value_pairs(spec: StudySpec, first: str, second: str) -> Iterable[tuple[Any, Any]]:
    """Return every pair of values that two parameters have in the same trial. A range gives its bounds."""
    lists = {key: spec.sweep.values_of(key) for key in (*spec.sweep.lists(), *spec.sweep.ranges())}

    def values(key: str, point: dict[str, Any]) -> Sequence[Any]:
        return (point[key],) if key in point else lists.get(key) or (value_in(spec, key),)

    pairs = [
        pair
        for point in spec.sweep.points or ({},)
        for pair in itertools.product(values(first, point), values(second, point))
    ]
    return {repr(pair): pair for pair in pairs}.values()


def field_of(spec: StudySpec, key: str) -> str:
    """Return the field of the spec that sets a parameter."""
    if key in spec.sweep.lists() or key in spec.sweep.ranges():
        return f"sweep.{key}"
    return "sweep.points" if spec.sweep.values_of(key) else key
