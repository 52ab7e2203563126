"""Runs that others made become a study's folder with its report: `scalestudy judge`, and `judge` in Python."""

from __future__ import annotations

import json
import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalestudy.experiments.analysis.measures.parts import present
from scalestudy.experiments.judging.columns import Columns, Question, Said, listed, number_of, take_columns
from scalestudy.experiments.judging.facts import Finding, edge_fact, facts_of
from scalestudy.experiments.judging.reading import LeftOut, read_runs
from scalestudy.experiments.judging.runs import Recorded
from scalestudy.experiments.judging.taken import JudgedStudy, check_scale, judged_record, study_of
from scalestudy.experiments.spec.addresses import is_uri
from scalestudy.experiments.spec.reaching import Mode
from scalestudy.orchestration.base.environment import left_as_found, prepare_environment
from scalestudy.orchestration.base.errors import ExitCode, RequestError, request_error
from scalestudy.orchestration.study.opening import new_folder, new_study_id
from scalestudy.orchestration.study.result import StudyResult
from scalestudy.training.exceptions import InputError

if TYPE_CHECKING:
    from pandas import DataFrame

    from scalestudy.experiments.analysis.answers.analysis import Analysis

Source = Any
"""A path, `mlflow:EXPERIMENT`, or a pandas frame."""
Ask = Callable[[Question], str]
"""Puts a question to the user; returns the option that answers it, as one types it. EOFError: there is no answer."""
Show = Callable[[Columns, Sequence[str]], None]
"""Shows what was taken as what."""
Progress = Callable[[int, int], None]
"""Takes how many runs were read, and how many there are."""
MLFLOW = "mlflow:"
OF_FILE_STORE = "meta.yaml"
"""A file of each experiment's folder in a folder `mlruns`."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is to be judged, and what the user says of it."""

    sources: Sequence[Source]
    target: str  # NAME=VALUE
    mode: Mode | None = None  # None: by the metric's name
    said: Said = field(default_factory=Said)
    tracking_uri: str | None = None  # of `mlflow:` sources
    out: str | Path | None = None  # the folder; None: a new one in `runs`


def judge(
    runs: DataFrame | str | Path | Sequence[Source],
    target: str,
    *,
    mode: Mode | None = None,
    columns: Mapping[str, str] | None = None,
    given: Mapping[str, Any] | None = None,
    tracking_uri: str | None = None,
    out: str | Path | None = None,
) -> StudyResult:
    """Judge runs that others made: which workers, batch size and rate reach a target soonest and cheapest.

    Args:
        runs: a pandas frame with a row an evaluation or a row a run; or what `scalestudy judge` takes, or a list of it.
        target: what to reach, such as `val_acc=0.93`.
        mode: whether more ("max") or less ("min") of it is better; by default as its name says.
        columns: which column says what, by role, such as {"batch_size": "bs"}.
        given: what holds for all runs, such as {"num_gpus": 2}.
        tracking_uri: of MLflow's store, for mlflow:EXPERIMENT.
        out: the study's folder; by default a new one in `runs`.

    Returns:
        The study of these runs, as `run_study` returns one.

    Raises:
        StudyError: a source can't be read, or what a column says is ambiguous; its text names the option that says it.
    """
    began = time.monotonic()
    with left_as_found():
        prepare_environment()
        with requests():
            said = Said().with_columns(f"{role}={name}" for role, name in (columns or {}).items())
            said = said.with_given(f"{key}={value}" for key, value in (given or {}).items())
        sources = list(runs) if isinstance(runs, list | tuple) else [runs]
        request = Request(sources=sources, target=target, mode=mode, said=said, tracking_uri=tracking_uri, out=out)
        return replace(judge_runs(request), wall_seconds=time.monotonic() - began)


