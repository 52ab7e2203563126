"""The hook that writes checkpoints and resumes from them, and how all ranks agree to leave a training."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from scalestudy.training.checkpoint.byte_store import ByteStore
from scalestudy.training.checkpoint.files import (
    SHARED,
    Checkpoint,
    Manifest,
    PartSummary,
    forget_newer,
    forget_old,
    latest,
    open_checkpoint,
    part_name,
    write_manifest,
    write_part,
)
from scalestudy.training.checkpoint.trial_state import choices_of, own_state, restore, shared_state
from scalestudy.training.config import TrainConfig
from scalestudy.training.distributed import Worker, broadcast_from_first, gather_texts, synchronise_device
from scalestudy.training.exceptions import InputError, StoreError
from scalestudy.training.loop.hooks import Hook
from scalestudy.training.loop.pace import Pace
from scalestudy.training.loop.probe import Choices
from scalestudy.training.loop.trial import Trial
from scalestudy.training.records import EpochRecord
from scalestudy.training.state import pack

LOOK_SECONDS = 0.5  # from one check of `should_preempt` by rank 0 to the next
FREE_TO_CHANGE = ("data_root", "warm_up_steps", "shards", "loader", "checkpoint_every")
"""Fields of a config that change results only by rounding; the length too, if the rate does not depend on it."""


class Checkpoints(Hook):
    """A checkpoint each `every_epochs` periods and each `every_steps` steps; the last two are kept.

    Call `find` on all ranks. Then give this hook, and what `find` returned, to `train`. If a checkpoint can't be
    written (the disk is full, say), a message says so and the training goes on. If one is damaged, a message says so
    and the one before it is used. After the last period none is written, since nothing resumes from it.

    Preemptible checkpoints write one, and end the training, soon after `Trial.should_preempt` is true on rank 0: all
    ranks after the same step, or the same evaluation.
    """

    def __init__(
        self,
        store: ByteStore,
        *,
        every_epochs: int = 1,
        every_steps: int = 0,
        preemptible: bool = False,
        say: Callable[[str], None] = lambda message: None,
    ) -> None:
        """Take the options.

        `every_epochs`, `every_steps`: 0: never; `preemptible`: on all ranks or on none; `say`: takes each message, one
        line, on rank 0.
        """
        self._store, self._every_epochs, self._every_steps, self._say = store, every_epochs, every_steps, say
        self._found: Checkpoint | None = None
        self._shared: Mapping[str, Any] = {}
        self._number = 0
        self._due = False
        self._preemption = Preemption() if preemptible else None

    @property
    def resumed(self) -> bool:
        """Whether the training resumes from a checkpoint."""
        return self._found is not None

    def find(self, config: TrainConfig, worker: Worker) -> Choices | None:
        """Find the last whole checkpoint; return the training's choices if the world size is unchanged.

        Rank 0 searches, and sends its number to the others. Raises ValueError, on every rank, if the newest checkpoint
        is of another training, or the store fails.
        """
        said = "failed"
        if worker.rank == 0:
            try:
                search = latest(self._store, identity_of(config), hold=(SHARED, part_name(0)))
                for message in search.messages:
                    self._say(message)
                self._found = search.found
                forget_newer(self._store, search.found.manifest.number if search.found else None)
                said = str(search.found.manifest.number) if search.found else "none"
            except Exception as error:
                gather_texts(said, worker)
                raise _store_error(error) from error
        said = gather_texts(said, worker)[0]
        if said == "failed":
            self._meet_the_same_error(config)
        self._number = 0 if said == "none" else int(said)
        if said == "none":
            return None
        self._found = self._found or open_checkpoint(self._store, self._number)
        self._shared = self._found.read(SHARED)
        done = len(self._shared["records"])
        if done * config.period > config.length:
            raise InputError(
                f"{config.unit}: {config.length} are fewer than the {done * config.period} that the checkpoint has",
                f"ask for at least {done * config.period}, or give an empty folder",
            )
        same_world = self._found.manifest.world_size == worker.world_size
        return choices_of(self._shared, config, worker.world_size) if same_world else None

    def train_starts(self, trial: Trial) -> None:
        """Restore the trial from the checkpoint that was found."""
        if self._found is None:
            return
        manifest = self._found.manifest
        parts = [self._found.read(part_name(rank)) for rank in range(manifest.world_size)]
        restore(trial, self._shared, parts, manifest.epoch)
        self._shared = {}
        if manifest.step > trial.period_steps:
            config = trial.config
            raise InputError(
                f"{config.unit}: {config.length} are fewer than the checkpoint has",
                "ask for more, or give an empty folder",
            )

    def step_ends(self, trial: Trial, step: int) -> None:
        """Write one each `every_steps`, or as soon after as the strategy has equal parameters on all ranks."""
        done = trial.progress.tally.steps
        self._due = self._due or bool(self._every_steps and done % self._every_steps == 0)
        if not trial.sync.at_rest or done >= trial.period_steps:
            return
        trial.preempted = self._preemption is not None and self._preemption.is_now(trial)
        if (self._due or trial.preempted) and not trial.look():
            with trial.untimed(), trial.pulse.during("checkpointing"):
                self._write(trial)

    def epoch_ends(self, trial: Trial, record: EpochRecord) -> None:
        """Write one each `every_epochs` periods."""
        if record.epoch == trial.config.evaluations:
            return
        trial.preempted = self._preemption is not None and self._preemption.is_now(trial)
        self._due = self._due or bool(self._every_epochs and record.epoch % self._every_epochs == 0)
        if self._due or trial.preempted:
            with trial.pulse.during("checkpointing"):
                self._write(trial)

    def _meet_the_same_error(self, config: TrainConfig) -> None:
        """Look on the other ranks as well, to raise what rank 0 raises."""
        try:
            latest(self._store, identity_of(config))
        except Exception as error:
            raise _store_error(error) from error
        raise StoreError("checkpoints: rank 0 can't use the store", "see the message of rank 0")

    def _write(self, trial: Trial) -> None:
        """Write this rank's part. Rank 0 writes the manifest once it knows that all parts are written."""
        self._due = False
        self._number += 1
        rank = trial.worker.rank
        own = self._write_part(part_name(rank), own_state(trial))
        shared = self._write_part(SHARED, shared_state(trial)) if rank == 0 else None
        told = gather_texts(json.dumps(own and dataclasses.asdict(own)), trial.worker)
        if rank != 0:
            return
        parts = [PartSummary(**part) for part in map(json.loads, told) if part]
        if shared is None or len(parts) < trial.worker.world_size:
            self._say(
                f"checkpoint {self._number} is not kept: not all of its parts could be written; the training goes on"
            )
            return
        manifest = Manifest(
            number=self._number,
            world_size=trial.worker.world_size,
            identity=identity_of(trial.config),
            epoch=trial.progress.period,
            step=trial.progress.tally.steps,
            parts=(shared, *parts),
        )
        try:
            write_manifest(self._store, manifest)
            forget_old(self._store)
        except OSError as error:
            self._say(f"checkpoint {self._number}: the store fails ({error.strerror or error}); the training goes on")

    def _write_part(self, name: str, state: Mapping[str, Any]) -> PartSummary | None:
        """Write one part. If the store fails, say so and return None."""
        try:
            return write_part(self._store, self._number, name, pack(state))
        except OSError as error:
            self._say(f"checkpoint {self._number}: {name} can't be written ({error.strerror or error})")
            return None


