"""The command line: `scalestudy …`, the same as `python -m scalestudy …`."""

from __future__ import annotations

import errno
import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TextIO

import typer
from rich.console import Console
from typer.core import TyperGroup

from scalestudy.experiments.spec.spec_error import SpecError
from scalestudy.orchestration.base.environment import prepare_environment, redacting
from scalestudy.orchestration.base.errors import ExitCode, RequestError, StudyError
from scalestudy.orchestration.base.places import UI_PORT, check_not_hidden, current_folder
from scalestudy.orchestration.base.waiting import Say, process_seconds, say_nothing, waiting_lines
from scalestudy.orchestration.commands import show
from scalestudy.orchestration.commands.parameters import (
    LATEST,
    Address,
    AsJson,
    BudgetText,
    By,
    CatalogueStudy,
    DataSet,
    Device,
    DoctorsSpec,
    Extended,
    Folder,
    JudgedSources,
    NextCount,
    NextOut,
    Overrides,
    Rehearsal,
    ShownStudy,
    Spec,
    ValidatedSpec,
    Version,
    with_budget,
)
from scalestudy.training import process

if TYPE_CHECKING:
    from scalestudy.orchestration.commands.next_trainings import NextTrainings
    from scalestudy.orchestration.study.result import StudyResult


class Commands(TyperGroup):
    """The commands in the order in which `--help` lists them."""

    ORDER = (
        *("run", "judge", "resume", "submit", "plan", "validate", "new", "list", "status", "open", "report"),
        *("recommend", "ui", "doctor", "data", "bench"),
    )

    def list_commands(self, ctx: Any) -> list[str]:
        """Return every command's name, in order."""
        return [*self.ORDER]

    def invoke(self, ctx: Any) -> Any:
        """Invoke a command. By itself Typer ends every one that is stopped without a word, and with Ctrl-C's status."""
        try:
            return super().invoke(ctx)
        except process.Terminated:
            _complain("stopped", ExitCode.TERMINATED)
        except KeyboardInterrupt:
            _complain("stopped", ExitCode.INTERRUPTED)


