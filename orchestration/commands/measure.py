"""`scalestudy plan --measure`: trains one cheap cell for some steps here, by the training loop that a study runs.

The training is a process of its own (`main`), so that a limit of time ends it, whatever the user's code does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalestudy.experiments.plan.estimate import step_ratios, way_of
from scalestudy.experiments.plan.plan import TrialPlan, label
from scalestudy.orchestration.base.child import run_child
from scalestudy.orchestration.base.errors import RequestError
from scalestudy.orchestration.study.trials import train_config

if TYPE_CHECKING:
    from scalestudy.training.config import TrainConfig
    from scalestudy.training.distributed import Worker


LIMIT_SECONDS = 60.0
LEAST_SECONDS = 15.0
"""Of the limit: where less is left, no other way of training is begun."""
TRAIN_SHARE = 0.4
"""Of the limit: what the steps that are timed may take; the rest is for imports, data and the model."""
WARM_UP_STEPS = 5
FIRST_STEPS = 5
MOST_STEPS = 120
MOST_EPOCHS = 3
NOT_TIMED: Mapping[str, Any] = {
    "learning_rate": 1e-4,
    "schedule": "constant",
    "warmup_epochs": 0.0,
    "warmup_steps": None,
    "steps": None,
    "tokens": None,
    "eval_every": None,
    "epochs": 1_000,  # more than are trained: `max_steps` ends a training that is timed
}
"""What does not change the time of a step, set so that the few steps train well."""


@dataclass(frozen=True, kw_only=True)
class MeasuredCells:
    """What was timed just now. trials: as `plan.estimate` takes them. words: what they are."""

    trials: Sequence[Mapping[str, Any]]
    words: str


def cell_to_time(trials: Iterable[TrialPlan]) -> TrialPlan:
    """The trial that is timed for others of its way: of the fewest workers, the batch that tells most of all others.

    It is one worker's share, with one worker: a process that needs no other.
    """
    trials = list(trials)
    fewest = min(trial.num_gpus for trial in trials)

    def uncertainty(of: TrialPlan) -> float:
        bounds = [step_ratios(of.num_gpus, of.batch_size, each.num_gpus, each.batch_size) for each in trials]
        return sum(math.log(high / low) for low, high in bounds)

    chosen = min((trial for trial in trials if trial.num_gpus == fewest), key=uncertainty)
    share = {"num_gpus": 1, "batch_size": max(1, chosen.batch_size // fewest)}
    return dataclasses.replace(chosen, trial_id="", kind="timing", params={**chosen.params, **share})


def measure_cells(
    trials: Sequence[TrialPlan], data_root: Path, *, device: str, threads: int, limit_seconds: float = LIMIT_SECONDS
) -> MeasuredCells:
    """Times one cheap cell of each way of training, as far as the time reaches; the first is timed in any case.

    device: cpu or cuda. Raises RequestError for a training that fails, or takes too long.
    """
    ways: dict[str, list[TrialPlan]] = {}
    for trial in trials:
        ways.setdefault(way_of(trial.workload, trial.train), []).append(trial)
    began = time.monotonic()
    found: list[dict[str, Any]] = []
    steps = 0
    named: list[str] = []
    for alike in ways.values():
        left = limit_seconds - (time.monotonic() - began)
        if found and left < LEAST_SECONDS:
            break
        cell = cell_to_time(alike)
        try:
            records = _measured(cell, data_root, device=device, threads=threads, limit_seconds=left)
        except RequestError:
            if not found:
                raise
            break  # what was timed before is of use
        found += records
        steps += sum(epoch["steps"] for record in records for epoch in record["epochs"])
        shown = {key: value for key, value in cell.cell.items() if key != "learning_rate"}
        named.append(label(shown))
    seconds = time.monotonic() - began
    return MeasuredCells(
        trials=found, words=f"{steps} steps of {', '.join(named)}, trained here now in {seconds:.0f} s"
    )


def _measured(
    cell: TrialPlan, data_root: Path, *, device: str, threads: int, limit_seconds: float
) -> list[dict[str, Any]]:
    """Times a cell in a process of its own; returns records as of trials.jsonl."""
    name = label(cell.cell)
    config = train_config(cell, data_root).replace(**NOT_TIMED)
    order = {"config": config.to_dict(), "device": device, "threads": threads, "seconds": TRAIN_SHARE * limit_seconds}
    done = run_child(("-m", __name__), order, limit_seconds)
    if done.status is None:
        problem = f"--measure: {name}: {FIRST_STEPS + WARM_UP_STEPS} steps and their start took more than"
        remedy = "plan on the machine that is to train, or plan without --measure"
        raise RequestError(f"{problem} {limit_seconds:.0f} s", remedy)
    if done.status:
        raise RequestError(f"--measure: {name}: {done.said}", "correct the spec, or plan without --measure")
    records: list[dict[str, Any]] = json.loads(done.answers[-1])
    return [
        {
            **record,
            "params": cell.params,
            "workload": cell.workload,
            "train": {**cell.train, "epochs": MOST_EPOCHS, "steps": None, "tokens": None, "eval_every": None},
            "flags": [],
        }
        for record in records
    ]


def time_training(config: TrainConfig, worker: Worker, seconds: float) -> list[dict[str, Any]]:
    """Times a config on one worker: whole epochs with their evaluation if they fit the time, else steps alone.

    seconds: that the steps may take. Returns records with `kind` and `epochs`; of steps alone also `epoch_steps`, and
    `evaluations`, between nothing and as long as the steps of as many examples would take.
    """
    from scalestudy.training.batches import steps_per_epoch
    from scalestudy.training.data.loading import load_splits
    from scalestudy.training.data.splits import Splits, TensorSplits
    from scalestudy.training.data.streams import Passes
    from scalestudy.training.exceptions import InputError
    from scalestudy.training.loop.train import train
    from scalestudy.training.trees import count

    config = config.replace(warm_up_steps=WARM_UP_STEPS)
    splits = load_splits(config, worker.device)
    sets: Any = (
        (splits.train_targets, splits.test_targets) if isinstance(splits, Splits) else (splits.train, splits.test)
    )
    if any(isinstance(each, Passes) for each in sets):
        raise InputError(f"data: {config.data!r} is an iterable data set, and the length of its epochs is not known")
    examples, tests = (count(each) if isinstance(splits, TensorSplits) else len(each) for each in sets)
    steps = steps_per_epoch(examples, config.batch_size)

    def timed(count: int) -> tuple[list[dict[str, Any]], float]:
        result = train(config.replace(max_steps=WARM_UP_STEPS + count), worker)
        epochs = [record.to_dict() for record in result.records]
        rated = [epoch for epoch in epochs if epoch["samples_per_second"]]
        if not rated:
            raise ValueError(result.message or "no step was timed")
        return epochs, rated[-1]["samples"] / rated[-1]["steps"] / rated[-1]["samples_per_second"]

    epochs, step = timed(FIRST_STEPS)
    whole = step * steps * (1 + tests / examples)
    if (epoch_count := min(MOST_EPOCHS, int(seconds / whole))) > 0:
        result = train(config.replace(epochs=epoch_count), worker)
        if result.records:
            return [{"kind": "training", "epochs": [record.to_dict() for record in result.records]}]
    if (more := min(MOST_STEPS, int(seconds / step) - WARM_UP_STEPS)) > FIRST_STEPS:
        epochs, step = timed(more)
    return [
        {
            "kind": "timing",
            "epochs": epochs,
            "epoch_steps": steps,
            "evaluations": [0.0, step * steps * tests / examples],
        }
    ]


def main() -> None:
    """The process that trains: reads its order from standard input, and prints the records as its last line."""
    order = json.load(sys.stdin)
    with contextlib.redirect_stdout(sys.stderr):  # what a user's code prints
        import torch

        from scalestudy.training.config import TrainConfig
        from scalestudy.training.device import choose_device
        from scalestudy.training.distributed import Worker

        device = choose_device(order["device"], None)
        torch.set_num_threads(order["threads"])
        worker = Worker(rank=0, world_size=1, device=device, threads=order["threads"])
        try:
            records = time_training(TrainConfig.from_dict(order["config"]), worker, order["seconds"])
        except ValueError as error:  # of the settings, with a remedy of its own
            sys.exit(" ".join(str(error).split()))
    print(json.dumps(records, allow_nan=False))


if __name__ == "__main__":
    main()
