"""Memory of a worker over its share of the batch."""

from collections.abc import Mapping, Sequence
from typing import Any

from scalestudy.experiments.analysis.measures.cells import Cell
from scalestudy.experiments.analysis.measures.parts import Summary, finite
from scalestudy.experiments.analysis.measures.records import epochs_of
from scalestudy.experiments.report.drawing import (
    Drawn,
    canvas,
    export,
    legend_below,
    log_sizes_axis,
    not_drawn,
    sentences,
)
from scalestudy.experiments.report.styles import Styles

GIB = 2**30


def peak_memory_bytes(cell: Cell) -> float | None:
    """The largest peak of a worker's memory in the cell's trainings. None if none was measured."""
    peaks = [finite(epoch.get("peak_memory_bytes")) for trial in cell.own for epoch in epochs_of(trial)]
    return max((peak for peak in peaks if peak), default=None)


def memory_figure(cells: Sequence[Cell], summary: Summary, styles: Styles) -> Drawn:
    """The largest peak of a worker, a point for each cell."""
    name, title = "memory", "Memory of a worker"
    points = [
        (cell.params, cell.batch_size / cell.num_gpus, peak / GIB)
        for cell in styles.most_important(cells)
        if (peak := peak_memory_bytes(cell)) is not None
    ]
    if len({share for _, share, _ in points}) < 2:
        return not_drawn(name, title, "memory was measured at one batch size a worker only" if points else NOT_MEASURED)
    with canvas(height=3.2) as (figure, axes):
        for params, share, peak in points:
            looks: Mapping[str, Any] = {"color": styles.colour(params), "marker": styles.marker(params)}
            axes.plot(share, peak, linestyle="none", markersize=6, **looks)
        log_sizes_axis(axes, [share for _, share, _ in points])
        axes.set_ylim(0, 1.15 * max(peak for _, _, peak in points))
        axes.set(xlabel="batch size a worker", ylabel="GiB a worker, at most")
        legend_below(figure, styles.point_handles([params for params, _, _ in points]))
        return export(figure, name, title, _caption(points, summary))


NOT_MEASURED = "no trial measured its memory"


def _caption(points: Sequence[tuple[Mapping[str, Any], float, float]], summary: Summary) -> str:
    (_, small, least), (_, large, most) = (end(points, key=lambda each: each[1]) for end in (min, max))
    whole = "the process with its libraries" if "cpu" in (summary["study"]["device"] or "") else "what is allocated"
    words = f"{least:.3g} GiB at {small:g} examples a worker, {most:.3g} GiB at {large:g}."
    return sentences(words, f"Counted is {whole}.")