app = typer.Typer(
    name="scalestudy",
    cls=Commands,
    help="How many GPUs, what batch size and what learning rate reach your accuracy soonest and cheapest.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
data_app = typer.Typer(help="Data sets.", no_args_is_help=True)
app.add_typer(data_app, name="data")
bench_app = typer.Typer(help="What fits a worker's memory.", no_args_is_help=True)
app.add_typer(bench_app, name="bench")


@app.callback()
def _before_any_command(version: Version = False) -> None:
    pass


@app.command()
def validate(
    spec: ValidatedSpec = None,
    set_: Overrides = None,
    budget: BudgetText = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON Schema of every spec instead, for editors.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check a spec, and print it with every default filled in. Imports no code of yours."""
    overrides = with_budget(set_, budget)
    if schema and (spec or overrides):
        raise RequestError("--schema: is the same for every spec", "leave out SPEC, --set and --budget")
    if schema:
        from scalestudy.experiments.spec.schema import json_schema

        print(json.dumps(json_schema(), indent=1))
        return
    if spec is None:
        raise RequestError("SPEC: is missing", "name a spec file, or a study of the catalogue")
    from scalestudy.orchestration.study.folders import read_spec

    study = read_spec(spec, overrides)
    print(json.dumps(study.to_dict(), indent=1) if as_json else study.to_yaml().rstrip())
    if not as_json:
        for note in study.notes:
            print(note, file=sys.stderr)
        tried = shlex.join(["scalestudy", "plan", spec, "--rehearse"])
        print(f"{spec} is valid; the names of your code were not looked up: {tried} does that", file=sys.stderr)


@app.command()
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the study, or FOLDER/NAME; writes NAME.yaml.")],
    study: CatalogueStudy = None,
    as_json: AsJson = False,
) -> None:
    """Write a commented spec. It has every key with its default, or is a copy of a catalogue study."""
    from scalestudy.orchestration.commands.study_commands import write_new_spec

    path = write_new_spec(name, study)
    next_step = shlex.join(["scalestudy", "validate", str(path)])
    _print(lambda: {"spec": str(path)}, as_json, lambda: print(f"{path}; to check it: {next_step}"))


@app.command()
def plan(
    spec: Spec,
    set_: Overrides = None,
    budget: BudgetText = None,
    slots: Annotated[int | None, typer.Option(min=1, help="Workers that fit one machine; default: this one's.")] = None,
    nodes: Annotated[int, typer.Option(min=1, max=1000, help="Number of machines.")] = 1,
    storage: Annotated[
        str | None, typer.Option(help="A folder or URI with earlier studies, beside those that `list` finds.")
    ] = None,
    rehearse: Annotated[
        bool,
        typer.Option("--rehearse", help="Try each kind of training on the CPU, and show its model."),
    ] = False,
    extend: Extended = None,
    as_json: AsJson = False,
) -> None:
    """Show the trials, and about how long they take. Runs no study."""
    from scalestudy.orchestration.commands.planning import plan_study

    if extend is not None:
        extend = _study(extend, acts=True)
    planned = plan_study(
        spec,
        with_budget(set_, budget),
        slots=slots,
        nodes=nodes,
        storage=storage,
        rehearse=rehearse,
        extend=extend,
    )
    _print(planned.to_dict, as_json, lambda: show.plan(Console(), planned))


@app.command()
def run(
    spec: Spec = "digits-quick",
    set_: Overrides = None,
    budget: BudgetText = None,
    address: Address = None,
    out: Annotated[str | None, typer.Option(help="The study's folder; default: a new one in `storage`.")] = None,
    extend: Extended = None,
    rehearsal: Rehearsal = True,
    as_json: AsJson = False,
) -> None:
    """Run a study, and print its table and the answer."""
    overrides = with_budget(set_, budget)
    if out is not None and extend is not None:
        raise RequestError("--out, --extend: name two folders", "give one of the two")
    if extend is not None:
        extend = _study(extend, acts=True)
    with _waits(f"the checks of {spec}", as_json) as say:
        from scalestudy.orchestration.study.study import run_study

        view = None if as_json else _view
        result = run_study(
            spec, overrides, address=address, out=out, extend=extend, view=view, say=say, rehearsal=rehearsal
        )
    _show_end(result, as_json)


@app.command()
def resume(
    folder: Folder,
    address: Address = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Run failed trials again, from their beginning.")
    ] = False,
    only: Annotated[
        str | None, typer.Option(metavar="CAUSE", help="With --retry-failed: those of this cause, such as no_room.")
    ] = None,
    budget: BudgetText = None,
    rehearsal: Rehearsal = True,
    as_json: AsJson = False,
) -> None:
    """Continue an interrupted study. Trials that have ended are not run again."""
    if only is not None and not retry_failed:
        raise RequestError("--only: goes with --retry-failed alone", "add --retry-failed")
    overrides = with_budget(None, budget)
    named = _study(folder, acts=True)
    with _waits(f"the records of {named}", as_json) as say:
        from scalestudy.orchestration.study.study import resume_study

        view = None if as_json else _view
        result = resume_study(
            named,
            retry_failed=retry_failed,
            only=only,
            overrides=overrides,
            address=address,
            view=view,
            say=say,
            rehearsal=rehearsal,
        )
    _show_end(result, as_json)


@app.command()
def judge(
    sources: JudgedSources,
    target: Annotated[
        str, typer.Option(metavar="NAME=VALUE", help="Metric to reach, as the runs name it: val_acc=0.93.")
    ],
    mode: Annotated[
        str | None,
        typer.Option(help="max or min: whether more or less is better; default: by the metric's name."),
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(metavar="ROLE=NAME", help="Which column says what: batch_size=bs, seed=rng, setting=dropout."),
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="What holds for all runs: num_gpus=2.")
    ] = None,
    tracking_uri: Annotated[
        str | None, typer.Option(help="MLflow's store, for mlflow:EXPERIMENT; default: the one that `run` uses.")
    ] = None,
    out: Annotated[str | None, typer.Option(help="The study's folder; default: a new one in runs.")] = None,
    next_: NextCount = None,
    next_out: NextOut = None,
    as_json: AsJson = False,
) -> None:
    """Answer from runs that others made: a CSV, an MLflow experiment, a Ray Tune folder. Trains nothing."""
    from scalestudy.orchestration.commands.judging import judge_sources
    from scalestudy.orchestration.commands.next_trainings import NextTrainings, check_file

    check_file(next_out, next_)
    result = judge_sources(
        sources,
        target,
        mode=mode,
        columns=column or (),
        given=set_ or (),
        tracking_uri=tracking_uri,
        out=out,
        as_json=as_json,
    )
    further = None
    if next_ is not None:
        from scalestudy.orchestration.commands.study_commands import advise

        found = advise(result.folder, next_count=next_).data["next"]
        further = NextTrainings.of(found, next_, next_out, result.folder.name)
    _show_end(result, as_json, further)


def _print(data: Callable[[], Any], as_json: bool, print_words: Callable[[], object]) -> None:
    """Print plain data, with --json; else what people read."""
    if as_json:
        print(json.dumps(data(), indent=1))
    else:
        print_words()


@contextmanager
def _waits(first: str, as_json: bool) -> Iterator[Say]:
    """Yield a `Say` that prints on standard error what a command waits for, `first` at once; with --json, nothing."""
    if as_json:
        yield say_nothing
        return
    with waiting_lines(sys.stderr) as say:
        say(first)
        yield say


def _study(folder: str, *, acts: bool = False) -> str:
    """Return the study's folder that a DIR names. Say on standard error which one `latest` is."""
    if LATEST not in folder:  # spares the import
        return folder
    from scalestudy.orchestration.commands.studies import named_study

    named, words = named_study(folder, acts=acts)
    if words:
        print(words, file=sys.stderr)
    return named


def _view(progress: Any, screen: TextIO, waiting: Callable[[], Mapping[str, float]]) -> Any:
    """Return the view of a running study: a live table on a terminal, else lines."""
    from scalestudy.orchestration.progress.live import Lines, LiveTable

    console = Console(file=screen)
    return LiveTable(progress, console, waiting) if console.is_terminal else Lines(progress, screen)


def _show_end(result: StudyResult, as_json: bool, further: NextTrainings | None = None) -> None:
    result = replace(result, wall_seconds=process_seconds())

    def words() -> None:
        show.result(Console(), result)
        if further:
            show.next_trainings(Console(), further)

    _print(lambda: {**show.result_data(result), **(further.data if further else {})}, as_json, words)
    raise typer.Exit(result.exit_code)


@app.command()
def status(folder: Folder, as_json: AsJson = False) -> None:
    """Show the state of a study, also while another process runs it."""
    from scalestudy.orchestration.commands.study_commands import status_lines, status_of

    current = status_of(_study(folder))
    _print(current.to_dict, as_json, lambda: print(*status_lines(current), sep="\n"))


@app.command("list")
def list_(
    storage: Annotated[
        str | None,
        typer.Option(help="A folder or URI that holds studies; default: ./runs, and runs in SCALESTUDY_HOME."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List studies: their state, and what they recommend."""
    from scalestudy.orchestration.commands.studies import list_studies

    studies, places = list_studies(storage)
    _print(lambda: [study.to_dict() for study in studies], as_json, lambda: show.studies(Console(), studies, places))


@app.command("open")
def open_(
    folder: Folder = LATEST,
    watch: Annotated[
        bool, typer.Option("--watch", help="While the study runs: its page so far, rewritten until it ends or Ctrl-C.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Open a study's report in the browser, and print its path."""
    from scalestudy.orchestration.commands.study_commands import open_report, watch_report

    (watch_report if watch else open_report)(_study(folder), as_json=as_json)


@app.command()
def submit(
    spec: Spec,
    address: Annotated[str, typer.Option(envvar="RAY_API_SERVER_ADDRESS", help="Address of Ray's job server.")],
    set_: Overrides = None,
    budget: BudgetText = None,
    env: Annotated[
        list[str] | None,
        typer.Option("--env", metavar="NAME[=VALUE]", help="Variable for the job; NAME alone: its value here."),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Follow the job to its end.")] = True,
    rehearsal: Rehearsal = True,
) -> None:
    """Run a study as a job of a Ray cluster. The current folder travels along."""
    from scalestudy.orchestration.commands.submit import submit_study

    raise typer.Exit(
        submit_study(
            spec,
            with_budget(set_, budget),
            address=address,
            variables=env or (),
            wait=wait,
            rehearsal=rehearsal,
        )
    )


@app.command()
def report(
    folder: Folder,
    include_flagged: Annotated[bool, typer.Option("--include-flagged", help="Use disturbed timings too.")] = False,
    png: Annotated[
        bool, typer.Option("--png", help="Write the figures as PNG too, for slides; needs Chromium or Chrome.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Rewrite a study's summary and report from its records."""
    from scalestudy.orchestration.commands.study_commands import draw_pictures, rebuild_report

    named = _study(folder)
    path = rebuild_report(named, include_flagged=include_flagged)
    pictures = draw_pictures(named) if png else []
    data = {"report": str(path), "pictures": [str(picture) for picture in pictures]}
    _print(lambda: data, as_json, lambda: print(*(path, *pictures), sep="\n"))


@app.command()
def recommend(
    folder: Folder,
    accuracy: Annotated[
        float | None, typer.Option("--accuracy", "--target", help="Target of the study's metric; accuracy: 0 to 1.")
    ] = None,
    max_gpus: Annotated[
        int | None, typer.Option("--max-gpus", "--max-workers", help="Most workers that may be used.")
    ] = None,
    price: Annotated[float | None, typer.Option(help="Price of a GPU-hour, in any currency.")] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(help="How much longer than the fastest, as a share; default: targets.tolerance."),
    ] = None,
    by: By = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--spec", metavar="FILE", help="Write a study of the recommended cell alone, without early stopping."
        ),
    ] = None,
    torchrun: Annotated[
        bool, typer.Option("--torchrun", help="Print the command that trains it; all else goes to stderr.")
    ] = False,
    next_: NextCount = None,
    next_out: NextOut = None,
    as_json: AsJson = False,
) -> None:
    """Recommend workers, batch size and rate from a study's records."""
    from scalestudy.orchestration.commands.next_trainings import NextTrainings, check_file
    from scalestudy.orchestration.commands.recommended import RecommendedCell
    from scalestudy.orchestration.commands.study_commands import advise

    check_file(next_out, next_)
    study = _study(folder)
    advice = advise(
        study, accuracy=accuracy, max_gpus=max_gpus, price=price, tolerance=tolerance, by=by, next_count=next_
    )
    cell = RecommendedCell.of(advice) if file is not None or torchrun else None
    command = cell.torchrun() if cell and torchrun else None
    further = None if next_ is None else NextTrainings.of(advice.data["next"], next_, next_out, advice.study_id)
    written = cell.write(file) if cell and file is not None else None
    if as_json:
        more = {**({"spec": str(written)} if written else {}), **(further.data if further else {})}
        print(json.dumps({**advice.data, **more, **({"torchrun": command} if command else {})}, indent=1))
        return
    words = sys.stderr if command else sys.stdout  # so that a pipe gets the command alone
    print("\n".join(advice.lines), file=words)
    if further:
        show.next_trainings(Console(file=words), further)
    if written:
        print(f"{written}; to run it: {shlex.join(['scalestudy', 'run', str(written)])}", file=words)
    if command:
        print(command)


@app.command()
def ui(
    folder: ShownStudy = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port on 127.0.0.1.")] = UI_PORT,
    uri: Annotated[str | None, typer.Option(help="Tracking URI; default: the one that `run` uses.")] = None,
    sync: Annotated[bool, typer.Option("--sync", help="Send MLflow what it missed of the study, and end.")] = False,
) -> None:
    """Serve MLflow's pages on 127.0.0.1, and open a study's. They show the store that `run` uses."""
    if sync:
        if uri is not None:
            raise RequestError("--uri: --sync sends to the study's own store", "leave out --uri")
        from scalestudy.orchestration.commands.study_commands import sync_tracking

        sent, store = sync_tracking(_study(folder or LATEST, acts=True))
        print(f"{sent} events sent to {store}")
        return
    from scalestudy.orchestration.commands.ui import serve_ui

    raise typer.Exit(serve_ui(uri, port, None if folder is None else _study(folder)))


@app.command()
def doctor(
    spec: DoctorsSpec = "digits-quick",
    address: Annotated[str | None, typer.Option(help="Cluster to check; default: this machine.")] = None,
    as_json: AsJson = False,
) -> None:
    """Check whether a study can run here. Says what to fix; exits with 1 if something is broken."""
    from scalestudy.orchestration.commands.doctor import examine

    findings = examine(spec, address)
    _print(lambda: [finding.to_dict() for finding in findings], as_json, lambda: show.findings(Console(), findings))
    raise typer.Exit(ExitCode.SOME_FAILED if any(finding.broken for finding in findings) else ExitCode.DONE)


@bench_app.command("max-batch")
def max_batch(
    spec: Spec,
    set_: Overrides = None,
    memory: Annotated[float | None, typer.Option(help="On a CPU: GiB that a worker may use.", metavar="GIB")] = None,
    device: Device = "auto",
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes, to try it; the figures mean little.")] = False,
    track: Annotated[
        bool, typer.Option("--mlflow/--no-mlflow", help="Record it as scalestudy-bench in MLflow.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Find the largest batch that fits a worker's memory. Makes whole steps of a study's training."""
    from scalestudy.orchestration.commands.bench import bench_max_batch

    done = bench_max_batch(spec, set_ or (), memory, device=device, quick=quick, tracked=track)
    _print(done.to_dict, as_json, lambda: show.bench(Console(), done))
    if done.untracked:
        raise done.untracked


@data_app.command("fetch")
def fetch(
    name: DataSet,
    source: Annotated[Path | None, typer.Option("--from", help="Folder that has the files already.")] = None,
    as_json: AsJson = False,
) -> None:
    """Download a data set, or copy it. Checksums are verified."""
    from scalestudy.orchestration.commands.study_commands import fetch_data

    files, root = fetch_data(name, source)
    text = f"{len(files)} files written under {root}" if files else f"is there already, under {root}"
    data = {"data": name, "root": str(root), "written": [str(file) for file in files]}
    _print(lambda: data, as_json, lambda: print(f"{name}: {text}"))


def main() -> NoReturn:
    """Run the command line, and end this process."""
    process.end_by_signals()
    process.run(command_line)


def command_line() -> None:
    """Run a command. An error that the user can mend becomes one message and a documented exit status."""
    sys.stderr = redacting(sys.stderr)  # hides secrets in the traceback of an unforeseen error too
    try:
        prepare_environment()
        here = current_folder()
        check_not_hidden(here)
        if "" not in sys.path and str(here) not in sys.path:
            sys.path.insert(0, str(here))  # finds the user's own model there, as `python -m` does
        app()
    except (SpecError, StudyError) as error:
        _complain(str(error), getattr(error, "exit_code", ExitCode.BAD_REQUEST))
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        _complain(f"{error.filename}: is too long for a file's name; give a shorter one", ExitCode.BAD_REQUEST)


def _complain(message: str, code: ExitCode) -> NoReturn:
    print(message, file=sys.stderr)
    sys.exit(code)
