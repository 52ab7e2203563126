"""What earlier studies timed, for `plan`: which of their trials count, and where they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from scalestudy.experiments.plan.estimate import Timing, way_of
from scalestudy.experiments.plan.plan import TrialPlan
from scalestudy.experiments.spec.addresses import is_uri
from scalestudy.experiments.spec.study_spec import StudySpec
from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.orchestration.base.errors import UnreachableError
from scalestudy.orchestration.commands.studies import began, checked_place, folders_in, places
from scalestudy.orchestration.study.fingerprint import fingerprint_of
from scalestudy.orchestration.study.opening import storage_of
from scalestudy.orchestration.study.ready import data_root
from scalestudy.training.fingerprint import Fingerprint


def earlier_timings(
    spec: StudySpec, trials: Iterable[TrialPlan], device: str, storage: str | None = None, accelerator: str = ""
) -> list[list[Timing]]:
    """Return the timings of earlier studies that count for these trials, those of the last study first.

    Workload, way of training, device and threads must be the same, and so must be the type of GPUs, the user's code and
    the user's data where both are known.

    Args:
        spec: of the study. Its storage and `places()` are searched. Broken folders are skipped, and so is the spec's
            bucket if it is out of reach: `run` will report that.
        trials: of its plan.
        device: that the workers will get, cpu or cuda.
        storage: one more place, a folder or URI. Raises what `list` raises for it.
        accelerator: the type of the GPUs here; "": unknown.
    """
    trials = list(trials)
    ways = {way_of(trial.workload, trial.train) for trial in trials}
    given = [] if storage is None else folders_in(checked_place(storage))
    found: dict[str, StudyFolder] = {}
    for folder in [*given, *_folders_of(storage_of(spec)), *(each for place in places() for each in folders_in(place))]:
        found.setdefault(folder.address if folder.mirror else str(folder.path.resolve()), folder)
    timings = []
    fingerprint: Fingerprint | None = None  # of now; None: no record needed it yet, and to read data takes seconds
    for folder in sorted(found.values(), key=began, reverse=True):
        with suppress(OSError, ValueError, KeyError, TypeError):
            records = [
                record
                for record in folder.measured_trials()
                if way_of(record["workload"], record["train"]) in ways
                and ran_on(record, device, spec.resources.cpus_per_worker, accelerator)
            ]
            if fingerprint is None and any("fingerprint" in record for record in records):
                fingerprint = fingerprint_of(spec, trials, data_root())
            alike = [record for record in records if fingerprint is None or made_alike(record, fingerprint)]
            timings.append([each for record in alike if (each := Timing.of(record, _shown(folder)))])
    return timings


def made_alike(record: Mapping[str, Any], fingerprint: Fingerprint) -> bool:
    """Whether a trial's code and data are those of now, as far as both are known."""
    now = fingerprint.digests(record["workload"], record["train"])
    told: Mapping[str, Sequence[str]] = record.get("fingerprint") or {}
    return all(list(digests) == [now[name]] for name, digests in told.items() if name in now)


def ran_on(record: Mapping[str, Any], device: str, threads: int, accelerator: str = "") -> bool:
    """Whether a trial's workers had such devices and, on a CPU, so many threads; true if the record does not say."""
    world = record.get("world") or {}
    if (known := world.get("device")) is not None and known != device:
        return False
    if accelerator and (known := world.get("accelerator")) and known != accelerator:
        return False
    told = {worker.get("threads") for worker in world.get("workers") or ()} - {None}
    return device != "cpu" or not told or told == {threads}


def _folders_of(storage: str) -> list[StudyFolder]:
    if not is_uri(storage):
        return folders_in(storage)
    with suppress(UnreachableError):
        return folders_in(storage)
    return []


def _shown(folder: StudyFolder) -> str:
    if folder.mirror:
        return folder.address
    with suppress(ValueError):
        return str(folder.path.absolute().relative_to(Path.cwd()))
    return str(folder.path)