def judge_runs(
    request: Request, ask: Ask | None = None, show: Show | None = None, progress: Progress = lambda done, total: None
) -> StudyResult:
    """Judge runs, and write their study's folder.

    ask: None: nobody can be asked, so what is ambiguous is refused. show: takes what was taken, before the answer.
    progress: of reading an MLflow store. Raises RequestError or UnreachableError.
    """
    metric, target = _target(request.target)
    if not request.sources:
        raise RequestError("SOURCE: is missing", "name a file, a folder, or mlflow:EXPERIMENT")
    if request.out is not None and is_uri(request.out):
        raise RequestError(f"--out: {request.out}: is a URI", "name a folder on this machine")
    from scalestudy.experiments.analysis.answers.analysis import Analysis  # these load SciPy
    from scalestudy.experiments.judging.suspicions import suspicions_of
    from scalestudy.experiments.report import write_report

    lines: list[str] = []
    with requests():
        reader = _Reader(request=request, metric=metric, say=lines.append, progress=progress)
        recorded = [run for source in request.sources for run in reader.read(source)]
        columns = _columns(recorded, metric, request, ask)
        apart: list[str] = []
        try:
            runs, left_out = read_runs(recorded, columns)
            left_out += [LeftOut(where=where, why=why) for where, _, why in (line.partition(": ") for line in lines)]
            study = study_of(runs, left_out, columns, target, [_named(source) for source in request.sources])
            apart = study.apart
        finally:  # what was taken also says why no run can be read
            if show is not None:
                show(columns, apart)
        check_scale(study.runs, columns, target)
        facts = [fact for fact in facts_of(runs, target, columns.mode) if not _is_apart(fact, study.apart)]
        analysis = Analysis(study.spec, study.plan, study.lines)
        facts += [edge for edge in [_edge(study, analysis, target)] if edge]
        suspicions = suspicions_of(study.runs, facts, apart=study.apart, evaluation=columns.evaluation)
        unfair = [each.to_dict() for each in (*facts, *suspicions)]
    study_id = new_study_id(study.spec)
    folder = new_folder(study.spec, study_id, request.out)
    made = not folder.path.exists()
    try:
        folder.create()
        folder.write_json(folder.judged_file, judged_record(study, columns, unfair))
        folder.write_trials(study.lines)
        folder.write_plan(study.plan, study_id, study.spec.to_yaml())
        write_report(folder, analysis=analysis)
        summary = json.loads(folder.summary_file.read_text("utf-8"))
    except BaseException:
        if made:
            shutil.rmtree(folder.path, ignore_errors=True)
        raise
    return StudyResult(
        folder=folder.path,
        address=folder.address,
        summary=summary,
        exit_code=ExitCode.DONE,
        tracking_uri="",
        broken=None,
        unsent=0,
        cold_starts={},
    )


@contextmanager
def requests() -> Iterator[None]:
    """Turn a mistake in a source or an option into a RequestError."""
    try:
        yield
    except InputError as error:
        raise request_error(error, "see scalestudy judge --help") from error
    except OSError as error:
        raise RequestError(
            f"SOURCE: {error.filename}: {error.strerror or error}", "name one that can be read"
        ) from error


def _is_apart(fact: Finding, apart: Sequence[str]) -> bool:
    """Whether a fact names nothing but settings by which runs are compared apart."""
    return bool(fact.table) and all(row.setting in apart for row in fact.table)


def _edge(study: JudgedStudy, analysis: Analysis, target: float) -> Finding | None:
    """Return that the best rate lies at the edge of those tried; None: it does not."""
    from scalestudy.experiments.analysis.answers.judged import chance_of_best_rate

    choice = analysis.recommendation["fastest"]
    if not present(choice):
        return None
    chance = chance_of_best_rate(choice, analysis.times(target).times, analysis.cells)
    return edge_fact(study.runs, choice["batch_size"], choice["learning_rate"], chance)


def _target(text: str) -> tuple[str, float]:
    name, equals, value = (part.strip() for part in text.rpartition("="))
    number = number_of(value)
    if not equals or not name or number is None or abs(number) == float("inf"):
        raise RequestError(f"--target: {text}: is not NAME=VALUE", "write it like --target val_acc=0.93")
    return name, number


