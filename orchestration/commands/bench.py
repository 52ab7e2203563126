"""`scalestudy bench max-batch`: the largest batch that a worker's memory takes."""

from __future__ import annotations

import io
import json
import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rich.console import Console

from scalestudy.experiments.plan.plan import NO_STEP_TIME, TrialPlan, make_plan
from scalestudy.experiments.spec.sweep_section import ITEMS
from scalestudy.orchestration.base.errors import RequestError, UnreachableError, request_error
from scalestudy.orchestration.commands import show
from scalestudy.orchestration.commands.bench_result import EXPERIMENT, NAME, Experiment, Run, Table
from scalestudy.orchestration.study.folders import read_trained_spec
from scalestudy.orchestration.study.loop_checks import refuse_loop
from scalestudy.orchestration.study.ready import check_callables, check_configs, check_data, known_trials
from scalestudy.orchestration.study.trials import train_config
from scalestudy.orchestration.tracking.mlflow_store import NOTE, NOTE_LIMIT, ROLE, open_experiment
from scalestudy.orchestration.tracking.sending import Sender
from scalestudy.orchestration.tracking.server import TrackingAddress, check_reachable, resolve_address
from scalestudy.training.config import Train
from scalestudy.training.section import strategy_of

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    import torch

    from scalestudy.training.loop.memory_fit import MaxBatch


def run_bench(bench: MaxBatchBench, *, device: str = "auto", quick: bool = False, tracked: bool = True) -> Experiment:
    """Run the bench, and keep it in the tracking store that `run` uses.

    Raises RequestError for an unknown device, and what check_reachable raises, before anything is measured. A store
    that is lost meanwhile costs the run, not the result: see `untracked`.
    """
    from scalestudy.training.device import choose_device

    address = resolve_address(None) if tracked else None
    try:
        place = choose_device(device, None)
    except ValueError as error:
        raise request_error(error, "choose auto, cpu or cuda") from error
    if address:
        check_reachable(address)
    machine = _machine(place)
    done = replace(bench(place, quick=quick), machine=machine, quick=quick)
    if address is None:
        return done
    try:
        return replace(done, mlflow=Run(address.shown, _log(done, address)))
    except Exception as error:  # MLflow raises its own, SQLAlchemy's and requests' errors
        problem = f"tracking.uri: {address.shown}: the run could not be recorded ({type(error).__name__})"
        remedy = "the results above are complete; correct MLFLOW_TRACKING_URI and run it again"
        return replace(done, untracked=UnreachableError(problem, remedy))


def _machine(device: torch.device) -> dict[str, str]:
    import torch

    on_cuda = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if on_cuda else "CPU",
        "devices": str(torch.cuda.device_count() if on_cuda else 1),
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1),
        "threads": str(torch.get_num_threads()),
        "torch": torch.__version__,
    }


def _log(done: Experiment, address: TrackingAddress) -> str:
    """Log one run, by the bench's name: its parameters, metrics, all as JSON, and what is printed. Return its id."""
    from mlflow.entities import Metric

    client, experiment = open_experiment(address, EXPERIMENT)
    printed = io.StringIO()
    show.bench(Console(file=printed, width=100), done)
    tags = {ROLE: "bench", NOTE: f"```\n{printed.getvalue()[: NOTE_LIMIT - 8]}\n```"}
    run_id = str(client.create_run(experiment, run_name=NAME, tags=tags).info.run_id)
    params = {"bench": NAME, "quick": str(done.quick), **done.machine}
    started = client.get_run(run_id).info.start_time
    points = [Metric(key, value, started, 0) for key, value in done.metrics.items()]
    Sender(client, logger.warning).log(run_id, points, params.items())
    client.log_dict(run_id, done.to_dict(), f"{NAME}.json")
    client.set_terminated(run_id)
    return run_id


GIB = 2**30
OF_STRATEGIES = frozenset(f"train.{name}" for name, field in Train.model_fields.items() if strategy_of(field))
IRRELEVANT = NO_STEP_TIME | OF_STRATEGIES | {"train.gradient_sync", "train.lr_rule"}
"""Swept keys that do not change the memory of a step on one worker."""


