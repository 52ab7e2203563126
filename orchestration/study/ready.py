"""Everything that may refuse a study, checked once before it starts: each refusal is one clear error."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from scalestudy.experiments.plan.plan import Plan, TrialPlan, corner_trials
from scalestudy.experiments.spec.checks import A_GRID
from scalestudy.experiments.spec.study_spec import StudySpec, values_in
from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.orchestration.base.environment import Output
from scalestudy.orchestration.base.errors import RefusedError, RequestError, UnreachableError, request_error
from scalestudy.orchestration.base.waiting import Say, say_nothing
from scalestudy.orchestration.cluster import connection, node_checks
from scalestudy.orchestration.cluster import nodes as nodes_module
from scalestudy.orchestration.cluster.node_checks import check_versions
from scalestudy.orchestration.groups.failures import describe
from scalestudy.orchestration.groups.gpus_on_cpu import training_device
from scalestudy.orchestration.storage import mirror
from scalestudy.orchestration.study.callables import named_callables
from scalestudy.orchestration.study.concurrency import Placed, sharing_rule, spare_cpus
from scalestudy.orchestration.study.fingerprint import fingerprint_of
from scalestudy.orchestration.study.loop_checks import check_loop
from scalestudy.orchestration.study.opening import PreparedStudy
from scalestudy.orchestration.study.rehearsal import Rehearsal, blamed, is_known_to_fit, rehearse_study
from scalestudy.orchestration.study.trials import train_config
from scalestudy.orchestration.tracking.server import TrackingAddress, check_reachable, resolve_address, same_address
from scalestudy.training.fingerprint import Fingerprint

logger = logging.getLogger(__name__)

NOT_REHEARSED = Rehearsal(steps={}, left_out={}, seconds=0.0)


@dataclass(frozen=True, kw_only=True)
class Ready:
    """A study that passed every check, and what it runs with."""

    study: PreparedStudy
    data_root: Path
    tracking: TrackingAddress
    cluster: connection.Cluster
    placed: Placed
    output: Output  # takes all that this process prints, and waits for the study's folder
    fingerprint: Fingerprint = field(default_factory=Fingerprint)  # of the user's code and data
    changed: Sequence[str] = ()  # what of these has changed since the study has trained, in words
    fresh_workers: str = ""  # why every trial gets fresh workers; "": groups stay warm


def get_ready(
    study: PreparedStudy, address: str | None, stack: ExitStack, say: Say = say_nothing, *, rehearsal: bool = True
) -> Ready:
    """Run every check that may refuse a study, the cheapest first. It writes nothing for a new study.

    Args:
        study: new, resumed or extended.
        address: of the Ray cluster; see `cluster.connect`.
        stack: takes the redirected output and the cluster, which the study needs to its end.
        say: takes what comes next, before each wait.
        rehearsal: whether to rehearse the study.

    Raises:
        RequestError: data, callables, a trial, a rehearsal, the tracking address or the cluster's size refuse it.
        UnreachableError: cluster, storage or tracking store do not answer.
    """
    spec, plan = study.spec, study.plan
    data_root = check_data(spec)
    check_callables(spec)
    trials = known_trials(spec, plan)
    check_configs(trials, data_root)
    fingerprint: Fingerprint | None = None
    if study.state == "resumed" and (study.history.ended or study.history.open):
        fingerprint = fingerprint_of(spec, trials, data_root, say)
    is_new = fingerprint is None or bool(study.changed_since(fingerprint))
    rehearsed = _rehearse(study, data_root, say) if rehearsal and is_new else NOT_REHEARSED
    if is_new and spec.needs_exact:
        say(f"a check that {spec.workload.model} trains the same at every num_gpus")
        check_exact(spec, trials[0], data_root)
    tracking = resolve_address(spec.tracking.uri)
    if study.state != "started":
        tracking = same_address(study.folder, tracking)
    output = stack.enter_context(Output())
    say(f"MLflow to answer at {tracking.shown}")
    try:
        check_reachable(tracking)
    except RefusedError:
        raise  # nothing can be sent later either
    except UnreachableError:
        if spec.tracking.offline != "spool":
            raise
    if fingerprint is None:
        fingerprint = fingerprint_of(spec, trials, data_root, say, rehearsed.data)
    say("Ray to start on this machine" if address == "local" else f"the Ray cluster {address or 'of this machine'}")
    cluster = connection.connect(address, num_cpus=logical_cpus(plan, spec))
    stack.callback(cluster.disconnect)
    if not cluster.started_here:
        check_versions(cluster.nodes)
    device, nodes = nodes_module.place(
        spec.resources, plan.sizes, cluster.nodes, cluster.growth, spare_cpus=spare_cpus(spec.workload)
    )
    node_checks.check_devices(nodes, training_device(device), values_in(spec, "train.precision"))
    if study.state != "started":
        check_storage(study.folder, cluster)
    return Ready(
        study=study,
        data_root=data_root,
        tracking=tracking,
        cluster=cluster,
        placed=Placed(device=device, nodes=tuple(nodes), rule=sharing_rule(spec, device)),
        output=output,
        fingerprint=fingerprint,
        changed=study.changed_since(fingerprint),
        fresh_workers=study.history.fresh_workers if rehearsed.fresh_workers is None else rehearsed.fresh_workers,
    )


def check_storage(folder: StudyFolder, cluster: connection.Cluster) -> None:
    """Check that every node can reach the study's storage. Raises UnreachableError."""
    if folder.mirror:
        mirror.check_nodes(folder.address, cluster)
    else:
        node_checks.check_shared_storage(folder.path, cluster.nodes)


