"""A study that is about to run, before it writes: new, resumed or extended."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from scalestudy.experiments.analysis.measures.units import plural
from scalestudy.experiments.plan.plan import Plan, TrialPlan, make_plan
from scalestudy.experiments.spec.addresses import child, is_uri, parent_and_name
from scalestudy.experiments.spec.study_spec import StudySpec
from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.orchestration.base.errors import RequestError, UnreachableError
from scalestudy.orchestration.base.places import base_folder, expanded, is_there, nearest
from scalestudy.orchestration.groups.events import Beginning
from scalestudy.orchestration.storage import mirror
from scalestudy.orchestration.storage.arrow_store import storage_reason
from scalestudy.orchestration.storage.lock import StudyLock, lock_of
from scalestudy.orchestration.study.folders import open_folder, readable, refuse_judged, spec_of
from scalestudy.orchestration.tracking.entries import StudyJournal
from scalestudy.orchestration.tracking.recorder import History
from scalestudy.training.fingerprint import Fingerprint

SUGGESTED_FROM = ("workload", "train", "sweep", "resources", "targets")
"""Sections that a search's suggestions depend on."""
PROBE_BYTES = 200_000
"""Room that a study needs at its start: with less, its first records would not fit."""


@dataclass(frozen=True, kw_only=True)
class PreparedStudy:
    """A study with its folder, before this run writes anything."""

    spec: StudySpec
    plan: Plan
    folder: StudyFolder
    study_id: str
    history: History  # the records of earlier runs; empty for a new study
    state: Beginning
    reopened: tuple[str, ...] = ()  # failed trials that will run again

    @property
    def trials(self) -> dict[str, TrialPlan]:
        """Every known trial by its id: the plan's, and those that a search has made."""
        return self.plan.with_trials(self.history.suggested.values()).by_id()

    def changed_since(self, fingerprint: Fingerprint) -> list[str]:
        """Return in words what of the code and the data has changed since the study has trained, as far as it is known.

        fingerprint: of this run. Nothing is refused: who goes on after an edit has made it on purpose.
        """
        return list(
            dict.fromkeys(each for before in self.history.fingerprints for each in fingerprint.changes_since(before))
        )

    def write(self, made: Iterable[Path] = ()) -> list[Path]:
        """Write spec and plan; return the folders that were made, by this or before it (`made`).

        Raises UnreachableError.
        """
        path = self.folder.path
        if self.folder.mirror and self.state == "started":
            shutil.rmtree(path, ignore_errors=True)  # the copy of a study that is no more
        made = [*made, *_missing(path)]
        try:
            self.folder.create()
            if self.state != "resumed":
                self.folder.write_plan(self.plan, self.study_id, self.spec.to_yaml())
        except OSError as error:
            self.discard(made)
            raise self._unwritten(error) from error
        return made

    def claim(self, stack: ExitStack) -> tuple[StudyLock, list[Path]]:
        """Take the lock of a new study, with its folder; return the lock and the folders that were made.

        Another study may have begun there since the name was free: then raise RequestError, and leave it alone.
        """
        made: list[Path] = []
        if not self.folder.mirror:  # a lock in a bucket needs no folder, and the copy here may be another's
            made = _missing(self.folder.path)
            try:
                self.folder.path.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise self._unwritten(error) from error
        try:
            lock = stack.enter_context(lock_of(self.folder))
        except UnreachableError:  # a full disk
            for folder in made:
                with suppress(OSError):  # another study may have begun in it
                    folder.rmdir()
            raise
        if self.folder.mirror is None and self.folder.plan_file.exists():
            raise RequestError(f"storage: {self.folder.path}: is another study's by now", "run it again")
        return lock, made

    def _unwritten(self, error: OSError) -> UnreachableError:
        problem = f"storage: {self.folder.address}: {storage_reason(error) if self.folder.mirror else error}"
        return UnreachableError(problem, "name another folder, or free some space")

    def discard(self, made: Iterable[Path]) -> None:
        """Delete a new study's folder, and the folders made for it that are empty, the nearest first.

        It does not touch a study that has run before.
        """
        if self.state != "started":
            return
        if self.folder.mirror:
            mirror.clear(self.folder)
            return
        path, made = self.folder.path, list(made)
        shutil.rmtree(path, ignore_errors=True)
        if path not in made:
            path.mkdir()  # it was there, empty, before
        for parent in made[1:]:
            with suppress(OSError):  # another study may have begun in it
                parent.rmdir()


