"""The rehearsal of a study: one step of each kind of training, on the CPU, before anything starts.

A process of its own makes the steps (`main`), within a limit of time and of memory. What it can't find out stops no
study: only a mistake does.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scalestudy.experiments.plan.plan import TrialPlan, label
from scalestudy.orchestration.base.child import run_child
from scalestudy.orchestration.base.errors import RequestError
from scalestudy.orchestration.study.blame import blamed
from scalestudy.orchestration.study.trials import train_config
from scalestudy.training.config import TrainConfig
from scalestudy.training.exceptions import is_out_of_memory, wants_gpu
from scalestudy.training.process import run
from scalestudy.training.registry import (
    INITIALISATIONS,
    LOSSES,
    METRICS,
    OPTIMIZERS,
    SCHEDULES,
)

LIMIT_SECONDS = 60.0
"""For all kinds of training together, the process's start included."""
MEMORY_SHARE = 0.5
"""Of the free memory, which a rehearsal may take."""
MOST_NAMES = 3
"""Kinds that a line lists."""
WITHOUT = "correct it; --no-rehearsal starts the study without this check"
FITTING_MODELS = ("lenet", "mlp", "resnet18")
FITTING_DATA = ("digits", "synthetic", "mnist", "fashion_mnist")
FITTING_EXAMPLES = 1_437
"""Built-in models and data of which each fits each, with any built-in loss and metric, and the fewest training examples
of these data. A test tries them all."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Trainings that make the same mistakes. trial: one of the smallest batch. largest_batch: of any of them.

    in_group: each has several workers, so that its code may ask the process group.
    """

    trial: TrialPlan
    largest_batch: int
    in_group: bool


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the process says of a kind: the loss of its step and the seconds, or a problem, or why it was left out."""

    loss: float | None = None
    seconds: float | None = None
    problem: str = ""
    remedy: str = ""
    left_out: str = ""

    @property
    def is_finite(self) -> bool:
        """Whether the step's loss is a number."""
        return self.loss is not None and math.isfinite(self.loss)


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """What was rehearsed. steps: by kind, its loss and seconds. left_out: by kind, why not. seconds: of all."""

    steps: Mapping[str, Answer]
    left_out: Mapping[str, str]
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for --json."""
        steps = {
            name: {"loss": step.loss if step.is_finite else None, "seconds": step.seconds}
            for name, step in self.steps.items()
        }
        return {"steps": steps, "left_out": dict(self.left_out), "seconds": self.seconds}

    def words(self) -> str:
        """One line."""
        steps = [f"{name} (loss {step.loss:.4g})" for name, step in self.steps.items()]
        made = f"{self.seconds:.1f} s, one step of {_listed(steps)}" if steps else "no step was made"
        return f"rehearsal: {'; '.join([made, *self.left_out_words()])}"

    def left_out_words(self) -> list[str]:
        """A line for each reason why kinds were left out."""
        reasons: dict[str, list[str]] = {}
        for name, why in self.left_out.items():
            reasons.setdefault(why, []).append(name)
        return [f"{_listed(names)} left out: {why}" for why, names in reasons.items()]


def _listed(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def is_known_to_fit(trials: Iterable[TrialPlan]) -> bool:
    """Whether all that trains is built in, and tried before: then a rehearsal would find nothing."""
    return all(_fits(trial.workload, trial.train) and trial.batch_size <= FITTING_EXAMPLES for trial in trials)


def _fits(workload: Mapping[str, Any], train: Mapping[str, Any]) -> bool:
    arguments = dict(workload["model_args"])
    return (
        workload["model"] in FITTING_MODELS
        and workload["data"] in FITTING_DATA
        and str(arguments.pop("init", "default")) in INITIALISATIONS
        and not (arguments or workload["data_args"] or workload.get("task"))
        and workload["loss"] in LOSSES
        and workload["metric"] in METRICS
        and not _own(train)
    )


def kinds_of(trials: Iterable[TrialPlan]) -> dict[str, Kind]:
    """The trials' kinds by their names: the batch, and the parameters in which kinds differ."""
    alike: dict[str, list[TrialPlan]] = {}
    for trial in trials:
        word = json.dumps([trial.workload, _own(trial.train)], sort_keys=True, default=repr)
        alike.setdefault(word, []).append(trial)
    smallest = [min(each, key=lambda trial: trial.batch_size) for each in alike.values()]
    differing = [
        key
        for key in (smallest[0].params if smallest else ())
        if key.startswith(("workload.", "train.")) and len({repr(trial.params[key]) for trial in smallest}) > 1
    ]
    kinds = {}
    for first, each in zip(smallest, alike.values(), strict=True):
        name = label({key: first.params[key] for key in ("batch_size", *differing)})
        kinds[name] = Kind(
            trial=first,
            largest_batch=max(trial.batch_size for trial in each),
            in_group=all(trial.num_gpus > 1 for trial in each),
        )
    return kinds