def _named(source: Source) -> str:
    return str(source) if isinstance(source, str | Path) else "a frame"


def _columns(recorded: Sequence[Recorded], metric: str, request: Request, ask: Ask | None) -> Columns:
    """Take the columns; ask what is ambiguous, until nothing is."""
    mode, said = request.mode, request.said
    if not recorded:
        raise RequestError(f"SOURCE: {', '.join(map(_named, request.sources))}: has no runs", "name one that has some")
    columns, questions = take_columns(recorded, metric, mode, said)
    fault = ""
    while questions:
        if ask is None:
            raise _refusal(questions)
        try:
            answered = _answered(ask(replace(questions[0], words=fault or questions[0].words)), mode, said)
            columns, questions = take_columns(recorded, metric, *answered)
        except EOFError:
            raise _refusal(questions) from None
        except InputError as error:
            fault = str(error)
        else:
            (mode, said), fault = answered, ""
    return columns


def _answered(option: str, mode: Mode | None, said: Said) -> tuple[Mode | None, Said]:
    """Return the mode and what is said of the columns, with an option as one types it."""
    name, value = shlex.split(option)
    if name == "--mode":
        return ("min" if value == "min" else "max"), said
    return mode, said.with_columns([value]) if name == "--column" else said.with_given([value])


def _refusal(questions: Sequence[Question]) -> RequestError:
    """Return the error for what is ambiguous and was not asked, or not answered."""
    names = dict.fromkeys(name for question in questions for name in question.names)
    columns = f"; the columns are {listed(names)}" if names else ""
    return RequestError(
        "; ".join(question.words for question in questions), f"say {', and '.join(map(_options, questions))}{columns}"
    )


def _options(question: Question) -> str:
    return " or ".join(f"{option} ({means})" if means else option for option, means in question.answers.items())


@dataclass(frozen=True, kw_only=True)
class _Reader:
    """Reads sources. say: takes a line about what a source has and its reader leaves out."""

    request: Request
    metric: str
    say: Callable[[str], None]
    progress: Progress

    def read(self, source: Source) -> list[Recorded]:
        """Return the runs of a source. Raises InputError, OSError, RequestError or UnreachableError."""
        run = self.request.said.columns.get("run")
        if not isinstance(source, str | Path):
            from scalestudy.experiments.judging.files import of_frame

            return of_frame(source, run=run)
        if str(source).startswith(MLFLOW):
            return self._of_mlflow(str(source).removeprefix(MLFLOW), self.request.tracking_uri)
        path = Path(source)
        if is_uri(source) or (path / "plan.json").is_file():
            from scalestudy.experiments.judging.own_study import read_study
            from scalestudy.orchestration.study.folders import open_folder, readable, spec_of

            folder = open_folder(source)
            with readable(folder):
                return read_study(folder, spec_of(folder))
        if path.is_dir() and any(path.glob(f"*/{OF_FILE_STORE}")):
            return self._of_file_store(path)
        if path.is_dir():
            from scalestudy.experiments.judging.tune_folder import read_tune

            return read_tune(path, self.say)
        if not path.exists():
            raise RequestError(f"SOURCE: {source}: there is no such file or folder", "name one, or mlflow:EXPERIMENT")
        from scalestudy.experiments.judging.files import read_file

        return read_file(path, run, self.say)

    def _of_mlflow(self, experiment: str, uri: str | None) -> list[Recorded]:
        from scalestudy.orchestration.judging.mlflow_source import read_mlflow

        return read_mlflow(experiment, uri, metric=self.metric, progress=self.progress, say=self.say)

    def _of_file_store(self, folder: Path) -> list[Recorded]:
        """Return the runs of a folder `mlruns`; of several experiments, say how to name one."""
        try:
            return self._of_mlflow("", str(folder))
        except RequestError as error:
            name = f"scalestudy judge mlflow:EXPERIMENT --tracking-uri {shlex.quote(str(folder))}"
            raise RequestError(f"SOURCE: {folder}: is a store of MLflow's", f"{error.remedy}: {name}") from error
