"""One run of a study, from its first event to its report."""

from __future__ import annotations

import logging
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from scalestudy.experiments.analysis.answers.next_look import Over, Room
from scalestudy.experiments.analysis.measures.endings import WHY_OVER
from scalestudy.experiments.analysis.measures.metric import StudyMetric
from scalestudy.experiments.analysis.measures.units import plural
from scalestudy.experiments.plan.plan import TrialPlan
from scalestudy.experiments.plan.timing_runs import timing_trials
from scalestudy.orchestration.base.places import inside_ray_job
from scalestudy.orchestration.groups.events import (
    Ended,
    EngineLost,
    FreshWorkers,
    JournalEvent,
    Lost,
    Origin,
    Reopened,
    Retried,
    StudyBegan,
    Suggested,
    TrialEvent,
)
from scalestudy.orchestration.groups.failures import USED_WORKERS, describe
from scalestudy.orchestration.groups.model import TrialOrder
from scalestudy.orchestration.progress.live import Logged, Silent, View, study_log
from scalestudy.orchestration.progress.progress import StudyProgress
from scalestudy.orchestration.storage.arrow_store import storage_reason
from scalestudy.orchestration.storage.lock import StudyLock
from scalestudy.orchestration.study.alike import FirstTrials
from scalestudy.orchestration.study.engine import Engine
from scalestudy.orchestration.study.ready import Ready
from scalestudy.orchestration.study.result import StudyResult, exit_code_of, exit_code_of_signal
from scalestudy.orchestration.study.trials import order, train_config
from scalestudy.orchestration.sweep.methods import search_for
from scalestudy.orchestration.sweep.search import PlannedTrials, Search
from scalestudy.orchestration.tracking.entries import StudyJournal
from scalestudy.orchestration.tracking.mlflow_store import MlflowStore, TrackedStudy
from scalestudy.orchestration.tracking.recorder import Recorder
from scalestudy.orchestration.tracking.server import reason_of
from scalestudy.orchestration.tracking.writer import Cursor, TrackingWriter
from scalestudy.training.checkpoint.byte_store import is_name
from scalestudy.training.fingerprint import Fingerprint
from scalestudy.training.own_code import named_modules
from scalestudy.training.process import terminate

logger = logging.getLogger(__name__)

ViewFactory = Callable[[StudyProgress, TextIO, Callable[[], dict[str, float]]], View]
"""A function that makes a view from the progress, the screen, and what is being started for how many seconds."""

COLD_START_SECONDS = 7.0
"""From a group's order to its workers being ready, where none was started yet: docs/results/engine.md."""
ENGINE_STARTS = 3
"""Times that a run of a study starts its engine; each loss of the pool's actor costs one."""
QUICK_SECONDS = 0.5
"""Time for MLflow's writer, and for the workers, in a job that Ray will kill in three seconds."""


