"""Runs of a study's folder, as any other source has them: several studies are judged as one."""

import math
from collections.abc import Mapping
from typing import Any

from scalestudy.experiments.analysis.measures.trial import posix_seconds
from scalestudy.experiments.judging.runs import Ended, Recorded
from scalestudy.experiments.spec.study_spec import StudySpec, metric_name
from scalestudy.experiments.study.folder import StudyFolder

ENDS: Mapping[str, Ended] = {"finished": "finished", "at_target": "finished", "stopped": "cut", "diverged": "finished"}
"""How a trial ended, as a source says it; any other status is a failure."""
NAMES = {"batch_size": "global_batch_size"}
"""Parameters by the names that say what they are."""


def read_study(folder: StudyFolder, spec: StudySpec) -> list[Recorded]:
    """Return the trainings of a study. Raises OSError or ValueError if its records can't be read."""
    name = metric_name(spec.workload.metric)
    return [
        _recorded(line, folder.study_id, name)
        for line in folder.read_trials()
        if line.get("kind") != "timing" and line["status"] != "skipped"
    ]


def _recorded(line: Mapping[str, Any], study_id: str, metric: str) -> Recorded:
    world = line.get("world") or {}
    values = {NAMES.get(key, key): value for key, value in line["params"].items()}
    if world.get("accelerator"):
        values["accelerator"] = world["accelerator"]
    rows: list[dict[str, Any]] = []
    steps = samples = seconds = 0.0
    for epoch in line.get("epochs") or ():
        steps, samples = steps + (epoch.get("steps") or 0), samples + (epoch.get("samples") or 0)
        seconds += epoch.get("train_seconds") or 0.0
        value = epoch.get(f"test_{metric}")
        if value is None and line["status"] == "diverged":
            value = math.nan
        # a Ray Train loop may tell no updates or examples: then they stay 0
        row = {"global_step": steps or None, "samples_seen": samples or None, "train_time": seconds, metric: value}
        rows.append({key: each for key, each in row.items() if each is not None})
    return Recorded(
        where=f"{study_id}, {line['trial_id']}",
        name=str(line["trial_id"]),
        values=values,
        history=rows,
        ended=ENDS.get(line["status"], "failed"),
        started=posix_seconds(line.get("started_at")),
        stopped=posix_seconds(line.get("ended_at")),
    )
