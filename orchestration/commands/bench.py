"""`scalestudy bench max-batch`: the largest batch that a worker's memory takes."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rich.console import Console

from scalestudy.experiments.plan.plan import NO_STEP_TIME, TrialPlan, make_plan
from scalestudy.experiments.spec.sweep_section import ITEMS
from scalestudy.orchestration.base.errors import RequestError, UnreachableError, request_error
from scalestudy.orchestration.commands import show
from scalestudy.orchestration.commands.bench_result import EXPERIMENT, NAME, LargestBatches, Run, Table
from scalestudy.orchestration.study.folders import read_trained_spec
from scalestudy.orchestration.study.loop_checks import refuse_loop
from scalestudy.orchestration.study.ready import check_callables, check_configs, check_data, known_trials
from scalestudy.orchestration.study.trials import train_config
from scalestudy.orchestration.tracking.mlflow_store import NOTE, NOTE_LIMIT, ROLE, open_experiment
from scalestudy.orchestration.tracking.sending import Sender
from scalestudy.orchestration.tracking.server import TrackingAddress, check_reachable, resolve_address
from scalestudy.training.config import Train, TrainConfig
from scalestudy.training.section import strategy_of

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    import torch

    from scalestudy.training.distributed import Worker
    from scalestudy.training.loop.memory_fit import MaxBatch

GIB = 2**30
QUICK_MOST = 64  # examples; where a search ends with --quick
OF_STRATEGIES = frozenset(f"train.{name}" for name, field in Train.model_fields.items() if strategy_of(field))
IRRELEVANT = NO_STEP_TIME | OF_STRATEGIES | {"train.gradient_sync", "train.lr_rule"}
"""Swept keys that do not change the memory of a step on one worker."""


def bench_max_batch(
    source: str,
    overrides: Sequence[str] = (),
    memory_gib: float | None = None,
    *,
    device: str = "auto",
    quick: bool = False,
    tracked: bool = True,
) -> LargestBatches:
    """Find the largest batch for each way in which a study trains, and keep it in the tracking store that `run` uses.

    memory_gib: what a worker on a CPU may use. quick: end at 64 examples.

    Raises SpecError or RequestError for a bad spec, no data, an unknown device and a limit that is missing or none, and
    what check_reachable raises, before anything is measured. A store that is lost meanwhile costs the run, not the
    result: see `untracked`.
    """
    from scalestudy.training.device import choose_device
    from scalestudy.training.distributed import Worker

    if memory_gib is not None and not memory_gib > 0:
        raise RequestError(f"--memory: {memory_gib:g} GiB is not above 0", "give the GiB that a worker may use")
    spec = read_trained_spec(source, overrides)
    refuse_loop(spec, "bench max-batch", "name a study of the built-in loop")
    root = check_data(spec)
    check_callables(spec)
    trials = known_trials(spec, make_plan(spec))
    check_configs(trials, root)
    try:
        place = choose_device(device, None)
    except ValueError as error:
        raise request_error(error, "choose auto, cpu or cuda") from error
    if place.type == "cpu" and memory_gib is None:
        raise RequestError("bench max-batch: a CPU needs a limit", "add --memory GIB")
    address = resolve_address(None) if tracked else None
    if address:
        check_reachable(address)
    ways: dict[str, TrialPlan] = {}
    for trial in trials:
        ways.setdefault(_way(trial), trial)
    worker = Worker(0, 1, place, threads=spec.resources.cpus_per_worker)
    found = {way: _largest(train_config(trial, root), worker, memory_gib, quick=quick) for way, trial in ways.items()}
    done = LargestBatches(
        question=f"What is the largest batch that fits one worker's memory in {spec.name}?",
        tables=_tables(found),
        notes=_notes(place),
        metrics={f"max_batch_{number}_count": float(each.batch) for number, each in enumerate(found.values(), 1)},
        machine=_machine(place),
        quick=quick,
    )
    if address is None:
        return done
    try:
        return replace(done, mlflow=Run(address.shown, _log(done, address)))
    except Exception as error:  # MLflow raises its own, SQLAlchemy's and requests' errors
        problem = f"tracking.uri: {address.shown}: the run could not be recorded ({type(error).__name__})"
        remedy = "the results above are complete; correct MLFLOW_TRACKING_URI and run it again"
        return replace(done, untracked=UnreachableError(problem, remedy))


def _way(trial: TrialPlan) -> str:
    """Return, as text, the swept parameters of a trial that can change its memory."""
    left_out = {*ITEMS, *IRRELEVANT}
    swept: dict[str, Any] = {key: value for key, value in trial.params.items() if key not in left_out}
    return ", ".join(f"{key}={json.dumps(value)}" for key, value in swept.items()) or "the study's"


def _largest(config: TrainConfig, worker: Worker, memory_gib: float | None, *, quick: bool) -> MaxBatch:
    from scalestudy.training.loop import memory_fit

    limit = None if memory_gib is None else int(memory_gib * GIB)
    try:
        return memory_fit.find_max_batch(
            config, worker, limit_bytes=limit, most=QUICK_MOST if quick else memory_fit.LARGEST
        )
    except ValueError as error:
        raise request_error(error, "correct the spec") from error


def _tables(found: Mapping[str, MaxBatch]) -> tuple[Table, ...]:
    """Return a table of the answers, and for each way one of what was tried."""
    answers = [
        (way, each.batch, "yes" if each.at_least else "no", _gib(each.limit_bytes)) for way, each in found.items()
    ]
    header = ("training", "largest batch a worker", "more may fit", "limit, GiB")
    tables = [Table("Largest batch of one worker, whole steps made", header, tuple(answers))]
    for way, search in found.items():
        tries = [
            (each.batch, "fits" if each.fits else "out of memory", _gib(each.peak_memory_bytes))
            for each in search.tries
        ]
        tables.append(Table(f"What was tried: {way}", ("batch", "outcome", "peak memory, GiB"), tuple(tries)))
    return tuple(tables)


def _gib(size_bytes: int) -> float:
    return size_bytes / GIB


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


def _machine(device: torch.device) -> dict[str, str]:
    import torch

    from scalestudy.training.device import usable_cores

    on_cuda = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if on_cuda else "CPU",
        "devices": str(torch.cuda.device_count() if on_cuda else 1),
        "cores": str(usable_cores()),
        "threads": str(torch.get_num_threads()),
        "torch": torch.__version__,
    }


def _log(done: LargestBatches, address: TrackingAddress) -> str:
    """Log the run: parameters, metrics, all as JSON, and what is printed. Return its id."""
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
