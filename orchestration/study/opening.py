"""A study that is about to run – a new one, one that goes on, one that grows."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from scalestudy.experiments.plan.plan import Plan, TrialPlan, make_plan
from scalestudy.experiments.spec.addresses import is_uri
from scalestudy.experiments.spec.sections import Search
from scalestudy.experiments.spec.study_spec import StudySpec
from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.experiments.study.journal import Journal
from scalestudy.orchestration.base.errors import RequestError, UnreachableError
from scalestudy.orchestration.storage import mirror
from scalestudy.orchestration.storage.byte_store import storage_reason
from scalestudy.orchestration.study.folders import open_folder, readable, spec_of
from scalestudy.orchestration.study.ready import check_writable, new_folder, new_study_id
from scalestudy.orchestration.tracking.recorder import History

SUGGESTED_FROM = ("workload", "train", "sweep", "resources", "targets")
"""Sections that a search's suggestions depend on."""
GROW = ("samples", "held_out")
"""Keys of `search` that a study may have more of."""
State = Literal["started", "resumed", "extended"]


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A study with its folder, before anything of this run is written.

    history: what earlier runs have left; empty for a new study.
    """

    spec: StudySpec
    plan: Plan
    folder: StudyFolder
    study_id: str
    history: History
    state: State

    @property
    def trials(self) -> dict[str, TrialPlan]:
        """Every trial that is known, by its id: the plan's, and those that a search has made."""
        return self.plan.with_trials(self.history.suggested.values()).by_id()

    def write(self) -> list[Path]:
        """Writes spec and plan; returns the folders that were made for them. Raises UnreachableError."""
        path = self.folder.path
        if self.folder.mirror and self.state == "started":
            shutil.rmtree(path, ignore_errors=True)  # the copy of a study that is no more
        made = [parent for parent in (path, *path.parents) if not parent.exists()]
        try:
            self.folder.create()
            if self.state != "resumed":
                self.folder.write_plan(self.plan, self.study_id, self.spec.to_yaml())
        except OSError as error:
            self.discard(made)
            problem = f"storage: {self.folder.address}: {storage_reason(error) if self.folder.mirror else error}"
            raise UnreachableError(problem, "name another folder, or free some space") from error
        return made

    def discard(self, made: Iterable[Path]) -> None:
        """Takes a new study's folder away, and the folders made for it, nearest first, that hold nothing else."""
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
            with suppress(OSError):  # another study has begun in it
                parent.rmdir()


def open_new(spec: StudySpec, out: str | Path | None) -> Opened:
    """A new study. Raises RequestError or UnreachableError where its folder can't be."""
    study_id = new_study_id(spec)
    folder = new_folder(spec, study_id, out)
    return Opened(spec=spec, plan=make_plan(spec), folder=folder, study_id=study_id, history=History(), state="started")


def open_resumed(path: str | Path) -> Opened:
    """A study that was interrupted, or has ended. Raises RequestError where it can't go on."""
    if is_uri(path):
        mirror.check_writable(str(path))
        folder = open_folder(path, "work")
    else:
        folder = open_folder(Path(path).absolute())  # Tune and the workers need to find it too
        check_writable(folder.path)
    with readable(folder):
        spec = spec_of(folder)
        if not folder.is_spec_unchanged():
            remedy = f"restore it, or keep it elsewhere and type: scalestudy run SPEC --extend {folder.address}"
            raise RequestError(f"DIR: {folder.place_of(folder.spec_file)}: was edited since the study began", remedy)
        plan, history = folder.read_plan(), _history(folder)
    return Opened(spec=spec, plan=plan, folder=folder, study_id=folder.study_id, history=history, state="resumed")


def open_extended(spec: StudySpec, path: str | Path) -> Opened:
    """A study that gets more points, seeds or samples. Raises RequestError where what has run would change."""
    before = open_resumed(path)
    plan = make_plan(spec)
    _refuse_change(before, spec, plan)
    return Opened(
        spec=spec, plan=plan, folder=before.folder, study_id=before.study_id, history=before.history, state="extended"
    )


def _history(folder: StudyFolder) -> History:
    history = History.of(Journal(folder.journal_folder).entries())
    for record in folder.read_trials():  # normally in the journal too
        if record["trial_id"] not in history.ended:
            history.ended[record["trial_id"]] = record
            history.unjournalled.append(record)
    return history


def _refuse_change(before: Opened, spec: StudySpec, plan: Plan) -> None:
    where = f"--extend: {before.folder.address}"
    if spec.name != before.spec.name:
        raise RequestError(f"{where}: is the study {before.spec.name}, not {spec.name}", "give the spec that name")
    if before.plan.factorised and plan.factorised and before.plan.factorised.train_on != plan.factorised.train_on:
        trained_on = before.plan.factorised.train_on
        problem = f"{where}: search.train_on: the trainings so far had num_gpus {trained_on}"
        raise RequestError(f"{problem}, not {plan.factorised.train_on}", f"set search.train_on: {trained_on}")
    if _settled(spec.search) != _settled(before.spec.search):
        remedy = f"leave all but {' and '.join(f'search.{key}' for key in GROW)} as it was"
        raise RequestError(f"{where}: search: is another one", remedy)
    if plan.to_suggest and any(getattr(spec, part) != getattr(before.spec, part) for part in SUGGESTED_FROM):
        remedy = "leave all but search.samples as it was: the search goes on in the space that it knows"
        raise RequestError(f"{where}: {', '.join(SUGGESTED_FROM)}: one of them is another one", remedy)
    kept = plan.with_trials(before.history.suggested.values()).by_id().keys()
    gone = [trial for trial_id, trial in before.trials.items() if trial_id in _begun(before) - kept]
    if gone:
        names = ", ".join(trial.run_name for trial in gone[:3]) + (" …" if len(gone) > 3 else "")
        remedy = "keep every value that has run, and only add to them; for another training, run a new study"
        raise RequestError(f"{where}: {len(gone)} of the trials that have run are not in the spec ({names})", remedy)


def _settled(search: Search) -> Search:
    """What of a search must stay as it is; train_on counts as the plan has resolved it."""
    return search.model_copy(update=dict.fromkeys((*GROW, "train_on")))


def _begun(opened: Opened) -> set[str]:
    return opened.history.ended.keys() | opened.history.open.keys()
