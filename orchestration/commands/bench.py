"""`scalestudy bench`: the largest batch that a worker's memory takes, and the speed at which workers sum."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table as Columns
from rich.text import Text

from scalestudy.experiments.plan.plan import NO_STEP_TIME, TrialPlan, make_plan
from scalestudy.experiments.spec.sweep_section import ITEMS
from scalestudy.orchestration.base.environment import prepare_environment
from scalestudy.orchestration.base.errors import RequestError, StudyError, UnreachableError, request_error
from scalestudy.orchestration.commands.parameters import ALLREDUCE, BENCHES, MAX_BATCH
from scalestudy.orchestration.study.folders import read_spec
from scalestudy.orchestration.study.ready import check_callables, check_configs, check_data, known_trials
from scalestudy.orchestration.study.trials import train_config
from scalestudy.orchestration.tracking.mlflow_store import METRICS_A_BATCH, NOTE, NOTE_LIMIT, ROLE, open_experiment
from scalestudy.orchestration.tracking.server import TrackingAddress, check_reachable, resolve_address
from scalestudy.training.config import Train
from scalestudy.training.section import strategy_of

if TYPE_CHECKING:
    import torch

    from scalestudy.training.loop.memory_fit import MaxBatch

Cell = str | int | float | None
"""A cell of a table; None: not measured here."""


@dataclass(frozen=True)
class Table:
    """Rows under a header; the heading of a column of numbers names the unit."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True)
class Experiment:
    """The results of a bench on one machine."""

    name: str  # as on the command line
    question: str
    tables: tuple[Table, ...]
    notes: tuple[str, ...]  # what holds on this machine, a sentence or two each
    metrics: Mapping[str, float]  # names end with the unit


Runner = Callable[..., Experiment]
"""A bench: it takes the device and `quick`, and returns an Experiment."""
SCRIPTS = {
    "async": "asynchronous.py and docs/chapter/queue_depth.py",
    "compile": "compile.py and docs/chapter/tracing.py",
    "export": "export.py",
    "parallel": "parallel.py",
    "overlap": "overlap.py",
}
"""Benches of earlier versions, and the scripts in docs/chapter that replace them."""
EXPERIMENT = "scalestudy-bench"
UNTIL_WRAPPED = 10_000  # columns without wrapping, for a file or a pipe, which has no width


@dataclass(frozen=True)
class Benched:
    """An experiment that ran here, and where it is kept."""

    experiment: Experiment
    machine: Mapping[str, str]
    quick: bool
    tracking_uri: str | None = None  # None: not kept
    run_id: str | None = None
    untracked: StudyError | None = None  # why it could not be kept, if it should have been

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, for --json and as the run's artifact."""
        run = {"tracking_uri": self.tracking_uri, "run_id": self.run_id}
        return {**asdict(self.experiment), "machine": dict(self.machine), "quick": self.quick, "mlflow": run}


def run_bench(runner: Runner, *, device: str = "auto", quick: bool = False, tracked: bool = True) -> Benched:
    """Run one experiment, and keep it in the tracking store that `run` uses.

    Raises RequestError for an unknown device, and what check_reachable raises, before anything is measured. A store
    that is lost meanwhile costs the run, not the result: see `untracked`.
    """
    from scalestudy.training.device import choose_device

    prepare_environment()
    address = resolve_address(None) if tracked else None
    try:
        place = choose_device(device, None)
    except ValueError as error:
        raise request_error(error, "choose auto, cpu or cuda") from error
    if address:
        check_reachable(address)
    found_machine = _machine(place)
    done = Benched(runner(place, quick=quick), found_machine, quick)
    if address is None:
        return done
    try:
        return replace(done, tracking_uri=address.shown, run_id=_log(done, address))
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
        "cores": str(usable_cores()),
        "threads": str(torch.get_num_threads()),
        "torch": torch.__version__,
    }


