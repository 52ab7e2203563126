"""Synthetic trials with a known truth: what `trials.jsonl` would hold if training followed a simple law.

Seconds a step are data + per_example · m + fixed + sync (m = B/K examples a worker; no sync for one worker); test
accuracy after e epochs is ceiling − (ceiling − floor) · exp(−rate · e), rate falling with the batch size and rising
with the learning rate. Another metric that the plan names has the same values, or, where less of it is better, 1 minus
them. With noise 0 every figure can be computed by hand.
"""

import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from scalestudy.experiments.plan.plan import Plan, TrialPlan

START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, kw_only=True)
class Law:
    """The truth behind the trials. Times in seconds a step unless they say otherwise."""

    samples: int = 1437
    data: float = 0.0002
    fixed: float = 0.002
    per_example: float = 0.0001
    sync: float = 0.0012
    sync_per_worker: float = 0.0004
    optimizer: float = 0.0003
    floor: float = 0.1
    ceiling: float = 0.985
    learning: float = 60.0
    noise: float = 0.0
    between_trials: float = 0.3
    eval_seconds: float = 0.02
    straggler: float | None = 1.0  # compute of the slowest worker over the median one's; None: of an older version

    def phases(self, num_gpus: int, batch_size: int) -> dict[str, float]:
        """Seconds a step by phase, without noise."""
        sync = self.sync + self.sync_per_worker * (num_gpus - 2) if num_gpus > 1 else 0.0
        compute = self.fixed + self.per_example * batch_size / num_gpus
        return {"data": self.data, "forward_backward": compute, "gradient_sync": sync, "optimizer": self.optimizer}

    def steps(self, batch_size: int) -> int:
        """Steps an epoch; the last, smaller batch is kept."""
        return math.ceil(self.samples / batch_size)

    def epoch_seconds(self, num_gpus: int, batch_size: int) -> float:
        """Training seconds an epoch, without noise."""
        return self.steps(batch_size) * sum(self.phases(num_gpus, batch_size).values())

    def accuracy(self, epoch: int, batch_size: int, learning_rate: float) -> float:
        """Test accuracy after an epoch (from 1), without noise."""
        rate = self.learning * learning_rate / batch_size
        return self.ceiling - (self.ceiling - self.floor) * math.exp(-rate * epoch)


def make_trials(
    plan: Plan,
    law: Law | None = None,
    *,
    endings: Mapping[str, str] | None = None,
    flags: Mapping[str, list[str]] | None = None,
    message: str = "RuntimeError: the model raised",
    device: str = "cpu",
) -> list[dict[str, Any]]:
    """A record for each trial of the plan, run one after the other.

    endings, flags: by run name ("workers=2 batch=32 lr=0.1 seed=0"); "*" stands for every trial not named.
    """
    law = law or Law()
    trials, clock = [], START
    for trial in plan.trials:
        status = _named(endings, trial, "finished")
        record = _record(trial, law, status, clock, device, message)
        record["flags"] = list(_named(flags, trial, []))
        trials.append(record)
        clock += timedelta(seconds=record["wall_seconds"])
    return trials


def slow_down(trial: Mapping[str, Any], factor: float = 2.0) -> None:
    """Make the steps of a training take so many times as long, in place."""
    for epoch in trial["epochs"]:
        epoch["train_seconds"] *= factor
        epoch["samples_per_second"] /= factor
        epoch["phases"] = {name: seconds * factor for name, seconds in epoch["phases"].items()}


def across_nodes(trial: dict[str, Any], nodes: int = 2) -> None:
    """Put a training's workers on several nodes with a slow network between them, in place."""
    slow_down(trial, 3.0)
    trial["world"] = {**trial["world"], "nodes": nodes}


def make_timings(timings: Iterable[TrialPlan], law: Law, *, warm_up_seconds: float = 1.0) -> list[dict[str, Any]]:
    """A record for each timing run, cut into epochs as training does it; its first epoch is slowed by the warm-up."""
    return [_timing(trial, law, warm_up_seconds) for trial in timings]


