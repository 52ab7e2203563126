"""Stage 8, analysis: `scalestudy compare` – the folders of studies, to their differences."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.analysis import summarise
from experiments.analysis.comparison import compare
from orchestration.errors import RequestError
from orchestration.folders import open_folder, readable, spec_of


def compare_studies(paths: Sequence[str | Path]) -> dict[str, Any]:
    """What `compare` finds between two or more studies, named by their ids; the first is the base.

    Raises RequestError for fewer than two, the same one twice, or a folder that is not a study's.
    """
    if len(paths) < 2:
        raise RequestError("DIR: one study has nothing to be compared with", "name two or more")
    summaries: dict[str, Any] = {}
    for path in paths:
        folder = open_folder(path)
        if folder.study_id in summaries:
            raise RequestError(f"DIR: {path}: is the study {folder.study_id} again", "name each study once")
        with readable(folder):
            summaries[folder.study_id] = summarise(spec_of(folder), folder.read_plan(), folder.read_trials())
    return compare(summaries)
