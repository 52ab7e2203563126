"""`scalestudy bench max-batch SPEC`: the largest batch that a worker's memory takes, for each way a study trains."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from experiments.plan import ITEMS, TrialPlan, make_plan
from orchestration.errors import RequestError
from orchestration.preflight import check_callables, check_configs, check_data, known_trials, read_spec, request_error
from orchestration.trials import train_config

if TYPE_CHECKING:
    import torch

    from training.execution.experiment import Experiment, Table
    from training.max_batch import MaxBatch

NAME = "max-batch"
GIB = 2**30
IRRELEVANT = ("train.epochs", "train.gradient_sync", "train.schedule", "train.lr_rule", "train.warmup_epochs")
"""Swept keys that change no step's memory on one worker."""


class MaxBatchBench:
    """The experiment of a spec, to be run on a device."""

    def __init__(self, source: str | None, overrides: Sequence[str] = (), memory_gib: float | None = None) -> None:
        """Raises SpecError or RequestError: no spec, no data, a limit that is none."""
        if source is None:
            raise RequestError("bench max-batch: no study is named", "write scalestudy bench max-batch SPEC")
        if memory_gib is not None and not memory_gib > 0:
            raise RequestError(f"--memory: {memory_gib:g} GiB is not above 0", "give the GiB that a worker may use")
        spec = read_spec(source, overrides)
        self._root = check_data(spec)
        check_callables(spec)
        trials = known_trials(spec, make_plan(spec))
        check_configs(trials, self._root)
        self._study, self._threads, self._memory_gib = spec.name, spec.resources.cpus_per_worker, memory_gib
        self._ways: dict[str, TrialPlan] = {}
        for trial in trials:
            self._ways.setdefault(_way(trial), trial)

    def __call__(self, device: torch.device, *, quick: bool = False) -> Experiment:
        """Search; `quick` ends at 64 examples. Raises RequestError where the limit has to be stated."""
        from training.execution.experiment import Experiment

        if device.type == "cpu" and self._memory_gib is None:
            raise RequestError("bench max-batch: on a CPU the limit has to be stated", "add --memory GIB")
        found = {way: self._search(trial, device, 64 if quick else None) for way, trial in self._ways.items()}
        metrics = {f"max_batch_{number}_count": float(each.batch) for number, each in enumerate(found.values(), 1)}
        return Experiment(
            name=NAME,
            question=f"What is the largest batch that one worker's memory takes in {self._study}?",
            tables=(_answers(found), *(_tries(way, each) for way, each in found.items())),
            notes=_notes(next(iter(found.values()))),
            metrics=metrics,
        )

    def _search(self, trial: TrialPlan, device: torch.device, most: int | None) -> MaxBatch:
        from training.config import TrainConfig
        from training.distributed import Worker
        from training.max_batch import LARGEST, find_max_batch

        config = TrainConfig.from_dict(train_config(trial, self._root))
        worker = Worker(0, 1, device, threads=self._threads)
        limit = None if self._memory_gib is None else int(self._memory_gib * GIB)
        try:
            return find_max_batch(config, worker, limit_bytes=limit, most=most or LARGEST)
        except ValueError as error:
            raise request_error(error, "correct the spec") from error


def _way(trial: TrialPlan) -> str:
    """What a trial has of the study's swept parameters that can change its memory, as text."""
    left_out = {*ITEMS, *IRRELEVANT}
    swept: dict[str, Any] = {key: value for key, value in trial.params.items() if key not in left_out}
    return ", ".join(f"{key}={json.dumps(value)}" for key, value in swept.items()) or "the study's"


def _answers(found: dict[str, MaxBatch]) -> Table:
    from training.execution.experiment import Table

    rows = [(way, each.batch, "yes" if each.at_least else "no", _gib(each.limit_bytes)) for way, each in found.items()]
    header = ("training", "largest batch a worker", "more may fit", "limit, GiB")
    return Table("Largest batch of one worker, whole steps made", header, tuple(rows))


def _tries(way: str, found: MaxBatch) -> Table:
    from training.execution.experiment import Table

    rows = [
        (each.batch, "fits" if each.fits else "out of memory", _gib(each.peak_memory_bytes)) for each in found.tries
    ]
    return Table(f"What was tried: {way}", ("batch", "outcome", "peak memory, GiB"), tuple(rows))


def _gib(size_bytes: int | None) -> float | None:
    return None if size_bytes is None else size_bytes / GIB


def _notes(found: MaxBatch) -> tuple[str, ...]:
    if found.device.startswith("cuda"):
        kind = "Peak memory is what PyTorch had allocated in that step; the limit is the device's whole memory."
    else:
        kind = ("The limit holds for all data of a process of its own (RLIMIT_DATA), with the interpreter's, the "
                "libraries' and the data set. Peak memory is the process's largest resident set so far.")  # fmt: skip
    several = ("With several workers a study's batch_size may be num_gpus times as large; each worker then needs one "
               "more copy of the gradients, for the buckets of DistributedDataParallel.")  # fmt: skip
    return kind, several, "The largest batch is found to within 1/64: a bit more may fit, and much more does not."
