"""Stage 5, training loop: the hook that writes a training's checkpoints, and lets it go on from the last one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from training.checkpoint.byte_store import ByteStore
from training.checkpoint.departure import Departure
from training.checkpoint.manifest import SHARED, WORDS, Manifest, PartSummary, part_name
from training.checkpoint.packing import pack
from training.checkpoint.storage import (
    Checkpoint,
    forget_newer,
    forget_old,
    latest,
    open_checkpoint,
    write_manifest,
    write_part,
)
from training.checkpoint.trial_state import own_state, picked_of, restore, shared_state
from training.config import TrainConfig
from training.distributed import Worker, gather_rows
from training.hooks import Hook
from training.probe import Picked
from training.records import EpochRecord
from training.trial import Trial

FREE_TO_CHANGE = ("data_root", "warm_up_steps", "shards")
"""Fields of a config that change no result but by rounding; `epochs` too, where the rate does not look ahead."""
NONE = -1.0  # in place of a checkpoint's number, or of a part's size


def identity_of(config: TrainConfig) -> str:
    """What two trainings must have in common for one to go on from the other's checkpoint, as one readable line."""
    free = {*FREE_TO_CHANGE, *(["epochs"] if config.schedule == "constant" else [])}
    held = {name: value for name, value in config.to_dict().items() if name not in free}
    return json.dumps(held, sort_keys=True, default=repr)


