"""`scalestudy plan --measure`: trains one cheap cell for some steps here, by the training loop that a study runs.

The training runs in a child process (`main`), so that a time limit can end it, whatever the user's code does.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalestudy.experiments.plan.estimate import Timing, way_of
from scalestudy.experiments.plan.plan import TrialPlan, label
from scalestudy.orchestration.base.child import order_and_answer, run_child
from scalestudy.orchestration.base.errors import RequestError
from scalestudy.orchestration.study.trials import train_config
from scalestudy.training.process import run

if TYPE_CHECKING:
    from scalestudy.training.config import TrainConfig
    from scalestudy.training.distributed import Worker


LIMIT_SECONDS = 60.0
LEAST_SECONDS = 15.0
"""If less of the limit is left, no other way of training is begun."""
TIMED_SECONDS = 5.0
"""Time spent in steps. The rest of the limit is for imports, data and the model."""
WARM_UP_STEPS = 5
FIRST_STEPS = 5
FORWARD_SHARE = 1 / 3
"""Share of a step's time that an evaluation of as many examples takes: it has no backward pass, which takes two
thirds."""
NOT_TIMED: Mapping[str, Any] = {
    "learning_rate": 1e-4,
    "schedule": "constant",
    "warmup_epochs": 0.0,
    "warmup_steps": None,
    "warmup_tokens": None,
    "warmup_share": None,
    "steps": None,
    "tokens": None,
    "eval_every": None,
    "epochs": 1_000,  # more than are trained: `max_steps` and `min_seconds` end the training
}
"""Settings that do not change the time of a step, chosen so that the few steps train well."""


def cell_to_time(trials: Sequence[TrialPlan]) -> TrialPlan:
    """Return the trial to time for its way of training: with the fewest workers, the one with the median batch.

    Its batch is one worker's share and runs on one worker, so a single process is enough.
    """
    fewest = min(trial.num_gpus for trial in trials)
    batches = sorted({trial.batch_size for trial in trials if trial.num_gpus == fewest})
    share = {"num_gpus": 1, "batch_size": max(1, batches[(len(batches) - 1) // 2] // fewest)}
    return dataclasses.replace(trials[0], trial_id="", kind="timing", params={**trials[0].params, **share})


def measure_cells(
    trials: Sequence[TrialPlan], data_root: Path, *, device: str, threads: int, limit_seconds: float = LIMIT_SECONDS
) -> list[Timing]:
    """Time one cheap cell of each way of training until the time is used up; the first is timed in any case.

    device: cpu or cuda. Raises RequestError for a training that fails, or takes too long.
    """
    ways: dict[str, list[TrialPlan]] = {}
    for trial in trials:
        ways.setdefault(way_of(trial.workload, trial.train), []).append(trial)
    began = time.monotonic()
    found: list[Timing] = []
    for alike in ways.values():
        left = limit_seconds - (time.monotonic() - began)
        if found and left < LEAST_SECONDS:
            break
        try:
            found.append(_measured(cell_to_time(alike), data_root, device=device, threads=threads, limit_seconds=left))
        except RequestError:
            if not found:
                raise
            break  # keep what was timed before
    return found


def _measured(cell: TrialPlan, data_root: Path, *, device: str, threads: int, limit_seconds: float) -> Timing:
    """Time a cell in a child process."""
    name = label({key: value for key, value in cell.cell.items() if key != "learning_rate"})
    config = train_config(cell, data_root).replace(**NOT_TIMED)
    done = run_child(
        ("-m", __name__), {"config": config.to_dict(), "device": device, "threads": threads}, limit_seconds
    )
    if done.status is None:
        problem = f"--measure: {name}: {FIRST_STEPS + WARM_UP_STEPS} steps and their start took more than"
        remedy = "plan on the machine that is to train, or plan without --measure"
        raise RequestError(f"{problem} {limit_seconds:.0f} s", remedy)
    if done.status:
        raise RequestError(f"--measure: {name}: {done.said}", "correct the spec, or plan without --measure")
    return Timing(
        source=f"{name} trained here now",
        way=way_of(cell.workload, cell.train),
        num_gpus=cell.num_gpus,
        batch_size=cell.batch_size,
        **json.loads(done.answers[-1]),
    )


def time_training(config: TrainConfig, worker: Worker, seconds: float) -> dict[str, float | None]:
    """Time the steps of a config on one worker for `seconds`; return the figures of a `Timing`.

    Raises InputError for an iterable data set, since the length of its epochs is unknown.
    """
    from scalestudy.training.data.loading import load_splits
    from scalestudy.training.data.splits import Splits, TensorSplits
    from scalestudy.training.data.streams import Passes
    from scalestudy.training.exceptions import InputError
    from scalestudy.training.loop.train import train
    from scalestudy.training.trees import count

    splits = load_splits(config, worker.device)
    sets: Any = (
        (splits.train_targets, splits.test_targets) if isinstance(splits, Splits) else (splits.train, splits.test)
    )
    if any(isinstance(each, Passes) for each in sets):
        raise InputError(f"data: {config.data!r} is an iterable data set, and the length of its epochs is not known")
    examples, tests = (count(each) if isinstance(splits, TensorSplits) else len(each) for each in sets)
    steps = WARM_UP_STEPS + FIRST_STEPS
    timed = config.replace(warm_up_steps=WARM_UP_STEPS, max_steps=steps, min_seconds=seconds)
    result = train(timed, worker)
    rated = [record for record in result.records if record.samples_per_second]
    if not rated:
        raise ValueError(result.message or "no step was timed")
    last = rated[-1]
    example_seconds = 1 / (last.samples_per_second or 1.0)
    return {
        "example_seconds": example_seconds,
        "evaluation_seconds": FORWARD_SHARE * example_seconds * tests,
        "epoch_examples": examples,
        "example_tokens": last.tokens / last.samples if last.tokens else None,
    }


def main() -> None:
    """Read an order from standard input, train, and answer with the figures."""
    order, answer = order_and_answer()
    import torch

    from scalestudy.training.config import TrainConfig
    from scalestudy.training.device import choose_device
    from scalestudy.training.distributed import Worker

    device = choose_device(order["device"], None)
    torch.set_num_threads(order["threads"])
    worker = Worker(rank=0, world_size=1, device=device, threads=order["threads"])
    try:
        answer(time_training(TrainConfig.from_dict(order["config"]), worker, TIMED_SECONDS))
    except ValueError as error:  # invalid settings bring their remedy
        sys.exit(" ".join(str(error).split()))


if __name__ == "__main__":
    run(main, exit_seconds=0.0)