def _timing(trial: TrialPlan, law: Law, warm_up_seconds: float) -> dict[str, Any]:
    record = _record(trial, law, "finished", START, "cuda", "")
    whole, left, epochs = law.steps(trial.batch_size), trial.train["max_steps"], []
    for epoch in record["epochs"]:
        steps = min(whole, left)
        share = steps / whole
        slowed = warm_up_seconds if epoch["epoch"] == 1 else 0.0
        cut = {"steps": steps, "samples": epoch["samples"] * share, "test_accuracy": None, "test_loss": None}
        seconds = epoch["train_seconds"] * share + slowed
        factor = seconds / epoch["train_seconds"]
        phases = {name: value * factor for name, value in epoch["phases"].items()}
        left -= steps
        if steps:
            epochs.append({**epoch, **cut, "train_seconds": seconds, "phases": phases, "eval_seconds": None})
    return {**record, "kind": "timing", "epochs": epochs, "train_seconds": sum(e["train_seconds"] for e in epochs)}


def _named(table: Mapping[str, Any] | None, trial: TrialPlan, default: Any) -> Any:
    return (table or {}).get(trial.name, (table or {}).get("*", default))


def _record(trial: TrialPlan, law: Law, status: str, clock: datetime, device: str, message: str) -> dict[str, Any]:
    generator = random.Random(trial.trial_id)
    count = {"finished": trial.evaluations, "diverged": 2, "out_of_memory": 0, "failed": 1}.get(status, 0)
    epochs: list[dict[str, Any]] = []
    now = clock + timedelta(seconds=law.between_trials)
    for number in range(1, count + 1):
        epochs.append(_epoch(trial, law, number, generator, now, broken=status == "diverged" and number == count))
        now += timedelta(seconds=epochs[-1]["train_seconds"] + epochs[-1]["eval_seconds"])
    train_seconds = sum(epoch["train_seconds"] for epoch in epochs)
    failed = status in ("failed", "out_of_memory", "skipped", "diverged")
    workers = [{"rank": rank, "node": "node-1", "device": device, "threads": 1} for rank in range(trial.num_gpus)]
    return {
        "trial_id": trial.trial_id,
        "kind": "training",
        "params": dict(trial.params),
        "status": status,
        "attempts": 1,
        "started_at": _stamp(clock),
        "ended_at": _stamp(now),
        "wall_seconds": (now - clock).total_seconds(),
        "train_seconds": train_seconds,
        "startup_seconds": law.between_trials,
        "world": {"device": device, "nodes": 1, "workers": workers} if status != "skipped" else None,
        "flags": [],
        "epochs": epochs,
        "error": {"kind": status, "message": message, "rank": trial.num_gpus - 1} if failed else None,
    }


def _epoch(
    trial: TrialPlan, law: Law, number: int, generator: random.Random, now: datetime, *, broken: bool
) -> dict[str, Any]:
    steps = law.steps(trial.batch_size)
    factor = math.exp(generator.gauss(0, law.noise)) * (1.3 if number == 1 and law.noise else 1.0)
    phases = {name: seconds * steps * factor for name, seconds in law.phases(trial.num_gpus, trial.batch_size).items()}
    seconds = sum(phases.values())
    accuracy = law.accuracy(number, trial.batch_size, trial.learning_rate) + generator.gauss(0, law.noise / 10)
    accuracy = min(max(accuracy, 0.0), 1.0)
    value = 1 - accuracy if trial.workload["metric_mode"] == "min" else accuracy
    metric = trial.workload["metric"].rpartition(":")[2]
    return {
        "epoch": number,
        "at": _stamp(now),
        "steps": steps,
        "train_loss": None if broken else 2.3 * (1 - accuracy),
        "test_loss": None if broken else 2.4 * (1 - accuracy),
        "metric": metric,
        f"test_{metric}": None if broken else value,
        "train_seconds": seconds,
        "eval_seconds": law.eval_seconds,
        "samples": law.samples,
        "samples_per_second": law.samples / seconds,
        "learning_rate": trial.learning_rate,
        "phases": phases,
        "grad_sq_norm": None,
        "grad_trace_cov": None,
        "straggler_ratio": law.straggler,
        "peak_memory_bytes": 123_456_789,
        "replica_max_diff": 0.0,
    }


def _stamp(time: datetime) -> str:
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