class Checkpoints(Hook):
    """Writes a checkpoint every so many epochs, and steps; keeps the last two.

    Call `find` on all ranks, then give the hook, and what `find` returned, to `train`. A checkpoint that can't be
    written (the disk is full, say) is told by `say` and the training goes on; one that is damaged is told and the one
    before is taken. After the last epoch none is written: there is nothing to go on with.

    Those that may leave write one, and end the training, as soon as `Trial.should_leave` says so on rank 0: all ranks
    after the same step, or the same epoch.
    """

    def __init__(
        self,
        store: ByteStore,
        *,
        every_epochs: int = 1,
        every_steps: int = 0,
        may_leave: bool = False,
        say: Callable[[str], None] = lambda message: None,
    ) -> None:
        """`every_epochs`, `every_steps`: 0: never; `may_leave`: on all ranks or on none; `say`: takes one line a
        message, on rank 0."""
        self._store, self._every_epochs, self._every_steps, self._say = store, every_epochs, every_steps, say
        self._found: Checkpoint | None = None
        self._shared: Mapping[str, Any] = {}
        self._number = 0
        self._due = False
        self._departure = Departure() if may_leave else None

    @property
    def resumed(self) -> bool:
        """Whether the training goes on from a checkpoint."""
        return self._found is not None

    def find(self, config: TrainConfig, worker: Worker) -> Picked | None:
        """Look for the last checkpoint that is whole; what the training had picked by itself, if the world is the same.

        Raises ValueError, on every rank, if the newest is of another training, or the store fails.
        """
        number = self._agree_on_number(config, worker)
        self._number = max(number, 0)
        if number == NONE:
            return None
        self._found = self._found or open_checkpoint(self._store, number)
        self._shared = self._found.read(SHARED)
        self._check_epochs(config)
        same_world = self._found.manifest.world_size == worker.world_size
        return picked_of(self._shared, config, worker.world_size) if same_world else None

    def train_starts(self, trial: Trial) -> None:
        """Go on where the checkpoint was written."""
        if self._found is None:
            return
        manifest = self._found.manifest
        parts = [self._found.read(part_name(rank)) for rank in range(manifest.world_size)]
        restore(trial, self._shared, parts, manifest.epoch)
        self._shared = {}

    def step_ends(self, trial: Trial, step: int) -> None:
        """Once in so many steps, or as soon after as the strategy has equal parameters on all ranks."""
        done = trial.progress.tally.steps
        self._due = self._due or bool(self._every_steps and done % self._every_steps == 0)
        if not trial.sync.at_rest or done >= trial.epoch_steps:
            return
        trial.leaving = self._leaves(trial)
        if self._due or trial.leaving:
            with trial.untimed():
                self._write(trial)

    def epoch_ends(self, trial: Trial, record: EpochRecord) -> None:
        """Once in so many epochs."""
        if record.epoch == trial.config.epochs:
            return
        trial.leaving = self._leaves(trial)
        self._due = self._due or bool(self._every_epochs and record.epoch % self._every_epochs == 0)
        if self._due or trial.leaving:
            self._write(trial)

    def _leaves(self, trial: Trial) -> bool:
        return self._departure is not None and self._departure.is_now(trial)

    def _agree_on_number(self, config: TrainConfig, worker: Worker) -> int:
        """Rank 0 looks; the others hear its answer, and meet its error by looking themselves."""
        if worker.rank == 0:
            try:
                number = self._search(config)
            except Exception as error:
                gather_rows([NONE - 1], worker)
                raise _store_error(error) from error
            rows = gather_rows([number], worker)
        else:
            rows = gather_rows([NONE], worker)
            if rows[0][0] < NONE:
                self._meet_the_same_error(config)
        return int(rows[0][0])

    def _meet_the_same_error(self, config: TrainConfig) -> None:
        try:
            latest(self._store, identity_of(config))
        except Exception as error:
            raise _store_error(error) from error
        raise ValueError("checkpoints: rank 0 can't use the store; see what it says")

    def _check_epochs(self, config: TrainConfig) -> None:
        done = len(self._shared["records"])
        if done > config.epochs:
            raise ValueError(f"epochs: {config.epochs} are fewer than the {done} that the checkpoint has; ask for at "
                             f"least {done}, or give an empty folder")  # fmt: skip

    def _search(self, config: TrainConfig) -> float:
        search = latest(self._store, identity_of(config), hold=(SHARED, part_name(0)))
        for message in search.messages:
            self._say(message)
        self._found = search.found
        number = search.found.manifest.number if search.found else None
        forget_newer(self._store, number)
        return NONE if number is None else number

    def _write(self, trial: Trial) -> None:
        """All ranks write their parts; rank 0 the manifest once it knows that all are there."""
        self._due = False
        self._number += 1
        rank = trial.worker.rank
        own = self._write_part(part_name(rank), own_state(trial))
        shared = self._write_part(SHARED, shared_state(trial)) if rank == 0 else None
        rows = gather_rows(_row(own), trial.worker)
        if rank == 0:
            self._close(trial, rows, shared)

    def _write_part(self, name: str, state: Mapping[str, Any]) -> PartSummary | None:
        try:
            return write_part(self._store, self._number, name, pack(state))
        except OSError as error:
            self._say(f"checkpoint {self._number}: {name} can't be written ({error.strerror or error})")
            return None

    def _close(self, trial: Trial, rows: Sequence[Sequence[float]], shared: PartSummary | None) -> None:
        if shared is None or any(row[0] == NONE for row in rows):
            self._say(f"checkpoint {self._number} is not kept: not all of its parts could be written; the training "
                      "goes on")  # fmt: skip
            return
        parts = [PartSummary.from_row(part_name(rank), row) for rank, row in enumerate(rows)]
        manifest = Manifest(
            number=self._number,
            world_size=trial.worker.world_size,
            identity=identity_of(trial.config),
            epoch=trial.progress.epoch,
            step=trial.progress.tally.steps,
            parts=(shared, *parts),
        )
        try:
            write_manifest(self._store, manifest)
            forget_old(self._store)
        except OSError as error:
            self._say(f"checkpoint {self._number}: the store fails ({error.strerror or error}); the training goes on")


def _store_error(error: Exception) -> Exception:
    """What a user can act on, for an error of the store itself."""
    if not isinstance(error, OSError):
        return error
    place = f"{error.filename}: " if error.filename else ""
    return ValueError(f"checkpoints: {place}{error.strerror or error}; give a folder that can be read and written")


def _row(summary: PartSummary | None) -> tuple[float, ...]:
    """As `PartSummary.to_row`, for a part that could not be written too."""
    return (NONE, *([0.0] * WORDS)) if summary is None else summary.to_row()
