"""The page of a study that runs, written by a process of its own.

The process gets the study's folder as its argument. It reads a line of JSON for each page from standard input, the
fields of `Live` but `written` and `log`. It answers with the seconds of a core that the page took and, if there is no
page, the error in the same line. It stays, so that its libraries are loaded once. Who starts it decides when a page is
due.
"""

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scalestudy.experiments.report.analysed import AnalysedStudy
from scalestudy.experiments.report.page import Live, render_page
from scalestudy.experiments.study.folder import StudyFolder

LOG_LINES = 6


def write_live_page(folder: StudyFolder, told: Mapping[str, Any]) -> None:
    """Writes report.html from the trials that have ended; neither summary nor figures. Raises OSError, ValueError."""
    study = AnalysedStudy.of(folder)
    live = Live(written=time.time(), log=last_lines(folder.log_file), **told)
    folder.write_text(
        folder.report_file, render_page(study.summary, (), study.spec_yaml, study.page_data(more_targets=False), live)
    )


def last_lines(log: Path) -> list[str]:
    """The last messages of `log.jsonl`, each with its time of day in UTC. Lines that can't be read are left out."""
    found = []
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, stream.seek(0, 2) - 64 * 1024))
            lines = stream.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return []
    for text in lines[-LOG_LINES:]:
        try:
            line = json.loads(text)
            found.append(f"{line['at'][11:19]} {line['message']}"[:200])
        except (ValueError, KeyError, TypeError):
            continue
    return found


def main() -> None:
    """Serves one study until standard input ends."""
    folder = StudyFolder(Path(sys.argv[1]))
    for line in sys.stdin:
        began, problem = time.process_time(), ""
        try:
            write_live_page(folder, json.loads(line))
        except Exception as error:  # the study goes on without this page, and asks for the next
            problem = f"{type(error).__name__}: {error}".splitlines()[0]
        print(f"{time.process_time() - began:.3f} {problem}", flush=True)
