"""Stages 1 to 9, put together: `run_study` takes a spec to a report."""

from __future__ import annotations

import logging
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from experiments.analysis.metric import StudyMetric
from experiments.plan import Plan, make_plan
from experiments.spec import StudySpec
from experiments.study_folder import StudyFolder
from orchestration import cluster as clusters
from orchestration.board import Board
from orchestration.environment import Output, prepare_environment
from orchestration.errors import ExitCode, UnreachableError
from orchestration.failures import describe
from orchestration.live import Silent, View
from orchestration.mlflow_store import MlflowStore, TrackingAddress, check_reachable, resolve_address
from orchestration.preflight import (
    check_callables,
    check_configs,
    check_data,
    logical_cpus,
    new_folder,
    new_study_id,
    read_spec,
)
from orchestration.recorder import Recorder
from orchestration.tracking import Tracker

logger = logging.getLogger(__name__)

ViewFactory = Callable[[Board, TextIO, Callable[[], dict[str, float]]], View]


@dataclass(frozen=True, kw_only=True)
class StudyResult:
    """How a study ended.

    Attributes:
        folder: the study's folder, with `report.html`, `summary.json` and `trials.jsonl`.
        summary: `summary.json`.
        exit_code: the command's exit status.
        tracking_uri: where MLflow has the study, without a password.
        broken: why the sweep broke off before its end, or None.
        unsent: operations that MLflow did not get; `scalestudy sync` replays them.
        cold_starts: seconds from a group's order to its workers being ready, by group.
    """

    folder: Path
    summary: dict[str, Any]
    exit_code: ExitCode
    tracking_uri: str
    broken: str | None
    unsent: int
    cold_starts: dict[str, float]


def run_study(
    source: str | Path,
    overrides: Sequence[str] = (),
    *,
    address: str | None = None,
    out: str | Path | None = None,
    view: ViewFactory | None = None,
) -> StudyResult:
    """Runs a study and writes its report.

    Args:
        source: a spec file, or the name of a study of the catalogue.
        overrides: `key.path=value`, each put in place of what the file says.
        address: of the Ray cluster; see `cluster.connect`.
        out: the study's folder; by default a new one in the spec's `storage`.
        view: makes what shows the progress; by default nothing is shown.

    Returns:
        Where the results lie, and how the study ended. Trials that fail don't raise.

    Raises:
        SpecError: the spec is wrong.
        StudyError: data, cluster, storage or tracking store are not there; nothing was written.
    """
    prepare_environment()
    spec = read_spec(source, overrides)
    plan = make_plan(spec)
    data_root = check_data(spec)
    check_callables(spec)
    check_configs(plan, data_root)
    tracking = resolve_address(spec.tracking.uri)
    study_id = new_study_id(spec)
    folder = new_folder(spec, study_id, out)
    with Output() as output:
        check_reachable(tracking)
        num_cpus = logical_cpus(plan, spec)
        cluster = clusters.connect(address, num_cpus=num_cpus)
        try:
            return _Run(spec, plan, folder, study_id, tracking, cluster, data_root).execute(output, view)
        finally:
            cluster.disconnect()