def data_root() -> Path:
    """Return the folder of data sets: `$SCALESTUDY_DATA`, or the default one."""
    from scalestudy.training.data.downloads import default_root

    return default_root().absolute()


def check_data(spec: StudySpec) -> Path:
    """Return the folder of data sets. Raises RequestError if the study's data set is not in it.

    A Ray Train loop reads its data itself.
    """
    from scalestudy.training.data import require
    from scalestudy.training.data.downloads import DataError

    root = data_root()
    if spec.workload.loop:
        return root
    try:
        require(spec.workload.data, root)
    except (DataError, ValueError) as error:
        raise request_error(error, f"scalestudy data fetch {spec.workload.data}") from error
    return root


def check_callables(spec: StudySpec) -> None:
    """Check that everything that the spec names as `package.module:callable` exists, and that a loop can be called.

    Raises RequestError.
    """
    from scalestudy.training.registry import resolve

    for key, name, table in named_callables(spec):
        try:
            resolve(name, table)
        except ValueError as error:
            raise request_error(error, "correct the name", key) from error
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # the user's module may raise anything while it is imported
            raise RequestError(f"{key}: {name}: {describe(error)}", "correct the module") from error
    check_loop(spec)


def known_trials(spec: StudySpec, plan: Plan) -> Sequence[TrialPlan]:
    """Return the plan's trials; for a search, which makes them later, those of `corner_trials`."""
    return corner_trials(spec) if plan.to_suggest else plan.trials


def to_rehearse(study: PreparedStudy) -> list[TrialPlan]:
    """Return the trials whose kinds are rehearsed: those that are to run."""
    ended = study.history.ended.keys() - study.reopened
    return [trial for trial in known_trials(study.spec, study.plan) if trial.trial_id not in ended]


def _rehearse(study: PreparedStudy, data_root: Path, say: Say) -> Rehearsal:
    """Rehearse a study.

    Raises RequestError for a mistake; logs what was not rehearsed, and what may fail, which standard error shows.
    """
    trials = to_rehearse(study)
    if study.spec.workload.loop or is_known_to_fit(trials):
        return NOT_REHEARSED
    say(f"a rehearsal: the first steps of {trials[0].workload['model']} on the CPU")
    rehearsed = rehearse_study(study.spec, study.plan, trials, data_root)
    for line in (*rehearsed.left_out_words(), *rehearsed.doubts):
        logger.warning("rehearsal: %s", line)
    return rehearsed


def check_configs(trials: Iterable[TrialPlan], data_root: Path) -> None:
    """Check that the training loop would refuse no trial. Raises RequestError."""
    for trial in trials:
        try:
            train_config(trial, data_root).weights(trial.num_gpus)
        except ValueError as error:
            raise request_error(error, "correct the spec", trial.name) from error


def check_exact(spec: StudySpec, trial: TrialPlan, data_root: Path) -> None:
    """Check that the model trains the same at every num_gpus. Raises RequestError.

    The name of a user's model does not show it. So the model is built and tried here, on a few examples. trial: one of
    `known_trials`; those of an adaptive search have the same model.
    """
    from scalestudy.training.loop.exactness import why_inexact

    config = train_config(trial, data_root)
    try:
        why = why_inexact(config)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the user's callables may raise anything
        raise blamed(error, config, f"correct it, or {A_GRID}") from error
    if why:
        raise RequestError(f"workload.model: {spec.workload.model}: {why.what}", f"{why.remedy}; or {A_GRID}")


def logical_cpus(plan: Plan, spec: StudySpec) -> int | None:
    """Return the CPUs of a cluster that is started here.

    None: one a core; the spec may allow more workers than cores.
    """
    cores, spare = os.cpu_count() or 1, spare_cpus(spec.workload)
    if not spec.resources.oversubscribe:
        return cores + spare if spare else None
    return max(max(plan.sizes) * spec.resources.cpus_per_worker, cores) + spare
