"""Stage 1, study spec: factorised studies that can't work, or whose products would not be exact (docs/formulas.md §7).

A user's own model is looked at when the study is about to start, by `training.exactness`.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from experiments.search_checks import Finding
from experiments.spec_models import GRADIENT_SYNCS
from experiments.spec_values import INEXACT_SYNCS, field_of, values_in

if TYPE_CHECKING:
    from experiments.spec import StudySpec

Values = Callable[[str], Sequence[Any]]
INSTEAD = "set search.method: grid, or search.allow_inexact: true to run it all the same"


def factorised_findings(spec: "StudySpec") -> Iterator[Finding]:
    """What is wrong with a factorised study, or with its keys in another one."""
    if spec.search.method != "factorised":
        yield from _without_effect(spec)
        return
    yield from _no_product(spec)
    if not spec.search.allow_inexact:
        yield from inexact_findings(spec)


def inexact_findings(spec: "StudySpec", values: Values | None = None) -> Iterator[Finding]:
    """What makes epochs to a target depend on num_gpus.

    values: of a `train.*` key, those to be judged; None: every one that some trial has.
    """
    values = values or partial(values_in, spec)
    yield from _inexact_rule(spec, values)
    yield from _inexact_sums(spec, values)
    yield from _inexact_model(spec, values)


def _without_effect(spec: "StudySpec") -> Iterator[Finding]:
    for key, value in (("train_on", spec.search.train_on), ("allow_inexact", spec.search.allow_inexact)):
        if value:
            yield f"search.{key}", value, "has no effect: no grid is factorised", "set search.method: factorised"


def _no_product(spec: "StudySpec") -> Iterator[Finding]:
    """A grid is factorised by num_gpus: there must be several, each with all of the rest."""
    sizes, train_on = spec.sweep.values_of("num_gpus"), spec.search.train_on
    for key in ("num_gpus", "seed"):
        if any(key in point for point in spec.sweep.points or ()):
            message, points = f"give {key}, so that they are no grid of it", list(spec.sweep.points or ())
            yield "sweep.points", points, message, f"list sweep.{key} apart, or set search.method: grid"
            return
    if "num_gpus" in spec.sweep.ranges():
        return  # told of by itself
    if len(sizes) < 2:
        message = "has nothing to factorise: there is one num_gpus"
        yield "search.method", "factorised", message, "list more under sweep.num_gpus, or set search.method: grid"
    elif train_on is not None and train_on not in sizes:
        choices = ", ".join(map(str, sizes))
        yield "search.train_on", train_on, "is no num_gpus of the sweep", f"choose one of {choices}, or null"


def _inexact_rule(spec: "StudySpec", values: Values) -> Iterator[Finding]:
    if "adascale" in values("train.lr_rule"):
        message = "goes by gradients as num_gpus workers measure them, so that epochs to a target depend on num_gpus"
        yield field_of(spec, "train.lr_rule"), "adascale", message, INSTEAD


def _inexact_sums(spec: "StudySpec", values: Values) -> Iterator[Finding]:
    for name in values("train.gradient_sync"):
        if name in INEXACT_SYNCS:
            message = "does not sum gradients exactly, so that epochs to a target depend on num_gpus"
        elif name not in GRADIENT_SYNCS:
            message = "is code of your own, and only you can know whether it sums gradients exactly"
        else:
            continue
        yield field_of(spec, "train.gradient_sync"), name, message, INSTEAD


def _inexact_model(spec: "StudySpec", values: Values) -> Iterator[Finding]:
    """Of the built-in models, those with batch normalisation or dropout."""
    model, arguments = spec.workload.model, spec.workload.model_args
    normalised = model == "resnet18" or (model == "mlp" and arguments.get("batch_norm") is True)
    if normalised and not all(values("train.sync_batch_norm")):
        message = "has batch normalisation, which sees each worker's examples alone"
        yield "workload.model", model, message, f"set train.sync_batch_norm: true; or {INSTEAD}"
    elif normalised and set(values("train.accumulation")) != {1}:
        message = "has batch normalisation, which sees micro-batches, other examples at each num_gpus"
        yield "workload.model", model, message, f"set train.accumulation: 1; or {INSTEAD}"
    if model == "mlp" and arguments.get("dropout"):
        message = "draws dropout's random numbers by worker and not by example"
        yield "workload.model_args", arguments, message, f"set dropout: 0; or {INSTEAD}"
