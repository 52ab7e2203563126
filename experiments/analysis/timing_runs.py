"""Stage 8, analysis: what the exclusive timing runs say – the time of a step, undisturbed.

docs/concepts.md, "Timed alone", says what they are for.

Such a run has made so many steps of some epochs, the last one cut off, and was not evaluated. Its figures are means
over its steps: the runs are short, and epochs cut to different lengths have no median worth the name.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from experiments.analysis.parts import Part, missing, positive
from experiments.analysis.trial_measures import PHASES, TIMED, Trial, epoch_phases, samples_per_second, timed_epochs
from experiments.timing_runs import step_key


def is_timing(trial: Trial) -> bool:
    """Whether a line of trials.jsonl is of a timing run."""
    return trial.get("kind") == "timing"


def without(trials: Iterable[Trial]) -> list[Trial]:
    """The lines that are of no timing run."""
    return [trial for trial in trials if not is_timing(trial)]


def by_step(trials: Sequence[Trial]) -> dict[str, Trial]:
    """The timing runs that ended well, by what they have timed (`step_key`); of several the last."""
    good = [trial for trial in trials if is_timing(trial) and trial["status"] in TIMED]
    return {step_key(trial["params"]): trial for trial in good if step_seconds(trial) is not None}


def _rated(timing: Trial) -> list[tuple[float, float, float]]:
    """Of each epoch that timings are taken from: examples, steps, and their seconds at the rate after the warm-up."""
    rated = []
    for epoch in timed_epochs(timing):
        samples, steps, rate = positive(epoch.get("samples")), positive(epoch.get("steps")), samples_per_second(epoch)
        if samples and steps and rate:
            rated.append((samples, steps, samples / rate))
    return rated


def rate(timing: Trial) -> float | None:
    """Samples/s over all workers."""
    rated = _rated(timing)
    return sum(samples for samples, _, _ in rated) / sum(seconds for _, _, seconds in rated) if rated else None


def step_seconds(timing: Trial) -> float | None:
    """Seconds a step."""
    rated = _rated(timing)
    return sum(seconds for _, _, seconds in rated) / sum(steps for _, steps, _ in rated) if rated else None


def repeats(timing: Trial, steps: float | None) -> list[tuple[float | None, float | None]]:
    """Seconds an epoch of so many steps, and samples/s, as each epoch of the run has them."""
    return [
        (None if steps is None else seconds / made * steps, samples / seconds)
        for samples, made, seconds in _rated(timing)
    ]


def phase_seconds(timing: Trial) -> Part:
    """Seconds a step of each phase, their sum the undisturbed step: the shares of the steps that were looked into."""
    epochs = [(phases, epoch["steps"]) for epoch in timed_epochs(timing) if (phases := epoch_phases(epoch))]
    sums: Mapping[str, float] = {name: math.fsum(phases[name] * steps for phases, steps in epochs) for name in PHASES}
    whole, seconds = math.fsum(sums.values()), step_seconds(timing)
    if not whole or seconds is None:
        return missing("phases were not measured")
    return {name: value / whole * seconds for name, value in sums.items()}


def timing_counts(trials: Sequence[Trial]) -> dict[str, int]:
    """Timing runs: how many there were, and how many of them gave figures."""
    runs = [trial for trial in trials if is_timing(trial)]
    return {"runs": len(runs), "used": len(by_step(runs))}


def caveat(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """What a reader must know of cells whose timings are not of their own trials."""
    timed = sum(row["timed_apart"] for row in rows)
    if not timed:
        return None
    return (
        f"Timings of {timed} of {len(rows)} cells are from short runs with the node to themselves; their time to a "
        "target is epochs to target times undisturbed seconds an epoch."
    )
