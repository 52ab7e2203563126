"""Checks of values against one another.

`scalestudy.training.loop.exactness` checks a user's own model when the study is about to start.
"""

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from pydantic_core import to_jsonable_python

from scalestudy.experiments.spec.search_space import SEARCHED, Space, stated_places, stated_values
from scalestudy.experiments.spec.study_spec import StudySpec, field_of, value_pairs, values_in
from scalestudy.training.config import GIVEN_TO_LOOP, Train, Workload
from scalestudy.training.contradictions import CONTRADICTIONS
from scalestudy.training.redaction import redacted
from scalestudy.training.registry import GRADIENT_SYNCS, INEXACT_SYNCS
from scalestudy.training.section import ABSENT, LARGEST, LineOf, Problem, leaves, strategy_of, text_of, value_of

MAX_TRIALS = 10_000
A_GRID = "set search.method: grid"
"""In place of an adaptive search."""
A_LIMIT = "give one of minutes, worker_hours and trials, such as budget: {minutes: 30}"

OBEYED = "train.epochs"
"""The only key of `train` that a Ray Train loop obeys."""
LOOP_ARGS = "workload.loop_args"
SWEPT_AS: Mapping[str, str] = {"epochs": OBEYED, "batch_size_per_worker": "batch_size"}
"""Keys of the spec that set a key of a loop's config, where the names differ."""

Finding = tuple[str, Any, str, str]
"""Field, value, what is wrong, remedy."""
Values = Callable[[str], Sequence[Any]]


def relation_problems(spec: StudySpec, line_of: LineOf, known: Collection[str]) -> list[Problem]:
    """Find values that are valid alone, but not together.

    line_of: the line of a path. known: fields that have a problem already; they get no second one here.
    """
    findings = itertools.chain(
        _credentials(spec),
        _too_many_trials(spec),
        _batch_too_small(spec),
        *(find(spec) for find in (OF_A_LOOP if spec.workload.loop else OF_THE_BUILT_IN_LOOP)),
        _metric_does_not_fit(spec),
        _stop_does_not_fit(spec),
        _search_does_not_fit(spec),
        _budget_does_not_fit(spec),
        _can_not_be_adaptive(spec),
    )
    problems = []
    for field, value, message, remedy in findings:
        if field in known or (field in ("sweep", "budget") and any(name.startswith(f"{field}.") for name in known)):
            continue
        section, _, rest = field.partition(".")  # under `sweep` a dotted name is one key
        path = (section, rest) if section == "sweep" and rest else tuple(field.split("."))
        problems.append(Problem(field=field, value=value, line=line_of(path), message=message, remedy=remedy))
    return problems


def inexact_findings(spec: StudySpec, values: Values | None = None) -> Iterator[Finding]:
    """Find what makes the epochs to a target depend on num_gpus.

    values: the values of a key to judge. None: every value that some trial has.
    """
    values = values or partial(values_in, spec)
    if spec.workload.loop:
        if not spec.workload.exact:
            message = "may train in another way with each num_gpus, so epochs to a target depend on num_gpus"
            remedy = "set workload.exact: true if it does not, or search.method: grid"
            yield "workload.loop", spec.workload.loop, message, remedy
        return
    if "adascale" in values("train.lr_rule"):
        message = "adapts the rate to the workers' gradients, so epochs to a target depend on num_gpus"
        yield field_of(spec, "train.lr_rule"), "adascale", message, A_GRID
    for name in values("train.gradient_sync"):
        if name in INEXACT_SYNCS:
            message = "does not sum gradients exactly, so epochs to a target depend on num_gpus"
            yield field_of(spec, "train.gradient_sync"), name, message, A_GRID
        elif name not in GRADIENT_SYNCS:
            message = "is your own code, and can't be checked for exact gradient sums"
            yield field_of(spec, "train.gradient_sync"), name, message, A_GRID

    # the built-in models that have batch normalisation or dropout
    model = spec.workload.model
    is_normalised = model == "resnet18" or (model == "mlp" and True in values("workload.model_args.batch_norm"))
    if is_normalised and not all(values("train.sync_batch_norm")):
        message = "has batch normalisation, which normalises over one worker's examples"
        yield "workload.model", model, message, f"set train.sync_batch_norm: true; or {A_GRID}"
    elif is_normalised and set(values("train.accumulation")) != {1}:
        message = "has batch normalisation, which normalises over micro-batches, and these differ with num_gpus"
        yield "workload.model", model, message, f"set train.accumulation: 1; or {A_GRID}"
    dropout = "workload.model_args.dropout"
    if model == "mlp" and (share := next(filter(None, values(dropout)), None)):
        message = "has dropout, whose random numbers differ with num_gpus"
        yield field_of(spec, dropout), share, message, f"set it to 0; or {A_GRID}"


