"""`run_study` takes a spec to a report, `resume_study` a folder."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from scalestudy.orchestration.base.environment import left_as_found, prepare_environment
from scalestudy.orchestration.base.places import check_machine, outside_job_folder
from scalestudy.orchestration.base.waiting import Say, say_nothing
from scalestudy.orchestration.groups.events import Origin
from scalestudy.orchestration.storage.lock import StudyLock
from scalestudy.orchestration.study.folders import Source, lock_study, read_spec, read_trained_spec
from scalestudy.orchestration.study.opening import (
    PreparedStudy,
    claimed,
    extended,
    open_extended,
    open_new,
    open_resumed,
    with_failed,
)
from scalestudy.orchestration.study.origin import origin_of
from scalestudy.orchestration.study.ready import check_storage, get_ready
from scalestudy.orchestration.study.result import StudyResult
from scalestudy.orchestration.tracking.server import same_address

if TYPE_CHECKING:
    from scalestudy.orchestration.study.running import ViewFactory

__all__ = ["StudyResult", "resume_study", "run_study"]


@left_as_found()
def run_study(
    source: Source,
    overrides: Sequence[str] = (),
    *,
    address: str | None = None,
    out: str | Path | None = None,
    extend: str | Path | None = None,
    view: ViewFactory | None = None,
    say: Say = say_nothing,
    rehearsal: bool = True,
) -> StudyResult:
    """Run a study and write its report.

    Args:
        source: a spec file, or the name of a study of the catalogue; or the spec itself, as a dict with the content of
            a file, or as a `StudySpec`. In a dict, model, data, loss, metric and task may be importable callables.
        overrides: `key.path=value`, each replacing a value of the file.
        address: of the Ray cluster; see `cluster.connect`.
        out: the study's folder, or its URI; by default a new one in the spec's `storage`.
        extend: the folder, or the URI, of a study that has run, to which the spec adds points, seeds, samples or
            budget.
        view: makes what shows the progress; by default nothing is shown.
        say: takes what comes next, before each wait until there is progress to show.
        rehearsal: whether a study of your code first makes one step on the CPU here, which finds mistakes in seconds.

    Returns:
        Where the results are, and how the study ended. Failed trials do not raise.

    Raises:
        SpecError: the spec is wrong.
        StudyError: data, cluster, storage or tracking store are missing; nothing was written.
    """
    began = time.monotonic()
    prepare_environment()
    check_machine()
    spec = read_trained_spec(source, overrides)
    with ExitStack() as stack:
        if extend is None:
            result = _run(open_new(spec, out), origin_of(source), None, stack, address, view, say, rehearsal)
        else:
            lock = stack.enter_context(lock_study(extend))
            result = _run(open_extended(spec, extend), origin_of(source), lock, stack, address, view, say, rehearsal)
    return replace(result, wall_seconds=time.monotonic() - began)


@left_as_found()
def resume_study(
    folder: str | Path,
    *,
    retry_failed: bool = False,
    only: str | None = None,
    overrides: Sequence[str] = (),
    address: str | None = None,
    view: ViewFactory | None = None,
    say: Say = say_nothing,
    rehearsal: bool = True,
) -> StudyResult:
    """Go on with a study, however it was interrupted: nothing is lost, and no ended trial runs again.

    Args:
        folder: the study's, or its URI.
        retry_failed: whether failed trials run again, from their beginning.
        only: of these, those that failed by this cause, the kind of their error.
        overrides: `key.path=value`, each replacing a value of the study's spec: of an adaptive search, a larger budget.
        address: as for `run_study`.
        view: as for `run_study`.
        say: as for `run_study`.
        rehearsal: as for `run_study`; only if nothing has trained yet, or your code or data have changed since.

    Returns, and raises: as `run_study`; RequestError for a folder that is not a study's, whose spec was edited, or that
    another process runs.
    """
    began = time.monotonic()
    prepare_environment()
    check_machine()
    with ExitStack() as stack:
        lock = stack.enter_context(lock_study(folder))
        study = open_resumed(folder)
        if overrides:
            study = extended(study, read_spec(study.spec, overrides), "DIR")
        if retry_failed:
            study = with_failed(study, only)
        before = study.history.origin
        origin = replace(origin_of(), source=before.source if before else str(folder))
        result = _run(study, origin, lock, stack, address, view, say, rehearsal)
    return replace(result, wall_seconds=time.monotonic() - began)


def _run(
    study: PreparedStudy,
    origin: Origin,
    lock: StudyLock | None,
    stack: ExitStack,
    address: str | None,
    view: ViewFactory | None,
    say: Say,
    rehearsal: bool,
) -> StudyResult:
    """Run a study once. lock: of its folder; None: a new study, whose folder does not exist yet."""
    ready = get_ready(study, address, stack, say, rehearsal=rehearsal)
    stack.enter_context(outside_job_folder())
    from scalestudy.orchestration.study.running import RunningStudy  # it imports Ray Train

    made: list[Path] = []
    if lock is None:  # of two that chose one name, the lock tells the first, so it comes before all that is written
        study, lock, made = claimed(study, stack)
        ready = replace(ready, study=study)
    folder = study.folder
    made = study.write(made)
    try:
        if study.state == "started":
            check_storage(folder, ready.cluster)
            same_address(folder, ready.tracking)
            folder.share(folder.address_file)
        running = RunningStudy(ready, lock, view, origin)
    except BaseException:
        study.discard(made)
        raise
    return running.run()
