"""`RunningStudy`: one run from first event to report."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from scalestudy.experiments.analysis.answers.factorised import held_out_trials
from scalestudy.experiments.analysis.measures.metric import StudyMetric
from scalestudy.experiments.plan.plan import TrialPlan
from scalestudy.experiments.plan.timing_runs import timing_trials
from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.orchestration.base.environment import Output
from scalestudy.orchestration.base.errors import ExitCode
from scalestudy.orchestration.base.places import inside_ray_job
from scalestudy.orchestration.cluster import connection as clusters
from scalestudy.orchestration.groups.failures import describe
from scalestudy.orchestration.progress.live import Logged, Silent, StudyLog, View
from scalestudy.orchestration.progress.metrics import ProgressMetrics
from scalestudy.orchestration.progress.progress import Board
from scalestudy.orchestration.storage.byte_store import storage_reason
from scalestudy.orchestration.storage.lock import StudyLock
from scalestudy.orchestration.study.engine import Engine
from scalestudy.orchestration.study.opening import Opened
from scalestudy.orchestration.study.trials import order, train_config
from scalestudy.orchestration.sweep.search import PlannedTrials, Search, search_for
from scalestudy.orchestration.tracking.mlflow_store import MlflowStore, Operations
from scalestudy.orchestration.tracking.recorder import Recorder
from scalestudy.orchestration.tracking.server import TrackingAddress, reason_of
from scalestudy.orchestration.tracking.writer import Cursor, Tracker
from scalestudy.training.checkpoint.byte_store import is_name


@dataclass(frozen=True, kw_only=True)
class StudyResult:
    """How a run of a study ended.

    Attributes:
        folder: the study's folder, with `report.html`, `summary.json` and `trials.jsonl`; the copy on this machine
            where the study is kept under a URI.
        address: what commands take for the study: the folder, or the URI.
        summary: `summary.json`; None where the run was ended before it could be written.
        exit_code: the command's exit status.
        tracking_uri: where MLflow has the study, without a password.
        broken: why the sweep broke off before its end, or None.
        unsent: operations that MLflow did not get; `scalestudy sync` sends them.
        unsent_reason: why it did not, in one line; None where it got all.
        cold_starts: seconds from a group's order to its workers being ready, by group.
    """

    folder: Path
    address: str
    summary: dict[str, Any] | None
    exit_code: ExitCode
    tracking_uri: str
    broken: str | None
    unsent: int
    cold_starts: dict[str, float]
    unsent_reason: str | None = None

    @property
    def report(self) -> Path | None:
        """`report.html`; None where the run was ended before it could be written."""
        return None if self.summary is None else StudyFolder(self.folder).report_file


def exit_code(summary: dict[str, Any] | None, caught: Sequence[int], *, lost: bool) -> ExitCode:
    """The exit status that a study's end means: signals first, then a lost cluster or store, then failed trials."""
    if caught:
        return _status_of(caught[0])
    if lost or summary is None:
        return ExitCode.UNREACHABLE
    return ExitCode.SOME_FAILED if summary["trials"]["failed"] else ExitCode.DONE


def _status_of(signal_number: int) -> ExitCode:
    return ExitCode.INTERRUPTED if signal_number == signal.SIGINT else ExitCode.TERMINATED


@contextmanager
def stop_signals(stop: Callable[[], None]) -> Iterator[list[int]]:
    """Ctrl-C or SIGTERM once stops the study cleanly; twice gives up at once, with the exit status of the first.

    Yields the list of those caught.
    """
    caught: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return

    def handle(number: int, _frame: Any) -> None:
        if caught:
            raise SystemExit(int(_status_of(caught[0])))
        caught.append(number)
        stop()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            with suppress(TypeError):  # a handler that was not set from Python
                signal.signal(number, handler)


logger = logging.getLogger(__name__)

ViewFactory = Callable[[Board, TextIO, Callable[[], dict[str, float]]], View]

ENGINE_STARTS = 3
"""Times that a run of a study starts its engine; each loss of the books' actor costs one."""
QUICK_SECONDS = 0.5
"""What MLflow's writer, and the workers, may still take in a job that Ray will kill in three seconds."""


