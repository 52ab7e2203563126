"""What earlier studies timed, for `plan`: which of their trials count, and where they lie."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalestudy.experiments.analysis.measures.records import accelerators_of
from scalestudy.experiments.analysis.measures.units import plural
from scalestudy.experiments.plan.estimate import way_of
from scalestudy.experiments.plan.plan import TrialPlan
from scalestudy.experiments.spec.addresses import is_uri
from scalestudy.experiments.spec.study_spec import StudySpec
from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.orchestration.base.errors import UnreachableError
from scalestudy.orchestration.commands.studies import checked_place, folders_in, places
from scalestudy.orchestration.study.opening import storage_of

NAMED_STUDIES = 3


@dataclass(frozen=True, kw_only=True)
class EarlierTimings:
    """Trials that say how long others will take.

    trials: as `plan.estimate` takes them. studies: they come from. accelerator: the type of their GPUs, where there was
    a choice, or where it is not the planned one. lacking: the planned type, if nothing was timed on it.
    """

    trials: Sequence[Mapping[str, Any]] = ()
    studies: Sequence[str] = ()
    accelerator: str = ""
    lacking: str = ""

    def words(self) -> str | None:
        """What a plan's figures rest on; None: on nothing."""
        if not self.studies:
            return None
        more = len(self.studies) - NAMED_STUDIES
        named = ", ".join(self.studies[:NAMED_STUDIES]) + (f" and {more} more" if more > 0 else "")
        studies = "1 earlier study" if len(self.studies) == 1 else f"{len(self.studies)} earlier studies"
        on = f", those on {self.accelerator}" if self.accelerator else ""
        on += f" as none was on {self.lacking}" if self.lacking else ""
        return f"{plural(len(self.trials), 'trial')} of {studies} ({named}){on}"


def earlier_timings(
    spec: StudySpec, trials: Iterable[TrialPlan], device: str, storage: str | None = None, accelerator: str = ""
) -> EarlierTimings:
    """The timed trials of earlier studies that count for these: same workload, way of training, device and threads.

    Of one type of GPUs, as a study's own are: of `accelerator`, the planned one ("": it is not known), else of the one
    with the most trials. They are looked for in the spec's storage, in `places()` and in `storage`, a folder or URI.
    Broken folders are skipped, and so is the spec's own bucket if it is out of reach: `run` will tell. Raises what
    `list` raises for `storage`.
    """
    ways = {way_of(trial.workload, trial.train) for trial in trials}
    given = [] if storage is None else folders_in(checked_place(storage))
    found: dict[str, StudyFolder] = {}
    for folder in [*given, *_folders_of(storage_of(spec)), *(each for place in places() for each in folders_in(place))]:
        found.setdefault(folder.address if folder.mirror else str(folder.path.resolve()), folder)
    kept: dict[str, list[Mapping[str, Any]]] = {}
    for folder in found.values():
        with suppress(OSError, ValueError, KeyError, TypeError):
            timed: list[Mapping[str, Any]] = [
                trial
                for trial in folder.measured_trials()
                if trial.get("epochs")
                and way_of(trial["workload"], trial["train"]) in ways
                and ran_on(trial, device, spec.resources.cpus_per_worker)
            ]
            if timed:
                kept[_shown(folder)] = timed
    counts = accelerators_of(trial for timed in kept.values() for trial in timed)
    chosen = accelerator if accelerator in counts else max(counts, key=counts.__getitem__, default="")
    lacking = accelerator if chosen != accelerator and chosen else ""
    if len(counts) > 1:
        kept = {name: [trial for trial in timed if chosen in accelerators_of([trial])] for name, timed in kept.items()}
    return EarlierTimings(
        trials=[trial for timed in kept.values() for trial in timed],
        studies=[name for name, timed in kept.items() if timed],
        accelerator=chosen if len(counts) > 1 or lacking else "",
        lacking=lacking,
    )


def ran_on(trial: Mapping[str, Any], device: str, threads: int) -> bool:
    """Whether a trial's workers had such devices and, on a CPU, so many threads; true if it does not say."""
    world = trial.get("world") or {}
    if (known := world.get("device")) is not None and known != device:
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
