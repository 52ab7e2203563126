"""`make bench-peers`: the same study as users of scalestudy and of its peers would run it, in one table.

LeNet on the digits, 1 and 2 workers, 24 trials of two epochs, one at a time, each way as a command of its own; then a
study in which a worker of each trial is killed. The programs are those of `tests/bench/peers`.
`python -m tests.bench.compare_peers [--small] [--trials N] [--kills N]`: what is missing of 24 trials is estimated at
the median; `--small` proves that it works. With `--only-kills WAY…` these ways lose a worker by turns, each time in a
study of one trial, and nothing else is measured; with `--only-loops` the same Ray Train loop is run by us and by Ray
alone, by turns. To our spec and command the bench adds `tracking.uri`,
`--address local` and `--out`.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import math
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.bench.peer_kills import Kills, kill_workers
from tests.bench.peer_ways import LOOPS, SCALESTUDY, WAYS, Sweep, Trained, Way, run
from tests.bench.tables import Part, Rows, print_parts

TRIALS, KILLS, TURNS = 24, 3, 3
OUR_LEAST = 4
"""With two trials, one of each size, the one gap between two ends would be the start of the second size's workers."""
SIZES = (1, 2)
RATES = (0.02, 0.03, 0.05, 0.08, 0.1, 0.15)
COMPARED_BATCH = 32
SAMPLES = 1437  # training images
SAME_LOSS = 0.05
"""Relative; ways differ by rounding, and by how the uneven shards of an epoch's last batch are weighed."""
HEADER = [
    "way",
    "trials run",
    f"s for the {TRIALS} trials",
    "s a trial, median",
    "times ours",
    "examples/s, 1 worker",
    "examples/s, 2 workers",
    "worker killed: s until as far again",
    "steps again",
    "trials finished",
    "lines a user writes",
]

LOOPS_HEADER = ["the same loop", "trials", "s by scalestudy", "s by Ray tuned", "ratio of each turn", "median"]
KILLS_HEADER = ["way", "s until as far again", "median", "steps again", "trials finished"]


@dataclass(frozen=True)
class Measured:
    """What was found of one way."""

    way: Way
    seconds: float  # of the whole command
    trials: list[Trained]
    kills: Kills

    def gap(self) -> float:
        """Median seconds from the end of a trial's last epoch to that of the next."""
        ends = sorted(trial.ended for trial in self.trials)
        return statistics.median(later - earlier for earlier, later in itertools.pairwise(ends))

    def whole(self) -> float:
        """The seconds of all trials: those that were not run at the median from one end to the next."""
        return self.seconds + (TRIALS - len(self.trials)) * self.gap()

    def examples_per_second(self, num_gpus: int) -> float:
        """Median over the trials of a world size and the compared batch size; time in steps only."""
        chosen = {"num_gpus": num_gpus, "batch_size": COMPARED_BATCH}
        trials = [trial for trial in self.trials if chosen.items() <= trial.params.items()]
        return statistics.median(
            len(trial.epochs) * SAMPLES / sum(epoch["train_seconds"] for epoch in trial.epochs) for trial in trials
        )

    def row(self, ours: float) -> list[str]:
        """Its line of the table; ours: our seconds for all trials."""
        about = "" if len(self.trials) == TRIALS else "≈ "
        rates = [f"{self.examples_per_second(size):,.0f}" for size in SIZES]
        return [
            self.way.name,
            str(len(self.trials)),
            f"{about}{self.whole():.0f}",
            f"{self.gap():.2f}",
            f"{self.whole() / ours:.1f}",
            *rates,
            *kill_cells(self.kills),
            str(lines_written(self.way.written())),
        ]


def kill_cells(kills: Kills) -> list[str]:
    """Medians over the kills that the training survived, and how many trials finished."""
    medians = ["–", "–"]
    if kills.losses:
        seconds = statistics.median(loss.seconds for loss in kills.losses)
        medians = [f"{seconds:.1f}", f"{statistics.median(loss.steps for loss in kills.losses):.0f}"]
    return [*medians, f"{kills.finished} of {kills.planned}"]