def _credentials(spec: StudySpec) -> Iterator[Finding]:
    """Find passwords in any part except the tracking address, which is recorded without its password."""
    recorded = spec.model_dump(mode="json", exclude={"tracking": {"uri"}})
    for section, value in recorded.items():
        for key, part in value.items() if isinstance(value, dict) else [("", value)]:
            for text in _texts(part):
                if redacted(text) != text:
                    field = f"{section}.{key}" if key else section
                    remedy = "take it from an environment variable in your code, and name the variable here"
                    yield field, text, "holds a password, which every record of the study would show", remedy


def _texts(value: Any) -> Iterator[str]:
    """Yield every text in plain data."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in [*value, *value.values()] if isinstance(value, dict) else value:
            yield from _texts(part)


def _too_many_trials(spec: StudySpec) -> Iterator[Finding]:
    """Count the trials without making them. A search that suggests points counts as the most that it may make."""
    points, search = Space.of(spec.sweep).count, spec.search
    if search.method == "adaptive":
        yield from _too_much_to_search(spec)
        return
    chosen = points if search.method == "grid" else min(points, search.samples)
    count = chosen * len(spec.sweep.seed or (None,))
    if not MAX_TRIALS < count < math.inf:  # `_search_does_not_fit` reports an infinite grid
        return
    if search.method == "grid":
        message = f"the grid has {count:,.0f} trials, more than {MAX_TRIALS:,}"
        yield "sweep", ABSENT, message, "list fewer values, or choose cells with sweep.points"
    else:
        message = f"makes {count:,} trials with all seeds, more than {MAX_TRIALS:,}"
        yield "search.samples", search.samples, message, "choose fewer points"


def _too_much_to_search(spec: StudySpec) -> Iterator[Finding]:
    """Find too many places, or trainings, of an adaptive search."""
    places, trials = math.prod(map(len, stated_values(spec).values())), spec.budget.trials
    if places > MAX_TRIALS:
        message = f"states {places:,} places to search, more than {MAX_TRIALS:,}"
        yield "sweep", ABSENT, message, "list fewer values, or give ranges, of which points an octave apart count"
    if trials is not None and trials > MAX_TRIALS:
        yield "budget.trials", trials, f"allows more than {MAX_TRIALS:,} trainings", f"use at most {MAX_TRIALS}"


def _batch_too_small(spec: StudySpec) -> Iterator[Finding]:
    if spec.is_adaptive:  # `stated_places` leaves such places out
        return
    for batch_size, num_gpus in value_pairs(spec, "batch_size", "num_gpus"):
        if batch_size < num_gpus:
            message = f"is smaller than num_gpus {num_gpus}, so a worker would have no example"
            remedy = f"use batches of at least {num_gpus} examples, or fewer workers"
            yield field_of(spec, "batch_size"), batch_size, message, remedy


def _weights_do_not_fit(spec: StudySpec) -> Iterator[Finding]:
    for shards, num_gpus in value_pairs(spec, "train.shards", "num_gpus"):
        if not isinstance(shards, str) and len(shards) != num_gpus:
            message = f"has {len(shards)} weights, but num_gpus is {num_gpus} in some trial"
            remedy = "give one weight for each worker, sweep one num_gpus, or use even"
            yield field_of(spec, "train.shards"), list(shards), message, remedy


def _contradictions(spec: StudySpec) -> Iterator[Finding]:
    for pair in CONTRADICTIONS:
        key = _dotted(pair.key)
        for value, other in value_pairs(spec, key, _dotted(pair.other_key)):
            if pair.applies(value) and pair.other_applies(other):
                yield field_of(spec, key), value, pair.what(f"{text_of(other)}, which some trial has"), pair.remedy


def _dotted(key: str) -> str:
    """Return the key of a training with the section of the spec that has it."""
    return f"{'workload' if key in Workload.model_fields else 'train'}.{key}"


def _option_without_strategy(spec: StudySpec) -> Iterator[Finding]:
    for name, field in Train.model_fields.items():
        if not (strategy := strategy_of(field)):
            continue
        key = f"train.{name}"
        pairs = list(value_pairs(spec, key, "train.gradient_sync"))
        value = next((value for value, _ in pairs if value is not None), None)
        if value is not None and not any(used == strategy or ":" in used for _, used in pairs):
            remedy = f"set gradient_sync: {strategy}, or remove the key"
            yield field_of(spec, key), value, f"has no effect: no trial's gradient_sync is {strategy}", remedy


def _swept(spec: StudySpec) -> tuple[str, ...]:
    """Return every key that the sweep has."""
    return (*spec.sweep.lists(), *spec.sweep.ranges(), *(spec.sweep.points or ({},))[0])


def _loop_args_without_loop(spec: StudySpec) -> Iterator[Finding]:
    for key in _swept(spec):
        if key.startswith(f"{LOOP_ARGS}."):
            message = f"has no effect without workload.loop: {key} is an argument of one"
            yield field_of(spec, key), spec.sweep.values_of(key), message, "name a loop, or remove the key"


OF_THE_BUILT_IN_LOOP = (_weights_do_not_fit, _contradictions, _option_without_strategy, _loop_args_without_loop)
"""Checks of keys that only the built-in loop obeys."""


def _train_without_effect(spec: StudySpec) -> Iterator[Finding]:
    """Find the keys of `train` that a Ray Train loop does not obey."""
    message, remedy = "has no effect: only the built-in loop obeys it", "remove it; workload.loop_args reach the loop"
    for path, field in leaves(Train):
        key, value = f"train.{'.'.join(path)}", value_of(spec.train, ".".join(path))
        if key != OBEYED and value != field.get_default(call_default_factory=True):
            yield key, to_jsonable_python(value), message, remedy
    for key in _swept(spec):
        if key.startswith("train.") and key != OBEYED:
            place = field_of(spec, key)
            yield place, spec.sweep.values_of(key), message if key in place else f"have {key}, which {message}", remedy
        elif key.startswith("workload.") and not key.startswith(f"{LOOP_ARGS}."):
            why = f"has no effect: there are both `loop` and `{key}`, and a loop has its own"
            yield field_of(spec, key), spec.sweep.values_of(key), why, f"sweep {LOOP_ARGS}.NAME in its place"
        elif key.startswith(f"{LOOP_ARGS}.") and (name := key.rpartition(".")[2]) in GIVEN_TO_LOOP:
            why = f"repeats {name}, which the trial sets in every loop's config"
            yield field_of(spec, key), spec.sweep.values_of(key), why, f"sweep {SWEPT_AS.get(name, name)} in its place"


def _shares_are_not_whole(spec: StudySpec) -> Iterator[Finding]:
    """Find batches that the workers of a loop can't share evenly: `batch_size_per_worker` is whole."""
    ranges = spec.sweep.ranges()
    workers, batches = ranges.get("num_gpus"), ranges.get("batch_size")
    # an adaptive search trains at its places alone, whatever lies between them
    if batches and not spec.is_adaptive and max(values_in(spec, "num_gpus")) > 1:
        message = "is a range, in which some batches are no multiple of num_gpus, as a loop needs"
        yield "sweep.batch_size", batches.model_dump(), message, "list multiples of num_gpus"
        return
    pairs = value_pairs(spec, "batch_size", "num_gpus")
    if spec.is_adaptive:
        stated = stated_values(spec)
        pairs = itertools.product(stated.get("batch_size", ()), stated.get("num_gpus", ()))
    elif workers:
        sizes = range(int(workers.low), int(workers.high) + 1)
        pairs = itertools.product(values_in(spec, "batch_size"), sizes)
    for batch_size, num_gpus in pairs:
        if batch_size >= num_gpus and batch_size % num_gpus:  # `_batch_too_small` reports a smaller one
            message = f"is no multiple of num_gpus {num_gpus}, as a loop's batch_size_per_worker needs"
            remedy = f"use {batch_size // num_gpus * num_gpus}, or another multiple of every num_gpus"
            yield field_of(spec, "batch_size"), batch_size, message, remedy
            return


