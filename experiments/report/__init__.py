"""Stage 9, report: `report.html`, `summary.json` and the figures, rebuilt from a study's folder alone."""

import json
from pathlib import Path

from experiments.analysis.cells import gather
from experiments.analysis.metric import StudyMetric
from experiments.analysis.parts import finite
from experiments.analysis.summary import summarise
from experiments.report.curves import metric_over_epochs, metric_over_seconds
from experiments.report.page import render_page
from experiments.report.scaling_figures import efficiency_figure, pareto_figure, phases_figure, speedup_figure
from experiments.spec import StudySpec
from experiments.study_folder import StudyFolder
from experiments.yaml_lines import read_yaml

__all__ = ["write_report"]


def write_report(folder: StudyFolder, wall_seconds: float | None = None) -> Path:
    """Reads spec.yaml, plan.json and trials.jsonl; writes summary.json, figures/*.png and report.html, its result.

    wall_seconds: of the whole study; None keeps what an earlier summary.json says, else it is taken from the trials'
    own times. Raises OSError where a file is not there, ValueError where one can't be read.
    """
    spec_yaml = folder.spec_file.read_text("utf-8")
    spec = StudySpec.model_validate(read_yaml(spec_yaml).data)
    plan, trials = folder.read_plan(), folder.read_trials()
    wall = wall_seconds if wall_seconds is not None else _earlier_wall_seconds(folder)
    summary = summarise(spec, plan, trials, wall)
    summary["study"]["study_id"] = folder.study_id
    cells = gather(plan, trials, StudyMetric.of(spec.workload))
    figures = [
        metric_over_epochs(cells, summary),
        metric_over_seconds(cells, summary),
        speedup_figure(summary),
        efficiency_figure(summary),
        pareto_figure(summary),
        phases_figure(summary),
    ]
    for figure in figures:
        if figure.png is not None:
            folder.write_bytes(folder.figure_file(figure.name), figure.png)
    folder.write_json(folder.summary_file, summary)
    folder.write_text(folder.report_file, render_page(summary, figures, spec_yaml))
    return folder.report_file


def _earlier_wall_seconds(folder: StudyFolder) -> float | None:
    try:
        return finite(json.loads(folder.summary_file.read_text("utf-8"))["cost"]["wall_seconds"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