def _own(train: Mapping[str, Any]) -> dict[str, Any]:
    """What of `train` is the user's own code. A gradient strategy has nothing to do where one worker trains."""
    own: dict[str, Any] = {}
    if train["optimizer"]["name"] not in OPTIMIZERS:
        own["optimizer"] = train["optimizer"]
    if train["schedule"] not in SCHEDULES:
        own["schedule"] = train["schedule"]
    return own


def rehearse_study(trials: Iterable[TrialPlan], data_root: Path, *, limit_seconds: float = LIMIT_SECONDS) -> Rehearsal:
    """Rehearses each kind of the trials, in their order, as far as the time reaches. Raises RequestError for a mistake.

    Nothing else stops a study: a kind that needs more time, memory or a GPU is left out.
    """
    began = time.monotonic()
    kinds = kinds_of(trials)
    order = [
        {
            "config": train_config(kind.trial, data_root).to_dict(),
            "largest_batch": kind.largest_batch,
            "in_group": kind.in_group,
        }
        for kind in kinds.values()
    ]
    ended = run_child(("-m", __name__), order, limit_seconds)
    answers = [Answer(**json.loads(line)) for line in ended.answers]
    if ended.status is None:
        missing = f"it takes more than {limit_seconds:.0f} s"
    else:
        missing = f"its process ended with status {ended.status} ({ended.said})"
    steps: dict[str, Answer] = {}
    left_out = dict.fromkeys(kinds, missing)
    for name, answer in zip(kinds, answers, strict=False):
        if answer.problem:
            where = f"{name}: " if len(kinds) > 1 else ""
            raise RequestError(f"{where}{answer.problem}", answer.remedy)
        del left_out[name]
        if answer.left_out:
            left_out[name] = answer.left_out
        else:
            steps[name] = answer
    return Rehearsal(steps=steps, left_out=left_out, seconds=time.monotonic() - began)


def answer_for(config: TrainConfig, largest_batch: int, *, in_group: bool, threads: int, memory: str) -> Answer:
    """Rehearses one config in this process. memory: how much it may take, in words."""
    import torch

    from scalestudy.training.distributed import Worker
    from scalestudy.training.loop.rehearsal import rehearse

    worker = Worker(rank=0, world_size=1, device=torch.device("cpu"), threads=threads)
    try:
        done = rehearse(config, worker, largest_batch, in_group=in_group)
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        if is_out_of_memory(error):
            return Answer(left_out=f"it takes more than {memory}")
        if wants_gpu(error):
            return Answer(left_out=f"it needs a GPU ({' '.join(str(error).split())[:80]})")
        refused = blamed(error, config, WITHOUT)
        return Answer(problem=refused.problem, remedy=refused.remedy)
    return Answer(loss=done.loss, seconds=done.seconds)


def free_memory_bytes() -> int | None:
    """What this machine, or the container's control group, has left; None: the system does not tell."""
    found = []
    with contextlib.suppress(OSError, ValueError, KeyError):
        facts = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text("utf-8").splitlines())
        found.append(int(facts["MemAvailable"].split()[0]) * 1024)
    with contextlib.suppress(OSError, ValueError):  # "max": no limit
        group = Path("/sys/fs/cgroup")
        most, used = (int((group / f"memory.{name}").read_text("utf-8")) for name in ("max", "current"))
        found.append(most - used)
    return min(found, default=None)


def limit_memory() -> str:
    """Limits what this process may take from now on to its share of the free memory; returns how much, in words."""
    free = free_memory_bytes()
    if free is None:
        return "the memory of this machine"
    room = int(MEMORY_SHARE * free)
    with contextlib.suppress(OSError, ValueError, IndexError):
        taken = int(Path("/proc/self/statm").read_text("utf-8").split()[5]) * resource.getpagesize()  # data and stack
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (taken + room, hard))
    return f"half of the free memory, {room / 2**30:.1f} GiB"


def main() -> None:
    """The process that makes the steps: reads its order from standard input, and prints an answer for each kind."""
    order: Sequence[Mapping[str, Any]] = json.load(sys.stdin)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a user's code prints
    threads = os.cpu_count() or 1  # all: then a data set is read in this process, and not in loaders of its own
    import scalestudy.training.loop.rehearsal  # noqa: F401 - before the limit, which is for the user's code

    memory = limit_memory()
    for each in order:
        answer = answer_for(
            TrainConfig.from_dict(each["config"]),
            each["largest_batch"],
            in_group=each["in_group"],
            threads=threads,
            memory=memory,
        )
        print(json.dumps(asdict(answer)), file=answers, flush=True)
        if answer.problem:
            return


if __name__ == "__main__":
    run(main, exit_seconds=0.0)