def usable_cores() -> int:
    """Return the number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _log(done: Benched, address: TrackingAddress) -> str:
    """Log one run, named as the bench: its parameters, metrics, note, and everything as JSON. Return its id."""
    from mlflow.entities import Metric, Param

    logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)  # it logs every table of a new database
    name = done.experiment.name
    client, experiment = open_experiment(address, EXPERIMENT)
    tags = {ROLE: "bench", NOTE: markdown(done)[:NOTE_LIMIT]}
    run_id = str(client.create_run(experiment, run_name=name, tags=tags).info.run_id)
    params = {"bench": name, "quick": str(done.quick), **done.machine}
    client.log_batch(run_id, params=[Param(key, value) for key, value in params.items()])
    started = client.get_run(run_id).info.start_time
    entries = [Metric(key, value, started, 0) for key, value in done.experiment.metrics.items()]
    for start in range(0, len(entries), METRICS_A_BATCH):
        client.log_batch(run_id, metrics=entries[start : start + METRICS_A_BATCH])
    client.log_dict(run_id, done.to_dict(), f"{name}.json")
    client.set_terminated(run_id)
    return run_id


def show_bench(console: Console, done: Benched) -> None:
    """Print the question, the tables, the notes, and where all is kept."""
    experiment = done.experiment
    console.print(Text(experiment.question, style="bold"), soft_wrap=True)
    console.print(Text(machine_line(done)), soft_wrap=True)
    for table in experiment.tables:
        console.print()
        console.print(Text(table.title, style="bold"), soft_wrap=True)
        console.print(_columns(table))
    console.print()
    for note in experiment.notes:
        console.print(Text(f"- {note}"), soft_wrap=not console.is_terminal)
    if done.run_id:
        console.print(Text(f"MLflow: run {experiment.name} of {EXPERIMENT} in {done.tracking_uri}"), soft_wrap=True)


def bench_console() -> Console:
    """Return a console as wide as the terminal; anything but a terminal gets whole lines."""
    console = Console()
    return console if console.is_terminal else Console(width=UNTIL_WRAPPED)


def machine_line(done: Benched) -> str:
    """Return what the figures were measured on, in one line."""
    said = done.machine
    how = ", small sizes (--quick), whose figures mean little" if done.quick else ""
    return f"on {said['device']}, {said['cores']} cores, {said['threads']} threads, torch {said['torch']}{how}"


def _columns(table: Table) -> Columns:
    """Return a table with numbers flush right and words flush left. A wide cell is wrapped, never cut."""
    columns = Columns(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for position, heading in enumerate(table.header):
        is_text = any(isinstance(row[position], str) for row in table.rows)
        columns.add_column(Text(heading), justify="left" if is_text else "right", overflow="fold")
    for row in table.rows:
        columns.add_row(*(Text(cell_text(cell)) for cell in row))
    return columns


def cell_text(cell: Cell) -> str:
    """Return four significant digits, without an exponent for common sizes; "-" where nothing was measured."""
    if cell is None:
        return "-"
    if isinstance(cell, str | int):
        return str(cell)
    if cell == 0 or 1e-4 <= abs(cell) < 1e9:
        whole = abs(cell) >= 1000
        return f"{cell:,.0f}" if whole else f"{cell:.4g}"
    return f"{cell:.3g}"


def markdown(done: Benched) -> str:
    """Return the run's note: the same tables, for MLflow's pages."""
    parts = [f"**{done.experiment.question}**", machine_line(done)]
    for table in done.experiment.tables:
        rows = [table.header, ["---"] * len(table.header), *([cell_text(cell) for cell in row] for row in table.rows)]
        lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
        parts.append("\n".join([f"**{table.title}**", "", *lines]))
    return "\n\n".join([*parts, *(f"- {note}" for note in done.experiment.notes)])


def find_runner(name: str, source: str | None, overrides: Sequence[str], memory_gib: float | None) -> Runner:
    """Return what the bench of that name runs; the other arguments are max-batch's.

    Raises RequestError for a name that is unknown or gone and for arguments that it does not take, and all that
    MaxBatchBench raises.
    """
    if name in SCRIPTS:
        remedy = f"in a clone of the repository run python docs/chapter/{SCRIPTS[name]}"
        raise RequestError(f"bench {name}: is a script now", remedy)
    if name not in BENCHES:
        raise RequestError(f"bench: {name!r} is not known", f"choose one of {', '.join(BENCHES)}")
    if name == MAX_BATCH:
        return MaxBatchBench(source, overrides, memory_gib)
    if source or overrides or memory_gib is not None:
        raise RequestError(f"bench {name}: takes no SPEC, --set or --memory", f"give them to bench {MAX_BATCH} alone")
    return time_allreduce


def time_allreduce(device: torch.device, *, quick: bool = False) -> Experiment:
    """Measure the sum over gloo, and over NCCL where there are two GPUs; on a CPU this takes some 20 s."""
    from scalestudy.training.gradient_sync.bandwidth import WORLD_SIZES, measure_bandwidth

    rows: list[tuple[Cell, ...]] = []
    metrics: dict[str, float] = {}
    for each in measure_bandwidth(device, quick):
        speeds = (each.algorithm / 1e6, each.bus / 1e6)
        rows.append((each.backend, each.world_size, each.message_bytes / 1024, 1e3 * each.seconds, *speeds))
        name = f"{each.backend}_{each.world_size}"  # the last, largest message wins
        metrics[f"{name}_algorithm_bytes_per_second"] = each.algorithm
        metrics[f"{name}_bus_bytes_per_second"] = each.bus
    header = ("backend", "ranks", "message (KiB)", "time (ms)", "algorithm bandwidth (MB/s)", "bus bandwidth (MB/s)")
    notes = [
        "Algorithm bandwidth: message ÷ time. Bus bandwidth, as nccl-tests define it: × 2(k - 1)/k, what a ring has to "
        "move for each byte, so that numbers of different k compare. All ranks share this machine's cores and memory."
    ]
    if usable_cores() < max(WORLD_SIZES):
        notes.append(
            f"This machine has {usable_cores()} cores: more ranks than that wait for a core, and their times say more "
            "about the scheduler than about the network."
        )
    return Experiment(
        name=ALLREDUCE,
        question="How fast do gradients of several devices become one sum?",
        tables=(Table("all_reduce over real ranks, by the size of the message", header, tuple(rows)),),
        notes=tuple(notes),
        metrics=metrics,
    )


GIB = 2**30
OF_STRATEGIES = frozenset(f"train.{name}" for name, field in Train.model_fields.items() if strategy_of(field))
IRRELEVANT = NO_STEP_TIME | OF_STRATEGIES | {"train.gradient_sync", "train.lr_rule"}
"""Swept keys that do not change the memory of a step on one worker."""


class MaxBatchBench:
    """The experiment on a spec, to run on a device."""

    def __init__(self, source: str | None, overrides: Sequence[str] = (), memory_gib: float | None = None) -> None:
        """Check the arguments. Raises SpecError or RequestError: no spec, no data, or a limit that is not a limit."""
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
        """Search; `quick` ends at 64 examples. Raises RequestError where the user has to state the limit."""
        if device.type == "cpu" and self._memory_gib is None:
            raise RequestError("bench max-batch: a CPU needs a limit", "add --memory GIB")
        largest = {way: self._search(trial, device, 64 if quick else None) for way, trial in self._ways.items()}
        metrics = {f"max_batch_{number}_count": float(each.batch) for number, each in enumerate(largest.values(), 1)}
        return Experiment(
            name=MAX_BATCH,
            question=f"What is the largest batch that fits one worker's memory in {self._study}?",
            tables=(_answers(largest), *(_tries(way, each) for way, each in largest.items())),
            notes=_notes(next(iter(largest.values()))),
            metrics=metrics,
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


def _answers(largest: dict[str, MaxBatch]) -> Table:
    rows = [
        (way, each.batch, "yes" if each.at_least else "no", _gib(each.limit_bytes)) for way, each in largest.items()
    ]
    header = ("training", "largest batch a worker", "more may fit", "limit, GiB")
    return Table("Largest batch of one worker, whole steps made", header, tuple(rows))


def _tries(way: str, search: MaxBatch) -> Table:
    rows = [
        (each.batch, "fits" if each.fits else "out of memory", _gib(each.peak_memory_bytes)) for each in search.tries
    ]
    return Table(f"What was tried: {way}", ("batch", "outcome", "peak memory, GiB"), tuple(rows))


def _gib(size_bytes: int | None) -> float | None:
    return None if size_bytes is None else size_bytes / GIB


def _notes(search: MaxBatch) -> tuple[str, ...]:
    if search.device.startswith("cuda"):
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
