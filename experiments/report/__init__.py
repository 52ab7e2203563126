"""`report.html`, `summary.json` and the figures, rebuilt from a study's folder alone.

Imports all of experiments.
"""

import gc
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scalestudy.experiments.analysis.measures.cells import Cell
from scalestudy.experiments.analysis.measures.parts import finite
from scalestudy.experiments.report.analysed import AnalysedStudy
from scalestudy.experiments.report.batch_figures import rate_map_figure, steps_figure
from scalestudy.experiments.report.curves import metric_over_epochs, metric_over_seconds, phases_figure
from scalestudy.experiments.report.drawing import Drawn
from scalestudy.experiments.report.memory_figure import memory_figure
from scalestudy.experiments.report.page import render_page
from scalestudy.experiments.report.speedup_figures import efficiency_figure, speedup_figure
from scalestudy.experiments.report.styles import Styles
from scalestudy.experiments.report.target_figures import pareto_figure, predictions_figure, time_map_figure
from scalestudy.experiments.study.folder import StudyFolder

__all__ = ["draw", "write_report"]


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Switches off Python's garbage collector.

    The records of a large study are millions of objects without cycles. Searching them again and again takes a quarter
    of the report's time. As a decorator it ends when they are freed, so that they are not searched then either.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@_without_garbage_collection()
def write_report(folder: StudyFolder, wall_seconds: float | None = None, *, include_flagged: bool = False) -> Path:
    """Reads spec.yaml, plan.json and trials.jsonl. Writes summary.json, figures/*.png and report.html, its result.

    wall_seconds: of the whole study. None keeps that of an earlier summary.json, or else takes it from the trials' own
    times. include_flagged: fit laws also to timings whose flags say that they were disturbed.

    Raises OSError if a file is missing, ValueError if one can't be read.
    """
    wall = wall_seconds if wall_seconds is not None else _earlier_wall_seconds(folder)
    study = AnalysedStudy.of(folder, wall, include_flagged=include_flagged)
    figures = draw(study.cells, study.summary)
    for figure in figures:
        if figure.png is not None:
            folder.write_bytes(folder.figure_file(figure.name), figure.png)
        else:
            folder.delete(folder.figure_file(figure.name))  # an earlier report may have drawn it
    folder.write_json(folder.summary_file, study.summary)
    page = render_page(study.summary, figures, study.spec_yaml, study.page_data())
    folder.write_text(folder.report_file, page)
    return folder.report_file


def draw(cells: Sequence[Cell], summary: Mapping[str, Any]) -> list[Drawn]:
    """Every figure, in the page's order. One that can't be drawn has only its reason."""
    styles = Styles.of(summary)
    return [
        speedup_figure(summary),
        efficiency_figure(summary),
        phases_figure(summary),
        time_map_figure(summary),
        rate_map_figure(summary),
        steps_figure(summary),
        metric_over_epochs(cells, summary, styles),
        metric_over_seconds(cells, summary, styles),
        pareto_figure(summary, styles),
        memory_figure(cells, summary, styles),
        predictions_figure(summary),
    ]


def _earlier_wall_seconds(folder: StudyFolder) -> float | None:
    try:
        return finite(json.loads(folder.summary_file.read_text("utf-8"))["cost"]["wall_seconds"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