OF_A_LOOP = (_train_without_effect, _shares_are_not_whole)
"""Checks of a Ray Train loop."""


def _metric_does_not_fit(spec: StudySpec) -> Iterator[Finding]:
    metric, mode = spec.workload.metric, spec.workload.metric_mode
    better = {"accuracy": "max", "mse": "min"}.get(metric, mode)
    if mode != better:
        best, meant = ("largest", "smallest") if mode == "max" else ("smallest", "largest")
        message = f"would choose the {best} {metric}; the {meant} is best"
        yield "workload.metric_mode", mode, message, f"write metric_mode: {better}"
    for target in spec.targets.accuracy:
        if metric in ("accuracy", "mse") and target <= 0:
            yield "targets.accuracy", target, "is too small", "it must be greater than 0"
        elif metric == "accuracy" and target > 1:
            yield "targets.accuracy", target, "is too large", "use at most 1, as in 0.9 for 90 %"


def _stop_does_not_fit(spec: StudySpec) -> Iterator[Finding]:
    if spec.targets.stop is True and not spec.targets.accuracy:
        yield "targets.stop", True, "has no target to stop at", "give one, such as targets: {accuracy: [0.9]}"
    elif spec.targets.stop is True and spec.search.method == "tpe" and spec.search.objective == "metric":
        message = "would end trainings before their best metric, which search.objective looks for"
        yield "targets.stop", True, message, "set search.objective: time_to_target, or stop: false"