def identity_of(config: TrainConfig) -> str:
    """Return, as one readable line, what two trainings must share for one to resume from the other's checkpoint."""
    free = set(FREE_TO_CHANGE)
    may_go_on = config.schedule.name == "constant" and config.warmup_share is None
    if may_go_on and (config.unit == "epochs" or (config.unit == "steps" and config.eval_every)):
        free.add(config.unit)  # evaluations stay where they are, unless the length is in tokens
    held = {name: value for name, value in config.to_dict().items() if name not in free}
    return json.dumps(held, sort_keys=True, default=repr)


def _store_error(error: Exception) -> Exception:
    """Return a StoreError for an error of the store itself; other errors as they are."""
    if not isinstance(error, OSError):
        return error
    place = f"{error.filename}: " if error.filename else ""
    return StoreError(f"checkpoints: {place}{error.strerror or error}", "give a folder that can be read and written")


class Preemption:
    """The decision of rank 0 whether all ranks leave now, which it broadcasts in two numbers.

    NaN, by which a stop is agreed on (`Trial.should_stop`), can't carry it: the step that carries NaN leaves generators
    and buffers in a state that fits no checkpoint. The ranks meet once or twice a second. A single rank checks each
    time and broadcasts nothing.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Take the clock: seconds, read on rank 0 alone."""
        self._pace = Pace(LOOK_SECONDS, clock)

    def is_now(self, trial: Trial) -> bool:
        """Return whether all ranks leave. Call it at the same moments of the training on all ranks."""
        if trial.worker.world_size == 1:
            return trial.should_preempt()
        if not self._pace.is_due():
            return False
        synchronise_device(trial.worker.device)  # so that the pace follows the device
        decision = [int(trial.should_preempt()), self._pace.measured()] if trial.worker.rank == 0 else [0, 0]
        shared = torch.tensor(decision, dtype=torch.int64, device=trial.worker.device)
        broadcast_from_first([shared], trial.worker)
        leave, between = shared.tolist()
        self._pace.looked(between)
        return bool(leave)