def _missing(path: Path) -> list[Path]:
    """Return the path and those above it that do not exist, the nearest first."""
    return [each for each in (path, *path.parents) if not each.exists()]


def claimed(study: PreparedStudy, stack: ExitStack) -> tuple[PreparedStudy, StudyLock, list[Path]]:
    """Claim a new study; where another one has taken its name in the meantime, take another name, unless it is `--out`.

    Return the study, its lock and the folders that were made. Raises as `PreparedStudy.claim`.
    """
    with ExitStack() as held:
        try:
            lock, made = study.claim(held)
        except RequestError:
            if study.folder.address != child(storage_of(study.spec), study.study_id):
                raise
            return claimed(open_new(study.spec, None), stack)
        stack.push(held.pop_all())
    return study, lock, made


def open_new(spec: StudySpec, out: str | Path | None) -> PreparedStudy:
    """Open a new study. Raises RequestError or UnreachableError as `new_folder` does."""
    study_id = new_study_id(spec)
    folder = new_folder(spec, study_id, out)
    return PreparedStudy(
        spec=spec, plan=make_plan(spec), folder=folder, study_id=study_id, history=History(), state="started"
    )


def open_resumed(path: str | Path) -> PreparedStudy:
    """Open a study that was interrupted, or has ended. Raises RequestError if it can't go on."""
    if is_uri(path):
        mirror.check_writable(str(path))
        folder = open_folder(path, "work")
    else:
        folder = open_folder(Path(path).absolute())  # Tune and the workers need to find it too
        check_writable(folder.path)
    with readable(folder):
        spec = spec_of(folder)
        refuse_judged(spec, f"DIR: {folder.address}")
        if not folder.is_spec_unchanged():
            remedy = f"restore it, or keep it elsewhere and type: scalestudy run SPEC --extend {folder.address}"
            raise RequestError(f"DIR: {folder.place_of(folder.spec_file)}: was edited since the study began", remedy)
        plan, history = folder.read_plan(), History.of(StudyJournal(folder).entries())
        for record in folder.read_trials():  # normally in the journal too
            if record["trial_id"] not in history.ended.keys() | history.reopened:
                history.ended[record["trial_id"]] = record
                history.unjournalled.append(record)
    return PreparedStudy(
        spec=spec, plan=plan, folder=folder, study_id=folder.study_id, history=history, state="resumed"
    )


def with_failed(study: PreparedStudy, only: str | None = None) -> PreparedStudy:
    """Return the study with its failed trials to run again.

    only: of these, those that failed by this cause, the kind of their error. Raises RequestError for a cause by which
    none has failed.
    """
    causes: dict[str, list[str]] = {}
    for trial_id, line in study.history.ended.items():
        if line["status"] == "failed":
            causes.setdefault((line["error"] or {}).get("kind", "unknown"), []).append(trial_id)
    if only is not None and only not in causes:
        known = ", ".join(f"{cause} ({len(failed)})" for cause, failed in causes.items())
        remedy = f"name one of {known}" if causes else "leave --retry-failed out"
        raise RequestError(f"--only: {only}: no trial of {study.study_id} failed by this cause", remedy)
    again = [trial_id for cause, failed in causes.items() for trial_id in failed if only in (None, cause)]
    return replace(study, reopened=tuple(again))


def open_extended(spec: StudySpec, path: str | Path) -> PreparedStudy:
    """Open a study that gets more points, seeds, samples or budget.

    Raises RequestError if that would change what has run.
    """
    return extended(open_resumed(path), spec, "--extend")


def extended(before: PreparedStudy, spec: StudySpec, option: str) -> PreparedStudy:
    """Return a study that was opened, with the spec that it goes on with. option: of the command that asks for it.

    Raises as `open_extended`.
    """
    plan = make_plan(spec)
    _refuse_change(before, spec, plan, f"{option}: {before.folder.address}")
    return PreparedStudy(
        spec=spec, plan=plan, folder=before.folder, study_id=before.study_id, history=before.history, state="extended"
    )


