"""Studies in which nothing is the matter, or one cause slows every step: which verdicts come up."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scalestudy.experiments.analysis.answers import verdicts as judging
from scalestudy.experiments.analysis.answers.posterior import Posterior
from scalestudy.experiments.analysis.measures.cells import cell_row, gather
from scalestudy.experiments.analysis.measures.metric import ACCURACY
from scalestudy.experiments.analysis.measures.scaling import timing_rows
from tests.support.synthetic_studies import study_of
from tests.support.trials import Law

THRESHOLDS = {
    "data": judging.DATA_SHARE,
    "allreduce": judging.SYNC_SHARE,
    "small_batch_per_worker": judging.SMALL_BATCH_RATIO - 1,
    "straggler": judging.STRAGGLER_RATIO - 1,
    "contention": judging.CONTENTION_RATIO - 1,
}
CAUSES = tuple(THRESHOLDS)
BATCH, MOST = 256, 1024
"""The batch size that is judged, and the largest. Judged are two workers, so the shares are half of each.

One worker is timed with the share of these two also.
"""
PER_EXAMPLE = 1e-4


def verdicts_drawn(
    cause: str | None,
    *,
    draws: int,
    noises: tuple[float, float] = (0.05, 0.2),
    seeds: int = 10,
    seed: int = 5,
    law: bool = False,
    times: float = 2.0,
    others: float = 0.5,
) -> list[set[str]]:
    """The causes that come up in each of so many studies.

    cause: at so many times its threshold; the others, or all if it is None, are at 0.02 to `others` of theirs. noises:
    of a phase, from and to. law: whether there is a step's law, by which a fixed cost is judged. The recommended cell
    has one worker or two, by turns.
    """
    generator = np.random.default_rng(seed)
    spec, plan, trials = study_of(
        f"name: x\ntrain: {{epochs: 2}}\n"
        f"sweep: {{num_gpus: [1, 2, 4], batch_size: [{BATCH // 2}, {BATCH}, {MOST}], seed: {list(range(seeds))}}}",
        Law(noise=0.0),
    )
    found = []
    for draw in range(draws):
        at = {each: generator.uniform(0.02, others) for each in CAUSES} | ({cause: times} if cause else {})
        shares = {each: at[each] * THRESHOLDS[each] for each in CAUSES}
        drawn = _drawn(trials, shares, float(generator.uniform(*noises)), generator)
        cells = gather(plan, drawn, ACCURACY)
        rows = timing_rows(cells, {cell.label: cell_row(cell)["epoch_seconds"] for cell in cells})
        [label] = [cell.label for cell in cells if (cell.num_gpus, cell.batch_size) == (1 + draw % 2, BATCH)]
        chosen = {"recommended": {"label": label}, "target": None, "missed_targets": []}
        case = judging.Case.of(rows, chosen, Posterior(spec, cells) if law else None)
        found.append({each["cause"] for each in judging.verdicts(case)})
    return found


def _drawn(
    trials: Sequence[Mapping[str, Any]], shares: Mapping[str, float], noise: float, generator: np.random.Generator
) -> list[dict[str, Any]]:
    """The trials with phases of such shares at two workers. All scatter alone, and so does the slowest worker."""
    share, most = BATCH / 2, MOST / 2  # examples of a worker
    small = shares["small_batch_per_worker"]
    fixed = PER_EXAMPLE * small / (1 / share - (1 + small) / most)
    whole = (fixed + PER_EXAMPLE * share) * (1 + shares["contention"]) / (1 - shares["data"] - shares["allreduce"])
    drawn = []
    for trial in trials:
        workers, batch = (trial["params"][key] for key in ("num_gpus", "batch_size"))
        means = {
            "data": shares["data"] * whole,
            "forward_backward": (fixed + PER_EXAMPLE * batch / workers) * (1 + shares["contention"] * (workers > 1)),
            "gradient_sync": shares["allreduce"] * whole if workers > 1 else 0.0,
            "optimizer": 1e-9,
        }
        phases = {name: seconds * math.exp(generator.normal(0, noise)) for name, seconds in means.items()}
        slowest = (1 + shares["straggler"]) * math.exp(generator.normal(0, noise))
        epochs = []
        for epoch in trial["epochs"]:
            seconds = sum(phases.values()) * epoch["steps"]
            made = {"train_seconds": seconds, "samples_per_second": epoch["samples"] / seconds}
            made |= {"phases": {name: each * epoch["steps"] for name, each in phases.items()}}
            epochs.append({**epoch, **made, "straggler_ratio": slowest})
        drawn.append({**trial, "epochs": epochs})
    return drawn
