"""The page of a study that runs, written by a process of its own.

The process gets the study's folder as its argument. It reads a line of JSON for each page from standard input: see
`write_live_page`. It answers with the seconds of a core that the page took and, if there is no page, the error in the
same line. It stays, so that its libraries are loaded once. Who starts it decides when a page is due.
"""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from scalestudy.experiments.plan.plan import label
from scalestudy.experiments.report.analysed import AnalysedStudy
from scalestudy.experiments.report.explorer import brief
from scalestudy.experiments.report.page import Live, render_page
from scalestudy.experiments.study.folder import StudyFolder

LOG_LINES = 6


def write_live_page(folder: StudyFolder, told: Mapping[str, Any]) -> None:
    """Writes report.html from the trials that have ended, with the curves of those that run; no summary, no figures.

    told: ended, planned and progress as in `Live`; running: of each trial that runs its name, the parameters of its
    cell, what a period is called, the number of its last one, and those so far, (number, training seconds, metric or
    null) each. Raises OSError or ValueError if the folder can't be read or written.
    """
    study = AnalysedStudy.of(folder)
    running = told["running"]
    live = Live(
        written=time.time(),
        ended=told["ended"],
        planned=told["planned"],
        progress=told["progress"],
        running=[f"{each['name']}: {each['period']} {len(each['epochs'])} of {each['last']}" for each in running],
        log=last_lines(folder.log_file),
    )
    data = study.page_data(more_targets=False)
    data["curves"] += running_curves(running, data["cells"]["label"])
    folder.write_text(folder.report_file, render_page(study.summary, (), study.spec_yaml, data, live))


def running_curves(running: Sequence[Mapping[str, Any]], labels: Sequence[str]) -> list[dict[str, Any]]:
    """Curves as the page's script draws them, of trials that run. labels: of the study's cells, in their order."""
    found = []
    for trial in running:
        points = [
            (number, seconds, value)
            for (number, _, value), seconds in zip(
                trial["epochs"], accumulate(seconds for _, seconds, _ in trial["epochs"]), strict=True
            )
            if value is not None
        ]
        name = label(trial["cell"])
        if points and name in labels:
            numbers, seconds, values = ([brief(each) for each in column] for column in zip(*points, strict=True))
            curve = {"epochs": [numbers, values], "seconds": [seconds, values]}
            found.append({"cell": labels.index(name), "runs": True, **curve})
    return found


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