def _search_does_not_fit(spec: StudySpec) -> Iterator[Finding]:
    search, method, objective = spec.search, spec.search.method, spec.search.objective
    if method == "grid":
        for key, values in spec.sweep.ranges().items():
            message = "is a range, which a grid can't run"
            yield f"sweep.{key}", values.model_dump(), message, "set search.method: random or tpe, or list the values"

    if method in ("tpe", "adaptive") and spec.sweep.points:
        searcher, other = ("tpe", "random") if method == "tpe" else ("an adaptive search", "grid")
        message = f"can't be searched by {searcher}, which needs lists or ranges"
        remedy = f"list the parameters or give them ranges, or set search.method: {other}"
        yield "sweep.points", list(spec.sweep.points), message, remedy
    elif method == "tpe" and Space.of(spec.sweep).count < 2:
        remedy = "list more values, give a range such as learning_rate: {log_uniform: [0.01, 1]}, or use a grid"
        yield "search.method", "tpe", "has nothing to search: the sweep has one point", remedy

    if objective != "metric" and method not in ("tpe", "adaptive"):
        message = "has no effect: only tpe and adaptive use it"
        yield "search.objective", objective, message, "set search.method: tpe or adaptive"
    elif objective != "metric" and method == "tpe" and not spec.targets.accuracy:
        yield "search.objective", objective, "needs a target", "give one, such as targets: {accuracy: [0.9]}"

    if search.scheduler == "asha" and method == "adaptive":
        message = "does not go with an adaptive search, which learns from trainings that come to their end"
        yield "search.scheduler", "asha", message, "set scheduler: none"
    elif search.scheduler == "asha":  # needs a rung below the last epoch, the same for all trials
        unit, word, count = spec.train.unit, spec.period_word, spec.evaluations
        swept = [key for key in (f"train.{unit}", "train.eval_every") if len(spec.sweep.values_of(key)) > 1]
        if swept:
            message = f"can't be combined with a sweep over {swept[0]}: both decide how long a trial trains"
            remedy = "the longest" if swept[0] == f"train.{unit}" else "one of its values"
            yield "search.scheduler", "asha", message, f"set {swept[0]} to {remedy}, or scheduler: none"
        elif count == 1:
            remedy = f"train for more {word}s, or set scheduler: none"
            yield "search.scheduler", "asha", f"can't stop trials of one {word} early", remedy
        elif search.grace_epochs >= count:
            message = f"leaves nothing to stop: trials have {count} {word}s"
            yield "search.grace_epochs", search.grace_epochs, message, f"use less than {count}, or set scheduler: none"