class MaxBatchBench:
    """The experiment on a spec, to run on a device."""

    def __init__(self, source: str, overrides: Sequence[str] = (), memory_gib: float | None = None) -> None:
        """Check the arguments. Raises SpecError or RequestError: a bad spec, no data, a limit that is not a limit."""
        if memory_gib is not None and not memory_gib > 0:
            raise RequestError(f"--memory: {memory_gib:g} GiB is not above 0", "give the GiB that a worker may use")
        spec = read_trained_spec(source, overrides)
        refuse_loop(spec, "bench max-batch", "name a study of the built-in loop")
        self._root = check_data(spec)
        check_callables(spec)
        trials = known_trials(spec, make_plan(spec))
        check_configs(trials, self._root)
        self._study, self._threads, self._memory_gib = spec.name, spec.resources.cpus_per_worker, memory_gib
        self._ways: dict[str, TrialPlan] = {}
        for trial in trials:
            self._ways.setdefault(_way(trial), trial)

    def __call__(self, device: torch.device, *, quick: bool = False) -> Experiment:
        """Search; `quick` ends at 64 examples. Raises RequestError where the user has to state the limit."""
        if device.type == "cpu" and self._memory_gib is None:
            raise RequestError("bench max-batch: a CPU needs a limit", "add --memory GIB")
        largest = {way: self._search(trial, device, 64 if quick else None) for way, trial in self._ways.items()}
        answers = [
            (way, each.batch, "yes" if each.at_least else "no", _gib(each.limit_bytes)) for way, each in largest.items()
        ]
        header = ("training", "largest batch a worker", "more may fit", "limit, GiB")
        tables = [Table("Largest batch of one worker, whole steps made", header, tuple(answers))]
        for way, search in largest.items():
            tries = [
                (each.batch, "fits" if each.fits else "out of memory", _gib(each.peak_memory_bytes))
                for each in search.tries
            ]
            tables.append(Table(f"What was tried: {way}", ("batch", "outcome", "peak memory, GiB"), tuple(tries)))
        return Experiment(
            question=f"What is the largest batch that fits one worker's memory in {self._study}?",
            tables=tuple(tables),
            notes=_notes(device),
            metrics={f"max_batch_{number}_count": float(each.batch) for number, each in enumerate(largest.values(), 1)},
        )

    def _search(self, trial: TrialPlan, device: torch.device, most: int | None) -> MaxBatch:
        from scalestudy.training.distributed import Worker
        from scalestudy.training.loop.memory_fit import LARGEST, find_max_batch

        config = train_config(trial, self._root)
        worker = Worker(0, 1, device, threads=self._threads)
        limit = None if self._memory_gib is None else int(self._memory_gib * GIB)
        try:
            return find_max_batch(config, worker, limit_bytes=limit, most=most or LARGEST)
        except ValueError as error:
            raise request_error(error, "correct the spec") from error


def _way(trial: TrialPlan) -> str:
    """Return, as text, the swept parameters of a trial that can change its memory."""
    left_out = {*ITEMS, *IRRELEVANT}
    swept: dict[str, Any] = {key: value for key, value in trial.params.items() if key not in left_out}
    return ", ".join(f"{key}={json.dumps(value)}" for key, value in swept.items()) or "the study's"


def _gib(size_bytes: int | None) -> float | None:
    return None if size_bytes is None else size_bytes / GIB


def _notes(device: torch.device) -> tuple[str, ...]:
    if device.type == "cuda":
        kind = "Peak memory is what PyTorch had allocated in that step; the limit is the device's whole memory."
    else:
        kind = (
            "Each batch is tried in a fresh process. The limit holds for all of its data (RLIMIT_DATA), with the "
            "interpreter's, the libraries' and the data set. Peak memory is its largest resident set."
        )
    several = (
        "With several workers a study's batch_size may be num_gpus times as large; each worker then needs one "
        "more copy of the gradients, for the buckets of DistributedDataParallel."
    )
    return kind, several, "The largest batch is found to within 1/64: slightly more may fit, much more does not."
