"""Which further trials would answer what the study could not, and what they take, in one line."""

from collections.abc import Mapping
from typing import Any

from scalestudy.experiments.analysis.measures.intervals import ENOUGH_SEEDS
from scalestudy.experiments.analysis.measures.parts import Summary, present
from scalestudy.experiments.analysis.measures.units import plural, seconds_text
from scalestudy.experiments.plan.timing_runs import TIMED_SECONDS, TIMED_STEPS, TIMING_RUNS

ENOUGH_SIZES, ENOUGH_BATCHES, ENOUGH_RATES = 4, 3, 3
"""Distinct values that the laws of scaling, of batch sizes and of rates need."""
ORDINALS = {2: "a second", 3: "a third"}


def to_learn(summary: Summary) -> str:
    """Return `To learn more: time 4 and 8 workers, 2 min; a third batch size, 6 min.`

    Empty if the study supports everything.

    Times are estimates from this study's trainings, without start-up. They are left out if none is known.
    """
    wanted = [_sizes(summary), *_values(summary), _seeds(summary), _target(summary)]
    found = [
        f"{what}{'' if seconds is None else f', {seconds_text(seconds)}'}" for what, seconds in filter(None, wanted)
    ]
    return f"To learn more: {'; '.join(found)}." if found else ""


Wanted = tuple[str, float | None]


def _params(summary: Summary, key: str) -> list[Any]:
    return sorted({row["params"][key] for row in summary["cells"]})


def _chosen(summary: Summary) -> Mapping[str, Any] | None:
    choice = summary["recommendation"]["choice"]
    if present(choice):
        return next((row for row in summary["cells"] if row["label"] == choice["label"]), None)
    return next((row for row in summary["cells"] if present(row["epoch_seconds"])), None)


def _sizes(summary: Summary) -> Wanted | None:
    """Suggest timings with more workers, each twice as many, until the laws of scaling have enough sizes."""
    sizes = _params(summary, "num_gpus")
    lacking = ENOUGH_SIZES - len(sizes)
    if not sizes or lacking <= 0:
        return None
    more = [sizes[-1] * 2 ** (step + 1) for step in range(lacking)]
    named = f"{', '.join(map(str, more[:-1]))} and {more[-1]}" if len(more) > 1 else str(more[0])
    row = _chosen(summary)
    phases = row["step_seconds"] if row is not None else None
    if phases is None or not present(phases):
        return f"time {named} workers", None
    step = sum(phases[name] for name in phases if isinstance(phases[name], float))
    return f"time {named} workers", max(step * TIMED_STEPS, TIMED_SECONDS) * TIMING_RUNS * len(more)


def _training_seconds(summary: Summary) -> float | None:
    row = _chosen(summary)
    if row is None or not present(row["epoch_seconds"]):
        return None
    return float(row["epoch_seconds"]["value"]) * summary["study"]["epochs"]


def _values(summary: Summary) -> list[Wanted | None]:
    """Suggest trainings at one more batch size and learning rate, with as many seeds as the chosen cell."""
    row, seconds = _chosen(summary), _training_seconds(summary)
    seeds = max(1, row["trials"]["planned"]) if row is not None else 1
    taken = None if seconds is None else seconds * seeds
    found: list[Wanted | None] = []
    for key, name, enough in (("batch_size", "batch size", ENOUGH_BATCHES), ("learning_rate", "rate", ENOUGH_RATES)):
        count = len(_params(summary, key))
        found.append((f"{ORDINALS.get(count + 1, 'one more')} {name}", taken) if 0 < count < enough else None)
    return found


def _seeds(summary: Summary) -> Wanted | None:
    """Suggest the seeds that the chosen cell lacks until its scatter is known."""
    choice = summary["recommendation"]["choice"]
    if not present(choice) or choice["n_seeds"] >= ENOUGH_SEEDS:
        return None
    lacking, seconds = ENOUGH_SEEDS - choice["n_seeds"], _training_seconds(summary)
    return f"{plural(lacking, 'more seed')} of {choice['label']}", None if seconds is None else lacking * seconds


def _target(summary: Summary) -> Wanted | None:
    return None if summary["study"]["targets"] else ("a target (`targets.accuracy`), by which times are compared", None)