def _budget_does_not_fit(spec: StudySpec) -> Iterator[Finding]:
    """Find a budget that no adaptive search has, and an adaptive search without one budget."""
    given = {key: value for key, value in spec.budget.to_dict().items() if value is not None}
    if not spec.is_adaptive:
        for key, value in given.items():
            message = "has no effect: search.method is not adaptive"
            yield f"budget.{key}", value, message, "set search.method: adaptive, or remove it"
    elif not given:
        yield "budget", ABSENT, "is missing, and an adaptive search needs one", A_LIMIT
    elif not spec.budget.limits:
        yield "budget", given, "does not bound the search: uses alone may never end it", A_LIMIT
    elif len(spec.budget.limits) > 1:
        first, second, *_ = spec.budget.limits
        message = f"is given beside budget.{first}, and one of them bounds the search"
        yield f"budget.{second}", given[second], message, f"remove budget.{first} or budget.{second}"


def _can_not_be_adaptive(spec: StudySpec) -> Iterator[Finding]:
    """Find why a spec can't be searched adaptively.

    It needs a target, places to choose among, and the same training at each num_gpus: what one place teaches counts for
    those with other workers too.
    """
    if not spec.is_adaptive:
        return
    sweep, seeds = spec.sweep, spec.sweep.seed or ()
    if not spec.targets.accuracy:
        remedy = "give one, such as targets: {accuracy: [0.9]}, or set search.method: tpe"
        yield "targets.accuracy", ABSENT, "is missing, and an adaptive search needs a target", remedy
    if spec.targets.stop is False:
        message = "does not go with an adaptive search, whose trainings end at the target"
        yield "targets.stop", False, message, "set stop: auto, or search.method: grid"
    fixed = {
        **{key: (list(values), A_GRID) for key, values in sweep.lists().items() if len(values) > 1},
        **{key: (values.model_dump(), f"list values and {A_GRID}") for key, values in sweep.ranges().items()},
    }
    for key, (values, instead) in fixed.items():
        if key not in (*SEARCHED, "seed"):
            message = "has several values, and an adaptive search varies num_gpus, batch_size and learning_rate alone"
            yield f"sweep.{key}", values, message, f"keep one value, or {instead}"
    if len(seeds) > 1:
        message = "lists several seeds, and an adaptive search numbers them itself, from one on"
        yield "sweep.seed", list(seeds), message, f"write [{seeds[0]}], or {A_GRID}"
    elif seeds and seeds[0] > LARGEST - MAX_TRIALS:
        message = "leaves an adaptive search, which numbers its seeds from it on, no room"
        yield "sweep.seed", list(seeds), message, f"write {LARGEST - MAX_TRIALS} or less"
    yield from inexact_findings(spec)

    stated = math.prod(map(len, stated_values(spec).values()))
    if sweep.points or stated > MAX_TRIALS:  # `_search_does_not_fit` and `_too_much_to_search` report them
        return
    if (places := len(stated_places(spec))) < 2:
        message = "has one place to search" if places else "has no place at which every worker has an example"
        remedy = "list more values, or give a range such as learning_rate: {log_uniform: [0.01, 1]}"
        yield "sweep", ABSENT, message, remedy