class RunningStudy:
    """The run of what is left of a study, with its report."""

    def __init__(self, ready: Ready, lock: StudyLock, view: ViewFactory | None, origin: Origin | None = None) -> None:
        """Prepare the run. lock: of the study's folder, which is written by now. view: None: show nothing.

        origin: of this run.
        """
        study = ready.study
        self.ready, self.lock = ready, lock
        self.spec, self.plan, self.folder, self.trials = study.spec, study.plan, study.folder, study.trials
        self.origin = origin
        self.stopping = threading.Event()  # set when the study should end early
        self.broken: str | None = None  # why the study broke off; None: it did not
        self.failed_alike = False  # whether it broke off because its first trials failed in the same way
        self.first: FirstTrials | None = None
        if self.spec.limits.failures == "stop":
            self.first = FirstTrials(record["status"] for record in study.history.ended.values())
        self.edited: set[str] = set()  # modules that were edited since this run began, as far as it was told
        self.lock_lost = False
        self.storage_lost = False
        self.cold_starts: dict[str, float] = {}
        self.fresh_workers = ready.fresh_workers
        ready.output.keep_in(self.folder.driver_log)
        self.engine = self._new_engine()
        self.progress = StudyProgress(
            self.trials,
            StudyMetric.of(self.spec.workload),
            expected=self.plan.expected_trials,
            grows=self.plan.is_adaptive,
        )
        shown = view(self.progress, ready.output.screen, lambda: self.engine.waiting()) if view else Silent()
        self.view = Logged(shown, self.progress)
        tracked = TrackedStudy(
            spec=self.spec,
            folder=self.folder,
            trials=self.trials,
            config_of=lambda trial: train_config(trial, ready.data_root),
            imported=ready.fingerprint,
        )
        self.cursor = Cursor(self.folder.cursor_file)
        self.writer = TrackingWriter(
            lambda: MlflowStore(ready.tracking, tracked, self.view.stage), self.cursor, StudyJournal(self.folder)
        )
        lock.lost = self._lose_lock  # before the recorder, which may ask a bucket for each ended trial
        self.recorder = Recorder(tracked, self.writer, study.history)

    def run(self) -> StudyResult:
        """Run sweep and timing runs, and write the report.

        A run that breaks off keeps the trials that had ended; `broken` says why it did.
        """
        study_id = self.ready.study.study_id
        summary: dict[str, Any] | None = None
        caught: list[int] = []
        try:
            with study_log(self.folder.log_file, study_id), stop_signals(self.stop) as caught:
                try:
                    how, fingerprint = self.ready.study.state, self.ready.fingerprint or None
                    self.recorder.begin(StudyBegan(how=how, origin=self.origin, fingerprint=fingerprint), self.cursor)
                    for trial_id in self.ready.study.reopened:
                        self.recorder.take(trial_id, Reopened())
                    self.progress.catch_up(self.recorder.history.past)
                    self.view.stage(self._opening_line())
                    for note in self.spec.notes:
                        self.view.stage(note)
                    if self.ready.changed:
                        self.view.stage(f"changed since: {', '.join(self.ready.changed)}")
                    if self.fresh_workers:
                        self._use_fresh_workers(self.fresh_workers)
                    self._sweep()
                    self._run_timing()
                except Exception as error:  # whatever Ray raises: the records are safe, and the report can be written
                    logger.exception("the sweep broke off")
                    self.broken = self.broken or describe(error)
                summary = self._finish(caught)
        finally:
            self.cold_starts |= self.engine.cold_starts()
            if caught and summary is None:  # no time is left, or no storage
                self.engine.shut_down(QUICK_SECONDS)
                unsent = self.writer.close(QUICK_SECONDS, QUICK_SECONDS)
            else:
                if self.engine.shut_down():
                    self.ready.cluster.disconnect()  # Ray ends while MLflow gets the best model
                unsent = self.writer.close()
                self._share_logs()
            self.view.close()
        return StudyResult(
            folder=self.folder.path,
            address=self.folder.address,
            summary=summary,
            exit_code=exit_code_of(
                summary,
                caught=caught[0] if caught else None,
                broken=self.broken,
                failed_alike=self.failed_alike,
                unsent=unsent,
            ),
            broken=self.broken,
            tracking_uri=self.ready.tracking.shown,
            unsent=unsent,
            unsent_reason=reason_of(self.writer.error) if unsent and self.writer.error else None,
            cold_starts=self.cold_starts,
        )

    def stop(self) -> None:
        """End the sweep soon, cleanly; safe in a signal handler."""
        self.stopping.set()
        self.progress.stopping = True
        self.engine.stop_soon()

    def _opening_line(self) -> str:
        ended = self.progress.ended_before
        done = f", {ended} of them ended before" if ended else ""
        if ended == self.progress.total:
            done = ", all of them ended before: nothing is left to train"
        trials = f"{plural(self.progress.total, 'trial')}{done}"
        if self.plan.is_adaptive and self.plan.to_suggest:
            looks = ended + len(self.progress.timings)
            trials = f"{plural(looks, 'look')} before; looking among {plural(self.plan.to_suggest.points, 'place')}"
        return f"{trials}; study: {self.folder.address}; MLflow: {self.ready.tracking.shown}"

    def _sweep(self, exclusive: Sequence[TrialPlan] = ()) -> None:
        """Run the trials that are left of the sweep; or those in `exclusive`, one at a time on a machine.

        A lost engine is replaced, and a new search goes on from the journal.
        """
        for start in range(1, ENGINE_STARTS + 1):
            ended = self.recorder.history.ended
            sizes: list[int] = []
            if exclusive:
                search = Search(PlannedTrials(trial for trial in exclusive if trial.trial_id not in ended))
            else:
                swept = set(self.trials) if self.plan.is_adaptive else {trial.trial_id for trial in self._trainings()}
                past = [(trial_id, event) for trial_id, event in self.recorder.history.past if trial_id in swept]
                search = search_for(self.spec, self.plan, past, room=self._look_room, over=self._looking_ended)
                left = [trial for trial in self.plan.trials if trial.trial_id not in ended]
                sizes = list(dict.fromkeys(trial.num_gpus for trial in left))
                if sizes and start == 1:
                    self.view.stage(f"waiting for {plural(sizes[0], 'worker')} to start")
            self.engine.run(search, self._order, self._take, self.stopping.is_set, sizes, exclusive=bool(exclusive))
            if not self.engine.is_lost or self.stopping.is_set():
                self.broken = self.broken or self.engine.cluster_ends or search.gave_up
                return
            message = "the actor that keeps the pool of worker groups died"
            self.recorder.take_study(EngineLost(message=message))
            if start == ENGINE_STARTS:
                self.broken = f"{message}, for the {start}rd time"
                return
            self.view.stage(f"{message}; starting a new one")
            self.cold_starts |= self.engine.cold_starts()
            self.engine = self._new_engine()

    def _look_room(self) -> Room:
        """Return what an adaptive search has for its looks."""
        starts = [*self.cold_starts.values(), *self.engine.cold_starts().values()]
        return Room(
            workers=self.engine.slots,
            start_seconds=statistics.median(starts or [COLD_START_SECONDS]),
            minutes=self.recorder.history.wall_seconds_at(time.time()) / 60,
        )

    def _looking_ended(self, over: Over) -> None:
        """Show why an adaptive search asks for no more."""
        self.view.stage(f"looking ended: {WHY_OVER[over.why]}")

    def _run_timing(self) -> None:
        """Time each kind of step by separate runs, if the sweep's trials disturbed each other's timings.

        They come after a sweep that has reached its end. The plan does not have them, so they come into the journal
        first.
        """
        if not self.engine.times_apart or self.broken is not None or self.stopping.is_set():
            return
        wanted = timing_trials(self.spec, self._trainings(), self.recorder.history.ended)
        left = [trial for trial in wanted if trial.trial_id not in self.recorder.history.ended]
        if left:
            self.view.stage(f"making {len(left)} timing runs, each with its machine to itself")
            for trial in left:
                self._take(trial.trial_id, Suggested(trial=trial, point=None))
            self._sweep(left)

    def _trainings(self) -> list[TrialPlan]:
        """Return the known trials without timing runs."""
        return [trial for trial in self.trials.values() if trial.kind == "training"]

    def _new_engine(self) -> Engine:
        return Engine(
            self.spec,
            self.plan.sizes,
            self.ready.placed,
            self.folder,
            growth=self.ready.cluster.growth,
            fresh_workers=bool(self.fresh_workers),
            say=lambda text: self.view.stage(text),  # there is a view by then
        )

    def _order(self, trial: TrialPlan) -> TrialOrder:
        place = self.folder.place_of(self.folder.checkpoints(trial.trial_id))
        so_far, stop_at = self.recorder.history.record_of(trial.trial_id), self.spec.stop_target
        return order(trial, self.ready.data_root, place, so_far, stop_at=stop_at)

    def _take(self, trial_id: str, event: TrialEvent) -> JournalEvent | None:
        """Write an event, then show it; return what was written. No one sees an event until it is in the journal.

        None: it is no news, or the study closes.
        """
        if isinstance(event, Lost) and (self.stopping.is_set() or self.engine.check_lost()):
            return None  # Tune ended it with everything else; a later run, or the next engine, takes it up
        if self.lock_lost or self.storage_lost:
            return None  # an event was lost before it, and the journal has no gaps
        if isinstance(event, Suggested):
            self.trials[trial_id] = event.trial
        try:
            written = self.recorder.take(trial_id, event)
            if isinstance(written, Retried) and written.error.kind == USED_WORKERS and not self.fresh_workers:
                self._use_fresh_workers(written.error.message)
        except FileExistsError:  # of the journal's next entry: this process stood still, and another one goes on
            self._lose_lock()
            return None
        except OSError as error:
            self._lose_storage(error)
            return None
        if written is not None:
            self.progress.take(trial_id, written)
            self.view.event(trial_id, written)
            if isinstance(written, Ended):
                self._tell_edits(self.trials[trial_id], written)
            if self.first and isinstance(written, Ended) and written.is_final:
                self._look_at_failure(self.first.alike(self.trials[trial_id], written))
        return written

    def _use_fresh_workers(self, why: str) -> None:
        """Note and show that every trial gets fresh workers from now on. The pool does so already."""
        self.fresh_workers = why
        if self.recorder.history.fresh_workers != why:
            self.recorder.take_study(FreshWorkers(why=why))
        self.view.stage(f"every trial gets fresh workers: {why}")

    def _tell_edits(self, trial: TrialPlan, ended: Ended) -> None:
        """Say once of each module that workers have another version than the run began with.

        It is named by the files that have changed here; if none has, as where nodes have different files, by its name.
        """
        began = self.ready.fingerprint.digests(trial.workload, trial.train)
        edited = {name for name, digest in began.items() if (ended.fingerprint.get(name) or [digest])[-1] != digest}
        if new := sorted(edited - self.edited):
            self.edited |= edited
            here = Fingerprint.of_code(named_modules(trial.workload, trial.train)).changes_since(self.ready.fingerprint)
            self.view.stage(f"changed since this run began: {', '.join(here or new)}")

    def _look_at_failure(self, alike: str | None) -> None:
        """Stop the study if its first trials failed in the same way. alike: how; None: they did not."""
        if alike is not None and not self.stopping.is_set():
            self.broken, self.failed_alike = alike, True
            self.stop()

    def _lose_storage(self, error: OSError) -> None:
        """Stop the study, since events can no longer be saved. The next run repeats the lost one."""
        logger.error("the study's storage: %s", error)
        self.storage_lost = True
        self.broken = self.broken or f"storage: {self.folder.address}: {storage_reason(error)}"
        self.stop()

    def _lose_lock(self) -> None:
        """Stop the study, and write nothing from now on: another process runs it."""
        self.lock_lost = True
        self.writer.abandon()
        self.broken = "another process has taken the study's lock, because this one was silent for too long"
        self.stop()

    def _finish(self, caught: Sequence[int]) -> dict[str, Any] | None:
        """Write the report and the study's last event; return the summary. None: there was no time or room for it."""
        self.lock.check()
        if self.lock_lost or (self.storage_lost and self.folder.mirror):
            return None  # each request to a bucket that does not answer takes long
        summary = None
        if not (caught and caught[0] == signal.SIGTERM and inside_ray_job()):  # Ray kills a job in three seconds
            self.view.stage("writing the report")
            self.engine.stop_soon()  # the groups end meanwhile
            try:
                self.folder.update_plan(self.plan.with_trials(self._trainings()))
                summary = self.recorder.finish()
            except OSError as error:
                self._lose_storage(error)
            except (
                Exception
            ) as error:  # the records are safe: `scalestudy report` can write it once the cause is mended
                logger.exception("the report was not written")
                self.broken = self.broken or f"the report was not written: {describe(error)}"
        try:
            self.recorder.close(interrupted=bool(caught) or self.broken is not None)
        except OSError as error:
            self._lose_storage(error)
        return summary

    def _share_logs(self) -> None:
        """Put logs and cursor into the object store, which gets them only at the end of a run."""
        if self.lock_lost or self.storage_lost or not self.folder.mirror:
            return
        try:
            logs = [file for file in sorted(self.folder.logs.glob("*.log")) if is_name(file.name)]
            self.folder.share(self.folder.cursor_file, self.folder.log_file, self.folder.driver_log, *logs)
        except OSError as error:
            logger.warning("the logs stay in %s: %s", self.folder.path, storage_reason(error))


@contextmanager
def stop_signals(stop: Callable[[], None]) -> Iterator[list[int]]:
    """Stop the study cleanly at Ctrl-C, SIGTERM or SIGHUP; a second one gives up at once, with the status of the first.

    SIGHUP, which a closed terminal sends more than once, never gives up. A handler of the user's for it stays.
    Yields the list of the signals caught.
    """
    caught: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return

    def handle(number: int, _frame: Any) -> None:
        if not caught:
            caught.append(number)
            stop()
        elif number != signal.SIGHUP:
            raise SystemExit(int(exit_code_of_signal(caught[0])))

    stopping = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) in (signal.SIG_DFL, terminate):
        stopping.append(signal.SIGHUP)
    before = {number: signal.signal(number, handle) for number in stopping}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            with suppress(TypeError):  # a handler that was not set from Python
                signal.signal(number, handler)
