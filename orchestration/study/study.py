"""Stages 1 to 9, put together: `run_study` takes a spec to a report, `resume_study` a folder."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.orchestration.base.environment import Output, prepare_environment
from scalestudy.orchestration.base.errors import RefusedError, UnreachableError
from scalestudy.orchestration.cluster import checks, connection
from scalestudy.orchestration.cluster.checks import check_versions
from scalestudy.orchestration.storage import mirror
from scalestudy.orchestration.storage.lock import StudyLock, lock_of
from scalestudy.orchestration.study.folders import lock_study
from scalestudy.orchestration.study.opening import Opened, open_extended, open_new, open_resumed
from scalestudy.orchestration.study.ready import (
    check_callables,
    check_configs,
    check_data,
    check_exact,
    known_trials,
    logical_cpus,
    read_spec,
)
from scalestudy.orchestration.study.running import StudyResult, StudyRun, ViewFactory
from scalestudy.orchestration.tracking.server import TrackingAddress, check_reachable, resolve_address, same_address

__all__ = ["StudyResult", "ViewFactory", "resume_study", "run_study"]


def run_study(
    source: str | Path,
    overrides: Sequence[str] = (),
    *,
    address: str | None = None,
    out: str | Path | None = None,
    extend: str | Path | None = None,
    view: ViewFactory | None = None,
) -> StudyResult:
    """Runs a study and writes its report.

    Args:
        source: a spec file, or the name of a study of the catalogue.
        overrides: `key.path=value`, each put in place of what the file says.
        address: of the Ray cluster; see `cluster.connect`.
        out: the study's folder, or its URI; by default a new one in the spec's `storage`.
        extend: the folder, or the URI, of a study that has run, to which the spec adds points, seeds or samples.
        view: makes what shows the progress; by default nothing is shown.

    Returns:
        Where the results lie, and how the study ended. Trials that fail don't raise.

    Raises:
        SpecError: the spec is wrong.
        StudyError: data, cluster, storage or tracking store are not there; nothing was written.
    """
    prepare_environment()
    spec = read_spec(source, overrides)
    with ExitStack() as held:
        if extend is None:
            return _run(open_new(spec, out), held, address, view)
        lock = held.enter_context(lock_study(extend))
        return _run(open_extended(spec, extend), held, address, view, lock)


def resume_study(folder: str | Path, *, address: str | None = None, view: ViewFactory | None = None) -> StudyResult:
    """Goes on with a study that was interrupted, however: what has ended is not run again, and nothing is lost.

    Args:
        folder: the study's, or its URI.
        address: as for `run_study`.
        view: as for `run_study`.

    Returns, and raises: as `run_study`; RequestError for a folder that is not a study's, whose spec was edited, or that
    another process runs.
    """
    prepare_environment()
    with ExitStack() as held:
        lock = held.enter_context(lock_study(folder))
        return _run(open_resumed(folder), held, address, view, lock)


def _run(
    opened: Opened, held: ExitStack, address: str | None, view: ViewFactory | None, lock: StudyLock | None = None
) -> StudyResult:
    """One run of a study. lock: of its folder; None: it has no folder yet."""
    spec, plan = opened.spec, opened.plan
    data_root = check_data(spec)
    check_callables(spec)
    check_configs(known_trials(spec, plan), data_root)
    if opened.state != "resumed":
        check_exact(spec, plan, data_root)
    tracking = resolve_address(spec.tracking.uri)
    if opened.state != "started":
        tracking = same_address(opened.folder.address_file, tracking)
    output = held.enter_context(Output())
    _check_tracking(tracking, spool=spec.tracking.offline == "spool")
    cluster = connection.connect(address, num_cpus=logical_cpus(plan, spec))
    held.callback(cluster.disconnect)
    if not cluster.started_here:
        check_versions(cluster.nodes)
    run = StudyRun(opened, tracking, cluster, data_root)
    if opened.state != "started":
        _check_nodes(opened.folder, cluster)
    if opened.folder.mirror:  # which of two has a name first, only the lock can tell
        lock = lock or held.enter_context(lock_of(opened.folder))
    made = opened.write()
    try:
        lock = lock or held.enter_context(lock_of(opened.folder))
        if opened.state == "started":
            _check_nodes(opened.folder, cluster)
            same_address(opened.folder.address_file, tracking)
            opened.folder.share(opened.folder.address_file)
    except BaseException:
        opened.discard(made)
        raise
    return run.execute(output, view, lock)


def _check_nodes(folder: StudyFolder, cluster: connection.Cluster) -> None:
    """Raises UnreachableError where the study's storage is out of a node's reach."""
    if folder.mirror:
        mirror.check_nodes(folder.address, cluster)
    else:
        checks.check_shared_storage(folder.path, cluster.nodes)


def _check_tracking(tracking: TrackingAddress, *, spool: bool) -> None:
    """Raises UnreachableError where nothing can be tracked, unless the spec says that it may be sent later."""
    try:
        check_reachable(tracking)
    except RefusedError:
        raise
    except UnreachableError:
        if not spool:
            raise