class _Run:
    """One run of a study, once everything that could refuse it has been asked."""

    def __init__(
        self,
        spec: StudySpec,
        plan: Plan,
        folder: StudyFolder,
        study_id: str,
        tracking: TrackingAddress,
        cluster: clusters.Cluster,
        data_root: Path,
    ) -> None:
        from orchestration.engine import Engine

        self.spec, self.plan, self.folder, self.study_id, self.tracking = spec, plan, folder, study_id, tracking
        self.engine = Engine.for_study(spec, plan, cluster, folder, data_root)
        self.began = time.monotonic()
        self.trials = {trial.trial_id: trial for trial in plan.trials}
        self.board = Board(self.trials, StudyMetric.of(spec.workload))

    def execute(self, output: Output, view: ViewFactory | None) -> StudyResult:
        """Writes the folder, runs the trials, writes the report."""
        self._write_plan()
        output.keep_in(self.folder.driver_log)
        shown = view(self.board, output.screen, self.engine.waiting) if view else Silent()
        tracker = Tracker(self._open_store, self.folder.path / "spool")
        recorder = Recorder(self.spec, self.plan, self.folder, tracker, self.engine)
        stop = threading.Event()
        try:
            recorder.study_started()
            shown.stage(f"{len(self.plan.trials)} trials; study: {self.folder.path}; MLflow: {self.tracking.shown}")
            with _signals(stop, self.engine) as caught:
                broken = self._sweep(recorder, shown, stop)
            shown.stage("writing the report")
            summary = recorder.finish(time.monotonic() - self.began, interrupted=bool(caught) or broken is not None)
        finally:
            self.engine.shut_down()
            unsent = tracker.close()
            shown.close()
        return StudyResult(
            folder=self.folder.path,
            summary=summary,
            exit_code=exit_code(summary, caught, lost=bool(unsent) or broken is not None),
            broken=broken,
            tracking_uri=self.tracking.shown,
            unsent=unsent,
            cold_starts=self.engine.cold_starts(),
        )

    def _sweep(self, recorder: Recorder, shown: View, stop: threading.Event) -> str | None:
        """Runs the trials. A sweep that Ray breaks off keeps the trials that had ended; returns why it broke off."""
        try:
            self.engine.run(self._sink(recorder, shown, stop), stop.is_set)
        except Exception as error:  # whatever Ray raises: the records are safe, and the report can be written
            logger.exception("the sweep broke off")
            return describe(error)
        return None

    def _write_plan(self) -> None:
        """Makes the study's folder, or leaves nothing behind where that fails or not every node can read it."""
        path = self.folder.path
        made = [parent for parent in (path, *path.parents) if not parent.exists()]
        try:
            self._write_files()
            self.engine.check_storage()
        except BaseException:
            _discard(path, made)
            raise

    def _write_files(self) -> None:
        try:
            self.folder.create()
            self.folder.write_text(self.folder.spec_file, self.spec.to_yaml())
            self.folder.write_plan(self.plan, self.study_id)
        except OSError as error:
            raise UnreachableError(f"storage: {self.folder.path}: {error}", "name another folder") from error

    def _open_store(self) -> MlflowStore:
        experiment = self.spec.tracking.experiment or self.spec.name
        return MlflowStore(self.tracking, experiment, self.study_id)

    def _sink(self, recorder: Recorder, shown: View, stop: threading.Event) -> Callable[[str, dict[str, Any]], None]:
        def take(trial_id: str, event: dict[str, Any]) -> None:
            if stop.is_set() and event["type"] == "lost":
                return  # Tune has ended it because the study stops; a later run may take it up
            for each in recorder.take(trial_id, event):
                self.board.take(trial_id, each)
                shown.event(trial_id, each)

        return take


def _discard(path: Path, made: Sequence[Path]) -> None:
    """Takes a study's new folder away, and the folders made for it, nearest first, that hold nothing else."""
    shutil.rmtree(path, ignore_errors=True)
    if path not in made:
        path.mkdir()  # it was there, empty, before
    for parent in made[1:]:
        with suppress(OSError):  # another study has begun in it
            parent.rmdir()


def exit_code(summary: dict[str, Any], caught: Sequence[int], *, lost: bool) -> ExitCode:
    """The exit status that a study's end means: signals first, then a lost cluster or store, then failed trials."""
    if caught:
        return ExitCode.INTERRUPTED if caught[0] == signal.SIGINT else ExitCode.TERMINATED
    if lost:
        return ExitCode.UNREACHABLE
    return ExitCode.SOME_FAILED if summary["trials"]["failed"] else ExitCode.DONE


@contextmanager
def _signals(stop: threading.Event, engine: Any) -> Iterator[list[int]]:
    """Ctrl-C or SIGTERM once stops the study cleanly; twice gives up at once. Yields the list of those caught."""
    caught: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return

    def handle(number: int, _frame: Any) -> None:
        if caught:
            raise KeyboardInterrupt
        caught.append(number)
        stop.set()
        engine.stop_soon()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            with suppress(TypeError):  # a handler that was not set from Python
                signal.signal(number, handler)
