"""Small studies as they were recorded once, kept in `journals/`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.experiments.study.journal import Entry
from scalestudy.orchestration.tracking.entries import Recorded

JOURNALS = Path(__file__).parent / "journals"
STUDIES = ("finished", "killed", "resumed", "grown", "timed")


def entry_texts(name: str) -> list[str]:
    """The files of a study's journal, in order."""
    return (JOURNALS / name / "journal.jsonl").read_text("utf-8").splitlines()


def entries_of(name: str) -> list[Entry]:
    """The entries of a study's journal."""
    plain: list[dict[str, Any]] = [json.loads(text) for text in entry_texts(name)]
    return [Entry(number=number, **each) for number, each in enumerate(plain, start=1)]


def recorded_in(name: str) -> list[Recorded]:
    """The same, with typed events."""
    return [Recorded.of(entry) for entry in entries_of(name)]


def unpack(name: str, folder: Path) -> StudyFolder:
    """A study's folder as its driver left it; figures, logs and report left out."""
    shutil.copytree(JOURNALS / name, folder, ignore=shutil.ignore_patterns("journal.jsonl"))
    study = StudyFolder(folder)
    study.journal_folder.mkdir()
    for number, text in enumerate(entry_texts(name), start=1):
        (study.journal_folder / f"{number:08}.json").write_text(text, encoding="utf-8")
    return study
