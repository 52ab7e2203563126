"""When checkpoints are written; leaving together."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from scalestudy.training.checkpoint.byte_store import ByteStore
from scalestudy.training.checkpoint.files import (
    SHARED,
    WORDS,
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
from scalestudy.training.checkpoint.trial_state import own_state, picked_of, restore, shared_state
from scalestudy.training.config import TrainConfig
from scalestudy.training.distributed import Worker, broadcast_from_first, gather_rows
from scalestudy.training.loop.hooks import Hook
from scalestudy.training.loop.probe import Picked
from scalestudy.training.loop.trial import Trial
from scalestudy.training.records import EpochRecord
from scalestudy.training.state import pack

LOOK_SECONDS = 0.5
MOST_BETWEEN = 64


class Departure:
    """Rank 0's word on whether all leave now, which the others hear in a broadcast of two numbers.

    Not by NaN, as a stop is agreed on (`Trial.should_stop`): the step that carries it leaves generators and buffers
    behind that are no checkpoint's. And not in every step: rank 0 also says at how many moments from now they meet
    again, some half a second away by the pace of the last ones; the distance grows by doubling, up to 64 moments, so
    that steps that become slower are not waited for too long. One rank alone needs no broadcast, and looks each time.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """clock: seconds, looked at on rank 0 alone."""
        self._clock = clock
        self._between = 1  # moments from the last look to the next
        self._moments = 0  # since the last look
        self._looked_at = clock()

    def is_now(self, trial: Trial) -> bool:
        """Whether all ranks leave; call it at the same moments of the training on all ranks."""
        if trial.worker.world_size == 1:
            return trial.should_leave()
        self._moments += 1
        if self._moments < self._between:
            return False
        word = [trial.should_leave(), self._next()] if trial.worker.rank == 0 else [0, 0]
        said = torch.tensor(word, dtype=torch.int64, device=trial.worker.device)
        broadcast_from_first([said], trial.worker)
        leave, self._between = said.tolist()
        self._moments = 0
        return bool(leave)

    def _next(self) -> int:
        """In how many moments to look again."""
        now = self._clock()
        seconds, self._looked_at = now - self._looked_at, now
        in_time = LOOK_SECONDS * self._moments / max(seconds, 1e-9)
        return max(1, int(min(in_time, 2 * self._between, MOST_BETWEEN)))


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
