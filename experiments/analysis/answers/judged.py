"""What runs that others made, and a user's own loop, can't show: laws where their updates are not known, figures in
updates where the size of their training set is not, and what only the built-in loop measures."""

from collections.abc import Mapping, Sequence
from typing import Any

from scalestudy.experiments.analysis.answers.posterior import Times
from scalestudy.experiments.analysis.measures.cells import Cell, key_of
from scalestudy.experiments.analysis.measures.parts import Figure, Row, missing
from scalestudy.experiments.analysis.measures.progress import Progress
from scalestudy.experiments.analysis.measures.units import plural
from scalestudy.experiments.spec.study_spec import StudySpec

NAMED_UNFAIR = 3
"""Unfair things that a caveat names; it counts the rest."""
SAID_BY_OTHERS = "not said"
"""What stands for a setting of the training that a spec of the built-in loop would have."""
LOOP_PHASES = "the loop's phases are not measured"
LOOP_NOISE = "the loop's gradients are not measured"
LOOP_TIMES = "Times include the loop's own evaluation, and the first of a training the loop's set-up."


def why_no_law(progress: Progress) -> str | None:
    """Return why a study can have no law, as a clause; None: it can."""
    return progress.why if progress.unit == "seconds" else None


def predictions_known(progress: Progress, predictions: Figure) -> Figure:
    """Return predictions without the seconds of a step, where they are known up to a factor."""
    if progress.unit != "epochs" or "rows" not in predictions:
        return predictions
    best = {role: _timeless(row) for role, row in predictions["best"].items()}
    return {**predictions, "rows": [_timeless(row) for row in predictions["rows"]], "best": best}


def _timeless(row: Figure) -> Figure:
    return {**row, "step_seconds": None} if "step_seconds" in row else row


def row_known(spec: StudySpec, progress: Progress, row: Row) -> dict[str, Any]:
    """Return a row of a cell without what was not measured, and without what rests on updates that are not known."""
    unknown: dict[str, Figure] = {"step_seconds": missing(LOOP_PHASES)} if spec.workload.loop else {}
    if progress.unit != "steps":
        unknown["samples_per_second"] = missing(progress.why)
    if progress.unit == "seconds":
        unknown["epoch_seconds"] = missing(progress.why)
    return {**row, **unknown}


def known_alone(spec: StudySpec, progress: Progress, summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return a summary without what the trials of a study can't show, and what is said of its making."""
    found = dict(summary)
    if spec.judged is not None:
        found["cost"] = {**summary["cost"], "wall_seconds": None, "overhead_ratio": None, "why": "others made its runs"}
    if spec.workload.loop:
        found["cost"] = {**summary["cost"], "evaluation_timed": True}
        found["timings"] = [{**row, "step_seconds": missing(LOOP_PHASES)} for row in summary["timings"]]
    if progress.unit == "steps":
        return found
    found["cells"] = [{key: value for key, value in row.items() if key != "examples"} for row in summary["cells"]]
    found["timings"] = [{**row, "steps": None, "examples": None} for row in found["timings"]]
    found["throughput_model"] = found["statistical_efficiency"] = missing(progress.why)
    if progress.unit == "seconds":
        found["scaling"] = found["lr_rule"] = missing(progress.why)
    return found


def chance_of_best_rate(choice: Figure, times: Times, cells: Sequence[Cell]) -> float:
    """Return the chance that no other rate that was tried with a choice's workers and batch is faster."""
    alike = key_of(choice["params"], ("learning_rate",))
    there = {cell.label for cell in cells if key_of(cell.params, ("learning_rate",)) == alike}
    labels = [label for label in times.labels if label in there]
    draws = times.only(labels).draws
    return float((draws.argmin(axis=1) == labels.index(choice["label"])).mean())


def judged_caveats(judged: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the caveats of runs that others made. judged: the content of judged.json."""
    words = {}
    if unfair := judged["unfair"]:
        words["unfair"] = f"{plural(len(unfair), 'thing')} in these runs may be unfair: {'; '.join(_brief(unfair))}."
    if left_out := judged["left_out"]:
        words["left_out"] = f"{plural(len(left_out), 'run')} {'is' if len(left_out) == 1 else 'are'} left out."
    if judged["evaluation"] == "included":
        words["evaluation"] = "The times of these runs include evaluation."
    return [{"kind": kind, "words": said} for kind, said in words.items()]


def _brief(unfair: Sequence[Mapping[str, Any]]) -> list[str]:
    named = [str(each["words"]).rstrip(".") for each in unfair[:NAMED_UNFAIR]]
    more = len(unfair) - len(named)
    return [*named, *([f"and {more} more"] if more else [])]
