"""SIGKILL to a worker of each trial of a study, whatever runs it, and what that costs by the notes of the model."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from tests.bench.peer_ways import Running, Sweep, Way
from tests.bench.peers.workload import NOTES, STEP_SECONDS

EPOCHS, STEPS, SLEEP = 6, 12, 0.1
KILL_AT = 3 * STEPS + STEPS // 2
"""In the middle of the fourth epoch, three checkpoints being written."""
LIMIT_SECONDS = 900.0

Note = tuple[float, int]
"""When a rank began a step, and its process."""


@dataclass(frozen=True)
class Loss:
    """What one kill has cost."""

    seconds: float  # until the step is begun again that was being made
    steps: int  # made or begun more than once


@dataclass(frozen=True)
class Kills:
    """A study with a kill in every trial."""

    losses: list[Loss]
    finished: int
    planned: int


def kill_sweep(count: int) -> Sweep:
    """Trials of two workers that differ in their seeds."""
    seeds = tuple(range(count))
    return Sweep(num_gpus=[2], batch_size=[128], learning_rate=[0.05], seed=seeds, epochs=EPOCHS)


def kill_workers(way: Way, folder: Path, count: int) -> Kills:
    """Runs so many trials, one after the other, and kills rank 1 of each once."""
    notes = folder.with_name(f"{folder.name}-notes")
    notes.mkdir()
    variables = {NOTES: str(notes), STEP_SECONDS: str(SLEEP)}
    with way.running(folder, kill_sweep(count), noted=True, **variables) as study:
        killed = _kill_each(study, notes)
        finished = len(study.trials())
    if len(killed) != count:
        said = (folder / "said").read_text("utf-8", errors="replace")
        raise RuntimeError(f"{way.name}: {len(killed)} of {count} trials came as far as to be killed: {said[-5000:]}")
    found = [loss_of(read_notes(notes / f"{trial}-0"), EPOCHS * STEPS, when) for trial, when in killed.items()]
    return Kills([loss for loss in found if loss], finished, count)


def _kill_each(study: Running, notes: Path) -> dict[str, float]:
    """Watch the notes until the command ends; return when a worker of each trial was killed."""
    killed: dict[str, float] = {}
    give_up = time.monotonic() + LIMIT_SECONDS
    while study.process.poll() is None:
        if time.monotonic() > give_up:
            raise RuntimeError(f"{study.way.name}: not done after {LIMIT_SECONDS:.0f} s")
        for file in notes.glob("*-1"):
            trial = file.name.removesuffix("-1")
            if trial not in killed and len(steps := read_notes(file)) >= KILL_AT:
                os.kill(steps[-1][1], signal.SIGKILL)
                killed[trial] = time.time()
        time.sleep(0.01)
    return killed


def read_notes(file: Path) -> list[Note]:
    """One rank's steps in their order; a line that is being written is left out."""
    lines = file.read_text("utf-8").split("\n")[:-1]
    return [(float(when), int(process)) for when, process in map(str.split, lines)]


def loss_of(notes: list[Note], needed: int, killed_at: float) -> Loss | None:
    """Return what the first kill has cost a trial of `needed` steps; None if it never came as far again.

    notes: of rank 0, which was not killed. Its process of that moment made the attempt that the kill broke; what an
    earlier one noted is no attempt: our rehearsal makes a step before the study starts. The seconds count from the last
    step of the broken attempt, so that the time until the death is noticed is in them.
    """
    attempts = [list(group) for _, group in groupby(notes, key=lambda note: note[1])]
    broken = max(place for place, attempt in enumerate(attempts) if attempt[0][0] <= killed_at)
    first, last = attempts[broken], attempts[-1]
    from_step = needed - len(last)  # the last attempt ends the training
    if last is first or from_step < 0:
        return None
    again = last[max(0, len(first) - 1 - from_step)]
    return Loss(again[0] - first[-1][0], sum(map(len, attempts[broken:])) - needed)
