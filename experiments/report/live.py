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

from scalestudy.experiments.analysis.answers.summary import summarise_cells
from scalestudy.experiments.analysis.answers.target_times import times_to
from scalestudy.experiments.analysis.measures.cells import gather
from scalestudy.experiments.analysis.measures.metric import StudyMetric
from scalestudy.experiments.report.explorer import explorer_data
from scalestudy.experiments.report.page import Live, render_page
from scalestudy.experiments.spec.study_spec import StudySpec
from scalestudy.experiments.spec.yaml_lines import read_yaml
from scalestudy.experiments.study.folder import StudyFolder

LOG_LINES = 6


def write_live_page(folder: StudyFolder, told: Mapping[str, Any]) -> None:
    """Writes report.html from the trials that have ended; neither summary nor figures. Raises OSError, ValueError."""
    spec_yaml = folder.spec_file.read_text("utf-8")
    spec = StudySpec.model_validate(read_yaml(spec_yaml).data)
    plan, trials = folder.read_plan(), folder.read_trials()
    cells = gather(plan, trials, StudyMetric.of(spec.workload))
    by_target = times_to(spec, cells, spec.targets.accuracy, spec.targets.price_per_gpu_hour)
    summary = summarise_cells(spec, plan, trials, cells, by_target=by_target)
    summary["study"]["study_id"] = folder.study_id
    data = explorer_data(spec, cells, summary, by_target, more_targets=False, runs_page=folder.runs_page())
    live = Live(written=time.time(), log=last_lines(folder.log_file), **told)
    folder.write_text(folder.report_file, render_page(summary, (), spec_yaml, data, live))


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
