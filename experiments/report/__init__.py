"""`report.html` and `summary.json`, rebuilt from a study's folder alone.

Imports all of experiments.
"""

import gc
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scalestudy.experiments.analysis.answers.analysis import Analysis
from scalestudy.experiments.analysis.measures.parts import finite
from scalestudy.experiments.report.analysed import AnalysedStudy
from scalestudy.experiments.report.page import render_page
from scalestudy.experiments.study.folder import StudyFolder

__all__ = ["write_report"]


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Switch off Python's garbage collector.

    The records of a large study are millions of objects without cycles. Searching them again and again takes a quarter
    of the report's time. Used as a decorator, it ends after they are freed, so that they are not searched then either.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@_without_garbage_collection()
def write_report(
    folder: StudyFolder,
    wall_seconds: float | None = None,
    *,
    fresh_workers: str | None = None,
    include_flagged: bool = False,
    analysis: Analysis | None = None,
) -> Path:
    """Write summary.json and report.html, its result, from spec.yaml, plan.json and trials.jsonl.

    wall_seconds: of the whole study. fresh_workers: why every trial got some; "": groups stayed warm. None keeps an
    earlier summary.json's, or else takes the seconds from the trials' own times. include_flagged: fit laws also to
    timings whose flags say that they were disturbed. analysis: of the folder's records, if it was made before.

    Raises OSError if a file is missing, ValueError if one can't be read.
    """
    wall = wall_seconds if wall_seconds is not None else _earlier_wall_seconds(folder)
    why = fresh_workers if fresh_workers is not None else _earlier_fresh_workers(folder)
    study = AnalysedStudy.of(folder, wall, fresh_workers=why, include_flagged=include_flagged, analysis=analysis)
    folder.write_json(folder.summary_file, study.summary)
    page = render_page(study.summary, study.spec_yaml, study.page_data())
    folder.write_text(folder.report_file, page)
    return folder.report_file


def _earlier_wall_seconds(folder: StudyFolder) -> float | None:
    try:
        return finite(_earlier(folder)["cost"]["wall_seconds"])
    except (KeyError, TypeError):
        return None


def _earlier_fresh_workers(folder: StudyFolder) -> str:
    try:
        return str(_earlier(folder)["study"]["fresh_workers"])
    except (KeyError, TypeError):
        return ""


def _earlier(folder: StudyFolder) -> dict[str, Any]:
    """Return the summary of an earlier report; empty if there is none."""
    try:
        summary: dict[str, Any] = json.loads(folder.summary_file.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return summary
