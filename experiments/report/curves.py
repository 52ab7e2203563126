"""The curves that the page draws for a cell: medians over seeds of its metric, over epochs and over seconds."""

import statistics
from collections.abc import Mapping, Sequence

from scalestudy.experiments.analysis.measures.cells import Cell
from scalestudy.experiments.analysis.measures.usable import COUNTED

Points = tuple[Sequence[float], Sequence[float]]


def points_by_epoch(cell: Cell) -> Points:
    """Return epochs, and the median of the metric over the seeds that have each epoch."""
    curves = [
        {
            epoch.number: (epoch.number, epoch.tested[cell.metric.key])
            for epoch in trial.epochs
            if cell.metric.key in epoch.tested
        }
        for trial in cell.with_status(COUNTED)
    ]
    return _medians(cell, curves)


def points_by_seconds(cell: Cell) -> Points:
    """Return the median seconds and median metric over seeds, after each epoch."""
    return _medians(cell, [dict(enumerate(cell.curve(trial))) for trial in cell.with_status(COUNTED)])


def _medians(cell: Cell, curves: Sequence[Mapping[int, tuple[float, float]]]) -> Points:
    """Return the line of a cell: medians over its seeds. curves: of each seed, (place on the axis, value) by number.

    Where trainings stop at the target, the fast seeds end first, and a median over the slow ones would fall. So a seed
    that has ended keeps its last value, and the line ends where fewer than half go on.
    """
    curves = [points for points in curves if points]
    stops = bool(cell.with_status(("at_target",)))
    places, values = [], []
    for number in sorted({number for points in curves for number in points}):
        left = [points[number] for points in curves if number in points]
        if stops and 2 * len(left) < len(curves):
            break
        ended = [points[max(points)] for points in curves if max(points) < number] if stops else []
        places.append(statistics.median(place for place, _ in left))
        values.append(statistics.median(value for _, value in [*left, *ended]))
    return places, values
