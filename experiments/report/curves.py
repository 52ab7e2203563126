"""The curves that the page draws for a cell: what its trainings went through, as medians over its seeds."""

from collections.abc import Sequence

from scalestudy.experiments.analysis.measures.cells import Cell
from scalestudy.experiments.analysis.measures.parts import median
from scalestudy.experiments.analysis.measures.trial import Epoch, Trial
from scalestudy.experiments.analysis.measures.usable import COUNTED

Column = list[float | None]
LOSSES = ("train_loss", "test_loss")
RATE = "learning_rate"
Period = tuple[Epoch, float | None]
"""An epoch, and the training seconds until its end; None: they can't be known."""


def curves_of(cell: Cell) -> dict[str, Column]:
    """Return columns over the cell's periods: `epochs`, `seconds`, its metric by its key, LOSSES and RATE.

    Each is a median over seeds; None: no seed has it. Where trainings stop at the target, the fast seeds end first, and
    a median over the slow ones would fall. So a seed that has ended keeps its last metric and losses, and the columns
    end where fewer than half of the seeds go on.
    """
    seeds = [periods for trial in cell.with_status(COUNTED) if (periods := _periods(cell, trial))]
    stops = bool(cell.with_status(("at_target",)))
    values = [*dict.fromkeys((cell.metric.key, *LOSSES))]
    columns: dict[str, Column] = {key: [] for key in ("epochs", "seconds", *values, RATE)}
    for number in sorted({number for periods in seeds for number in periods}):
        left = [periods[number] for periods in seeds if number in periods]
        if stops and 2 * len(left) < len(seeds):
            break
        ended = [[*periods.values()] for periods in seeds if stops and max(periods) < number]
        columns["epochs"].append(number)
        columns["seconds"].append(_median([seconds for _, seconds in left]))
        columns[RATE].append(_median([epoch.learning_rate for epoch, _ in left]))
        for key in values:
            known = [_value(epoch, key) for epoch, _ in left]
            columns[key].append(_median([*known, *(_last(periods, key) for periods in ended)]))
    return columns


def _periods(cell: Cell, trial: Trial) -> dict[int, Period]:
    """Return a training's epochs by number, with their seconds."""
    seconds = cell.elapsed_seconds(trial)
    return {
        epoch.number: (epoch, seconds[place] if place < len(seconds) else None)
        for place, epoch in enumerate(trial.epochs)
    }


def _value(epoch: Epoch, key: str) -> float | None:
    return epoch.train_loss if key == "train_loss" else epoch.tested.get(key)


def _last(periods: Sequence[Period], key: str) -> float | None:
    known = (value for epoch, _ in reversed(periods) if (value := _value(epoch, key)) is not None)
    return next(known, None)


def _median(values: Sequence[float | None]) -> float | None:
    return median([value for value in values if value is not None])