def sweep_of(trials: int) -> Sweep:
    """So many trials of the 24, half of each size; fewer than 24 have the one batch size that is compared."""
    if trials == TRIALS:
        return Sweep(num_gpus=SIZES, batch_size=[COMPARED_BATCH, 2 * COMPARED_BATCH], learning_rate=RATES)
    if trials % len(SIZES) or not 0 < trials <= len(SIZES) * len(RATES):
        raise SystemExit(f"--trials: {trials} is not {TRIALS} and not an even number up to {len(SIZES) * len(RATES)}")
    return Sweep(num_gpus=SIZES, batch_size=[COMPARED_BATCH], learning_rate=RATES[: trials // len(SIZES)])


def measure(way: Way, folder: Path, trials: int, kills: int) -> Measured:
    """Runs the study, and then the one with the kills."""
    place = folder / way.name.replace(" ", "-")
    seconds, done = run(way, place / "study", sweep_of(trials))
    return Measured(way, seconds, done, kill_workers(way, place / "kills", kills))


def held_to_ours(found: list[Measured]) -> list[Measured]:
    """The same ways, ours first; raises RuntimeError where one's losses say that it trained something else."""
    names = ("num_gpus", "batch_size", "learning_rate")
    ours, *others = ({tuple(trial.params[name] for name in names): trial for trial in way.trials} for way in found)
    for way, trials in zip(found[1:], others, strict=True):
        for point, trial in trials.items():
            for theirs, mine in zip(trial.epochs, ours[point].epochs, strict=True):
                if not math.isclose(theirs["train_loss"], mine["train_loss"], rel_tol=SAME_LOSS):
                    losses = f"{theirs['train_loss']:.4g}, ours {mine['train_loss']:.4g}"
                    raise RuntimeError(f"{way.way.name}: {point}: not the same training: loss {losses}")
    return found


def peers(folder: Path, *, small: bool = False, trials: int = TRIALS, kills: int = KILLS) -> Rows:
    """A row a way, ours first."""
    trials, kills = (2, 1) if small else (trials, kills)
    mine = max(trials, OUR_LEAST)
    found = held_to_ours([measure(way, folder, mine if way is SCALESTUDY else trials, kills) for way in WAYS])
    return [measured.row(found[0].whole()) for measured in found]


def only_kills(folder: Path, *, small: bool = False, ways: Sequence[Way] = WAYS, kills: int = KILLS) -> Rows:
    """Return a row a way. The ways take turns, so that a machine that grows slower meanwhile does so for all."""
    turns: dict[str, list[Kills]] = {way.name: [] for way in ways}
    for turn in range(1 if small else kills):
        for way in ways:
            turns[way.name].append(kill_workers(way, folder / f"{way.name.replace(' ', '-')}-{turn}", 1))
    rows = []
    for name, studies in turns.items():
        losses = [loss for study in studies for loss in study.losses]
        together = Kills(losses, finished=sum(study.finished for study in studies), planned=len(studies))
        rows.append([name, ", ".join(f"{loss.seconds:.1f}" for loss in losses), *kill_cells(together)])
    return rows


def loops(folder: Path, *, small: bool = False, trials: int = TRIALS, turns: int = TURNS) -> Rows:
    """Return a row for trials one at a time and one for packed ones. Scalestudy and Ray take turns."""
    sweep, turns = sweep_of(2 if small else trials), 1 if small else turns
    rows = []
    for name, ways in LOOPS.items():
        seconds = [
            [run(way, folder / f"{turn}-{way.name.replace(' ', '-')}", sweep)[0] for way in ways]
            for turn in range(turns)
        ]
        ours, theirs = zip(*seconds, strict=True)
        ratios = [mine / other for mine, other in seconds]
        listed = [", ".join(f"{each:.0f}" for each in column) for column in (ours, theirs)]
        told = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        rows.append([name, str(len(sweep.points())), *listed, told, f"{statistics.median(ratios):.2f}"])
    return rows


def lines_written(files: Iterable[Path]) -> int:
    """How many lines a user writes, of Python and YAML: those that are neither blank nor comment nor docstring."""
    return sum(_lines_of(file) for file in files)


def _lines_of(file: Path) -> int:
    text = file.read_text("utf-8")
    docstrings: set[int] = set()
    for each in ast.walk(ast.parse(text)) if file.suffix == ".py" else ():
        if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant):
            docstrings |= set(range(each.lineno, (each.end_lineno or each.lineno) + 1))
    lines = enumerate(map(str.strip, text.splitlines()), start=1)
    return sum(1 for number, line in lines if line and not line.startswith("#") and number not in docstrings)


TITLE = "The same study by scalestudy and by its peers"
LOOPS_TITLE = "The same Ray Train loop by scalestudy and by Ray, tuned"
PARTS = {"peers": Part(TITLE, HEADER, peers), "loops": Part(LOOPS_TITLE, LOOPS_HEADER, loops)}


def main(arguments: list[str]) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="make bench-peers")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--turns", type=int, default=TURNS, help="of each way that runs the same loop")
    parser.add_argument("--only-loops", action="store_true")
    parser.add_argument("--only-kills", nargs="+", choices=[way.name for way in WAYS], metavar="WAY")
    options = parser.parse_args(arguments)
    sweep_of(options.trials)  # a wrong number is told now
    parts = {
        "peers": Part(TITLE, HEADER, partial(peers, trials=options.trials, kills=options.kills)),
        "loops": Part(LOOPS_TITLE, LOOPS_HEADER, partial(loops, trials=options.trials, turns=options.turns)),
    }
    if options.only_loops:
        del parts["peers"]
    if options.only_kills:
        ways = [way for way in WAYS if way.name in options.only_kills]
        kills = partial(only_kills, ways=ways, kills=options.kills)
        parts = {"kills": Part("A worker killed, by turns", KILLS_HEADER, kills)}
    print_parts(parts, ["--small"] if options.small else [])


if __name__ == "__main__":
    main(sys.argv[1:])