class StudyRun:
    """Runs what is left of a study, and writes its report."""

    def __init__(self, opened: Opened, tracking: TrackingAddress, cluster: clusters.Cluster, data_root: Path) -> None:
        """Raises RequestError when the cluster can never run the study's largest trial."""
        self.opened, self.spec, self.folder = opened, opened.spec, opened.folder
        self.tracking, self.cluster, self.data_root = tracking, cluster, data_root
        self.trials = opened.trials
        self.board = Board(self.trials, StudyMetric.of(self.spec.workload), expected=opened.plan.expected_trials)
        self.stopping = threading.Event()
        self.broken: str | None = None
        self.disowned = False  # the folder is another process's by now
        self.abandon_tracking: Callable[[], None] = lambda: None
        self.storage_lost = False
        self.cold_starts: dict[str, float] = {}
        self.engine = self._new_engine()

    def execute(self, output: Output, view: ViewFactory | None, lock: StudyLock) -> StudyResult:
        """Runs the trials, writes the report. lock: of the study's folder."""
        lock.lost = self.lock_lost
        output.keep_in(self.folder.driver_log)
        shown = Logged(view(self.board, output.screen, lambda: self.engine.waiting()) if view else Silent(), self.board)
        cursor = Cursor(self.folder.cursor_file)
        operations = Operations(self.spec, self.folder, self.trials, self._config_of)
        tracker = Tracker(self._open_store, cursor)
        self.abandon_tracking = tracker.abandon
        summary: dict[str, Any] | None = None
        caught: list[int] = []
        recorder = Recorder(self.folder, operations, tracker, self.opened.history)
        metrics = ProgressMetrics(
            self.opened.study_id, self.board, lambda: self.engine.books(), lambda: tracker.backlog
        )
        try:
            with StudyLog(self.folder.log_file, self.opened.study_id), metrics, stop_signals(self.stop) as caught:
                self._run(recorder, shown, cursor)
                summary = self._finish(recorder, shown, caught, lock)
        finally:
            self.cold_starts |= self.engine.cold_starts()
            left = (QUICK_SECONDS, QUICK_SECONDS) if caught and summary is None else ()
            self.engine.shut_down(*left[:1])
            unsent = tracker.close(*left)
            if not left:
                self._share_rest()
            shown.close()
        return StudyResult(
            folder=self.folder.path,
            address=self.folder.address,
            summary=summary,
            exit_code=exit_code(summary, caught, lost=bool(unsent) or self.broken is not None),
            broken=self.broken,
            tracking_uri=self.tracking.shown,
            unsent=unsent,
            unsent_reason=reason_of(tracker.error) if unsent and tracker.error else None,
            cold_starts=self.cold_starts,
        )

    def _share_rest(self) -> None:
        """What is no record goes to an object store at the end of a run: how far MLflow has come, and the logs."""
        if self.disowned or self.storage_lost or not self.folder.mirror:
            return
        try:
            logs = [file for file in sorted(self.folder.logs.glob("*.log")) if is_name(file.name)]
            self.folder.share(self.folder.cursor_file, self.folder.log_file, self.folder.driver_log, *logs)
        except OSError as error:
            logger.warning("the logs stay in %s: %s", self.folder.path, storage_reason(error))

    def lock_lost(self) -> None:
        """Another process runs the study: nothing is written any more."""
        self.disowned = True
        self.abandon_tracking()
        self.broken = "another process has taken the study's lock, this one having been silent for too long"
        self.stop()

    def stop(self) -> None:
        """Ends the sweep soon, cleanly; safe in a signal handler."""
        self.stopping.set()
        self.engine.stop_soon()

    def _run(self, recorder: Recorder, shown: View, cursor: Cursor) -> None:
        """The trials. A sweep that breaks off keeps the trials that had ended; `broken` says why it did."""
        try:
            recorder.begin(self.opened.state, cursor)
            self.board.catch_up(recorder.history.past)
            shown.stage(self._opening_line())
            self._sweep(recorder, shown)
            self._hold_out(recorder, shown)
            self._time_apart(recorder, shown)
        except Exception as error:  # whatever Ray raises: the records are safe, and the report can be written
            logger.exception("the sweep broke off")
            self.broken = self.broken or describe(error)

    def _sweep(self, recorder: Recorder, shown: View, apart: Sequence[TrialPlan] = ()) -> None:
        """The trials that are left of the sweep; or of these, one at a time on a machine."""
        for start in range(1, ENGINE_STARTS + 1):
            search = self._search(recorder, apart)
            take = self._sink(recorder, shown)
            sizes = () if apart else self._sizes_ahead(recorder)
            self.engine.run(search, lambda trial: self._order(trial, recorder), take, self.stopping.is_set, sizes,
                            exclusive=bool(apart))  # fmt: skip
            if not self.engine.is_lost or self.stopping.is_set():
                return
            message = "the actor that keeps the worker groups' books died"
            recorder.study("engine_lost", message=message)
            if start == ENGINE_STARTS:
                self.broken = f"{message}, for the {start}rd time"
                return
            shown.stage(f"{message}; starting a new one")
            self.cold_starts |= self.engine.cold_starts()
            self.engine = self._new_engine()

    def _search(self, recorder: Recorder, apart: Sequence[TrialPlan]) -> Search:
        if apart:
            return Search(PlannedTrials(trial for trial in apart if trial.trial_id not in recorder.history.ended))
        trained = {trial.trial_id for trial in self._swept()}
        past = [(trial_id, event) for trial_id, event in recorder.history.past if trial_id in trained]
        return search_for(self.spec, self.opened.plan, past)

    def _hold_out(self, recorder: Recorder, shown: View) -> None:
        """The cells that a factorised study runs in full, after its trainings."""
        if not self._cut_short:
            known = self.trials.values()
            wanted = held_out_trials(self.spec, self.opened.plan, known, recorder.history.ended)
            self._run_apart(wanted, "running {} trials of held-out cells, one at a time", recorder, shown)

    def _time_apart(self, recorder: Recorder, shown: View) -> None:
        """The timing runs, after a sweep that has come to its end and whose trials disturbed each other's timings; of
        a factorised study in any case."""
        factorised = self.opened.plan.factorised
        if (self.engine.times_apart or factorised) and not self._cut_short:
            wanted = timing_trials(self.spec, self._swept(), recorder.history.ended, factorised)
            self._run_apart(wanted, "timing {} kinds of step, each with its machine to itself", recorder, shown)

    def _run_apart(self, wanted: Sequence[TrialPlan], stage: str, recorder: Recorder, shown: View) -> None:
        """Those of these trials that have not ended, each with its machine to itself. stage: with a place for how many
        there are; they come into the journal first, for the plan does not have them."""
        left = [trial for trial in wanted if trial.trial_id not in recorder.history.ended]
        if not left:
            return
        shown.stage(stage.format(len(left)))
        take = self._sink(recorder, shown)
        for trial in left:
            take(trial.trial_id, {"type": "suggested", "trial": trial.to_dict(), "point": None})
        self._sweep(recorder, shown, left)

    @property
    def _cut_short(self) -> bool:
        """Whether the trials so far did not come to their end."""
        return self.broken is not None or self.stopping.is_set()

    def _training(self) -> list[TrialPlan]:
        """The trials that are known, those that only time others left out."""
        return [trial for trial in self.trials.values() if trial.kind == "training"]

    def _swept(self) -> list[TrialPlan]:
        """Of these, the sweep's own: without the cells that a factorised study holds out."""
        return [trial for trial in self._training() if self.opened.plan.is_swept(trial)]

    def _sizes_ahead(self, recorder: Recorder) -> list[int]:
        """Of the planned trials that have not ended, each once, in their order."""
        left = [each for each in self.opened.plan.swept if each.trial_id not in recorder.history.ended]
        return list(dict.fromkeys(trial.num_gpus for trial in left))

    def _sink(self, recorder: Recorder, shown: View) -> Callable[[str, dict[str, Any]], None]:
        engine = self.engine

        def take(trial_id: str, event: dict[str, Any]) -> None:
            if event["type"] == "lost" and (self.stopping.is_set() or engine.check_lost()):
                return  # Tune has ended it because all ends; a later run, or the next engine, takes it up
            if self.disowned or self.storage_lost:
                return  # the rest must not be written behind a gap
            if event["type"] == "suggested":
                self.trials[trial_id] = TrialPlan(**event["trial"])
            try:
                news = recorder.take(trial_id, event)
            except OSError as error:
                self._storage_failed(error)
                return
            for each in news:
                self.board.take(trial_id, each)
                shown.event(trial_id, each)

        return take

    def _storage_failed(self, error: OSError) -> None:
        """What can't be written down must not go on: the trial's event is lost with this run, and comes again."""
        logger.error("the study's storage: %s", error)
        self.storage_lost = True
        self.broken = self.broken or f"storage: {self.folder.address}: {storage_reason(error)}"
        self.stop()

    def _finish(self, recorder: Recorder, shown: View, caught: Sequence[int], lock: StudyLock) -> dict[str, Any] | None:
        """Report, summary, the study's last word; None where there was no time or no room for them."""
        lock.check()
        if self.disowned or (self.storage_lost and self.folder.mirror):
            return None  # a bucket that does not answer takes long to say so each time
        in_haste = bool(caught) and caught[0] == signal.SIGTERM and inside_ray_job()
        summary = None if in_haste else self._report(recorder, shown)
        try:
            recorder.close(interrupted=bool(caught) or self.broken is not None)
        except OSError as error:
            self._storage_failed(error)
        return summary

    def _report(self, recorder: Recorder, shown: View) -> dict[str, Any] | None:
        shown.stage("writing the report")
        try:
            self.folder.update_plan(self.opened.plan.with_trials(self._training()))
            return recorder.finish()
        except OSError as error:
            self._storage_failed(error)
        except Exception as error:  # the records are there: `scalestudy report` can write it when it is mended
            logger.exception("the report was not written")
            self.broken = self.broken or f"the report was not written: {describe(error)}"
        return None

    def _opening_line(self) -> str:
        count, ended = self.board.total, self.board.ended_before
        done = f", {ended} of them ended before" if ended else ""
        return f"{count} trials{done}; study: {self.folder.address}; MLflow: {self.tracking.shown}"

    def _new_engine(self) -> Engine:
        return Engine(self.spec, self.opened.plan.sizes, self.cluster, self.folder)

    def _order(self, trial: TrialPlan, recorder: Recorder) -> dict[str, Any]:
        history = recorder.history.order_of(trial.trial_id)
        place = self.folder.place_of(self.folder.checkpoints(trial.trial_id))
        return order(trial, self.data_root, place, history)

    def _config_of(self, trial: TrialPlan) -> dict[str, Any]:
        return train_config(trial, self.data_root)

    def _open_store(self) -> MlflowStore:
        experiment = self.spec.tracking.experiment or self.spec.name
        return MlflowStore(self.tracking, experiment, self.opened.study_id)
