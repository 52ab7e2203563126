"""The chapter's execution experiments on the command line: run, printed, and kept as an MLflow run each."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table as Columns
from rich.text import Text

from orchestration.environment import prepare_environment
from orchestration.errors import StudyError, UnreachableError
from orchestration.mlflow_store import (
    METRICS_A_BATCH,
    NOTE_LIMIT,
    ROLE,
    MlflowStore,
    TrackingAddress,
    check_reachable,
    resolve_address,
)
from orchestration.preflight import request_error

if TYPE_CHECKING:
    from training.execution.experiment import Cell, Experiment, Table

Runner = Callable[..., "Experiment"]
"""(device, *, quick) -> Experiment."""
EXPERIMENT = "scalestudy-bench"
UNTIL_WRAPPED = 10_000  # columns where nothing is wrapped: what is not a terminal has no width


@dataclass(frozen=True)
class Benched:
    """An experiment that was run here, and where it is kept."""

    experiment: Experiment
    machine: Mapping[str, str]
    quick: bool
    tracking_uri: str | None = None  # None: not kept
    run_id: str | None = None
    untracked: StudyError | None = None  # why it could not be kept, if it was to be

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for --json and as the run's artifact."""
        run = {"tracking_uri": self.tracking_uri, "run_id": self.run_id}
        return {**self.experiment.to_dict(), "machine": dict(self.machine), "quick": self.quick, "mlflow": run}


def run_bench(
    name: str, *, device: str = "auto", quick: bool = False, tracked: bool = True, runner: Runner | None = None
) -> Benched:
    """Run one experiment, and keep it in the store that `run` takes. `runner`: what to run; None: the one of that name.

    Raises RequestError for an unknown name or device, and what check_reachable raises, before anything is measured. A
    store that is lost meanwhile costs the run, not the result: see `untracked`.
    """
    prepare_environment()
    address = resolve_address(None) if tracked else None
    experiment_of, place = runner or _find_by_name(name), _find_device(device)
    if address:
        check_reachable(address)
    from training.execution.measuring import machine

    said = machine(place)
    done = Benched(experiment_of(place, quick=quick), said, quick)
    return _keep(done, address) if address else done


def _find_by_name(name: str) -> Runner:
    from training.execution import find_experiment

    try:
        return find_experiment(name)
    except ValueError as error:
        raise request_error(error, "scalestudy bench --help names them") from error


def _find_device(name: str) -> Any:
    from training.execution.measuring import find_device

    try:
        return find_device(name)
    except ValueError as error:
        raise request_error(error, "choose auto, cpu or cuda") from error


def _keep(done: Benched, address: TrackingAddress) -> Benched:
    """The same with its MLflow run, or with the reason why there is none."""
    try:
        run_id = _log(done, address)
    except Exception as error:  # MLflow raises its own, SQLAlchemy's and requests' errors
        problem = f"tracking.uri: {address.shown}: the run could not be kept ({type(error).__name__})"
        lost = UnreachableError(problem, "the results above are complete; correct MLFLOW_TRACKING_URI and run it again")
        return Benched(done.experiment, done.machine, done.quick, untracked=lost)
    return Benched(done.experiment, done.machine, done.quick, address.shown, run_id)


def _log(done: Benched, address: TrackingAddress) -> str:
    """One run, named as the bench: its parameters, metrics, note, and everything as JSON. Gives the run's id."""
    from mlflow.entities import Metric, Param

    logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)  # it tells of every table of a new database
    name = done.experiment.name
    store = MlflowStore(address, EXPERIMENT, name)
    client = store.client
    tags = {ROLE: "bench", "mlflow.note.content": markdown(done)[:NOTE_LIMIT]}
    run_id = str(client.create_run(store.experiment_id, run_name=name, tags=tags).info.run_id)
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
    """Question, tables, what holds here, and where it is kept."""
    found = done.experiment
    console.print(Text(found.question, style="bold"), soft_wrap=True)
    console.print(Text(machine_line(done)), soft_wrap=True)
    for table in found.tables:
        console.print()
        console.print(Text(table.title, style="bold"), soft_wrap=True)
        console.print(_columns(table))
    console.print()
    for note in found.notes:
        console.print(Text(f"- {note}"), soft_wrap=not console.is_terminal)
    if done.run_id:
        console.print(Text(f"MLflow: run {found.name} of {EXPERIMENT} in {done.tracking_uri}"), soft_wrap=True)


def bench_console() -> Console:
    """A terminal at its own width; anything else gets whole lines."""
    console = Console()
    return console if console.is_terminal else Console(width=UNTIL_WRAPPED)


def machine_line(done: Benched) -> str:
    """What the figures were taken on, in one line."""
    said = done.machine
    how = ", small sizes (--quick): figures not to be quoted" if done.quick else ""
    return f"on {said['device']}, {said['cores']} cores, {said['threads']} threads, torch {said['torch']}{how}"


def _columns(table: Table) -> Columns:
    """Numbers flush right, words flush left; a cell too wide for the terminal goes on below, none is cut."""
    columns = Columns(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for heading in table.header:
        is_text = any(isinstance(cell, str) for cell in table.column(heading))
        columns.add_column(Text(heading), justify="left" if is_text else "right", overflow="fold")
    for row in table.rows:
        columns.add_row(*(Text(cell_text(cell)) for cell in row))
    return columns


def cell_text(cell: Cell) -> str:
    """Four significant digits, no exponents for what a reader has a feeling for; "-" where nothing was measured."""
    if cell is None:
        return "-"
    if isinstance(cell, str | int):
        return str(cell)
    if cell == 0 or 1e-4 <= abs(cell) < 1e9:
        whole = abs(cell) >= 1000
        return f"{cell:,.0f}" if whole else f"{cell:.4g}"
    return f"{cell:.3g}"


def markdown(done: Benched) -> str:
    """The run's note: the same tables, for MLflow's pages."""
    parts = [f"**{done.experiment.question}**", machine_line(done)]
    for table in done.experiment.tables:
        rows = [table.header, ["---"] * len(table.header), *([cell_text(cell) for cell in row] for row in table.rows)]
        lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
        parts.append("\n".join([f"**{table.title}**", "", *lines]))
    return "\n\n".join([*parts, *(f"- {note}" for note in done.experiment.notes)])