def _refuse_change(before: PreparedStudy, spec: StudySpec, plan: Plan, where: str) -> None:
    """Raise RequestError if a spec changes what a study has run. where: begins its text."""
    if spec.name != before.spec.name:
        raise RequestError(f"{where}: is the study {before.spec.name}, not {spec.name}", "give the spec that name")
    began, asked = before.spec.resources.placement, spec.resources.placement
    if asked != began:  # one way for all trials of a study
        problem = f"{where}: resources.placement: the study's trials are placed by {began}, not {asked}"
        raise RequestError(problem, f"set resources.placement: {began}, or begin another study")
    if spec.search.replace(samples=before.spec.search.samples) != before.spec.search:
        raise RequestError(f"{where}: search: differs from the study's spec", "change nothing there but search.samples")
    for key, least in before.spec.budget.limits.items():
        given = spec.budget.limits.get(key)
        if given is None or given < least:
            what = "is not given" if given is None else f"{given:.10g} is too small"
            problem = f"{where}: budget.{key}: {what}, and the study has {least:.10g}"
            raise RequestError(problem, f"give budget.{key}: {least:.10g} or more, or run a new study")
    changed = [part for part in SUGGESTED_FROM if getattr(spec, part) != getattr(before.spec, part)]
    if plan.to_suggest and changed:
        more = "budget" if plan.is_adaptive else "search.samples"
        remedy = f"change nothing but {more}: the search continues in the same space"
        raise RequestError(f"{where}: {', '.join(changed)}: differs from the study's spec", remedy)
    stopped = [line for line in before.history.ended.values() if line["status"] == "at_target"]
    if stopped and spec.stop_target != (target := before.spec.stop_target):
        problem = f"{where}: targets: {plural(len(stopped), 'training')} of it stopped at {target:g}"
        raise RequestError(problem, "leave the hardest target and targets.stop as they were, or run a new study")
    kept = plan.with_trials(before.history.suggested.values()).by_id().keys()
    begun = before.history.ended.keys() | before.history.open.keys()
    gone = [trial for trial_id, trial in before.trials.items() if trial_id in begun - kept]
    if gone:
        names = ", ".join(trial.name for trial in gone[:3]) + (" …" if len(gone) > 3 else "")
        remedy = "keep every value that has run, and only add to them; for another training, run a new study"
        raise RequestError(f"{where}: {len(gone)} of the trials that have run are not in the spec ({names})", remedy)


def new_study_id(spec: StudySpec) -> str:
    """Return the study's name and the time in UTC: the name of its folder, and its name in MLflow."""
    stamp = f"{spec.name}-{datetime.now(UTC).strftime('%Y%m%dT%H%M%SZ')}"
    names = (stamp, *(f"{stamp}-{number}" for number in range(2, 1_000)))  # two studies may begin in one second
    storage = storage_of(spec)
    if is_uri(storage):
        mirror.check_writable(storage)  # before we read its names: a missing bucket has none
        return next(name for name in names if mirror.is_free(child(storage, name)))
    return next(name for name in names if not is_there(Path(storage) / name))


def storage_of(spec: StudySpec) -> str:
    """Return the folder or URI that holds the studies' folders."""
    return spec.storage if is_uri(spec.storage) else str(base_folder() / expanded(spec.storage))


def new_folder(spec: StudySpec, study_id: str, out: str | Path | None = None) -> StudyFolder:
    """Return the folder of a new study: `out`, else `<storage>/<study_id>`.

    Raises RequestError if `out` is taken, UnreachableError if the folder can't be written.
    """
    place = child(storage_of(spec), study_id) if out is None else str(out)
    if is_uri(place):
        if out is not None:  # a place in `storage` was checked when the study got its id
            mirror.check_writable(parent_and_name(place)[0])
            if not mirror.is_free(place):
                raise RequestError(f"--out: {place}: is there already", "name a place that is new or empty")
        return mirror.mirrored(place, "work")
    path = expanded(place).absolute()
    if is_there(path) and (not path.is_dir() or any(path.iterdir())):
        raise RequestError(f"--out: {path}: is there already", "name a folder that is new or empty")
    check_writable(path)
    return StudyFolder(path)


def check_writable(path: Path) -> None:
    """Check that a study can be written there: write to the nearest folder, and leave nothing.

    Raises UnreachableError.
    """
    probe = nearest(path) / f".scalestudy-probe-{time.time_ns()}"
    try:
        path.exists()  # raises for a name that is too long
        try:
            probe.write_bytes(bytes(PROBE_BYTES))
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UnreachableError(
            f"storage: {path}: can't be written ({reason})", "name a folder that you may write, or free some space"
        ) from error
