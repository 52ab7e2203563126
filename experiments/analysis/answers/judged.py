"""What runs that others made can't show: laws where their updates are not known, figures in updates where the size of
their training set is not."""

from collections.abc import Mapping, Sequence
from typing import Any

from scalestudy.experiments.analysis.answers.posterior import Times
from scalestudy.experiments.analysis.measures.cells import Cell, key_of
from scalestudy.experiments.analysis.measures.parts import Figure, Row, missing
from scalestudy.experiments.analysis.measures.units import plural
from scalestudy.experiments.spec.study_spec import StudySpec

TIMES_ALONE = (
    "nothing but the runs' times is known, no updates or epochs: say which column has them (--column step=NAME, "
    "--column epoch=NAME)"
)
SET_UNKNOWN = "the size of the training set is not known, so epochs tell no updates: --set train_samples=N"
NAMED_UNFAIR = 3
"""Unfair things that a caveat names; it counts the rest."""
SAID_BY_OTHERS = "not said"
"""What stands for a setting of the training that a spec of ours would have."""


def why_no_law(spec: StudySpec) -> str | None:
    """Return why a study can have no law, as a clause; None: it can."""
    return TIMES_ALONE if spec.judged is not None and spec.judged.progress == "seconds" else None


def predictions_known(spec: StudySpec, predictions: Figure) -> Figure:
    """Return predictions without the seconds of a step, where they are known up to a factor."""
    if spec.judged is None or spec.judged.progress != "epochs" or "rows" not in predictions:
        return predictions
    best = {role: _timeless(row) for role, row in predictions["best"].items()}
    return {**predictions, "rows": [_timeless(row) for row in predictions["rows"]], "best": best}


def _timeless(row: Figure) -> Figure:
    return {**row, "step_seconds": None} if "step_seconds" in row else row


def row_known(spec: StudySpec, row: Row) -> dict[str, Any]:
    """Return a row of a cell without the figures that rest on its updates, where these are not known."""
    if spec.judged is None or spec.judged.progress == "steps":
        return dict(row)
    if spec.judged.progress == "epochs":
        return {**row, "samples_per_second": missing(SET_UNKNOWN)}
    return {**row, "samples_per_second": missing(TIMES_ALONE), "epoch_seconds": missing(TIMES_ALONE)}


def known_alone(spec: StudySpec, summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return a summary without what the runs of a judged study can't show, and what is said of its making."""
    if spec.judged is None:
        return dict(summary)
    found = dict(summary)
    found["cost"] = {**summary["cost"], "wall_seconds": None, "overhead_ratio": None, "why": "others made its runs"}
    if spec.judged.progress == "steps":
        return found
    why = TIMES_ALONE if spec.judged.progress == "seconds" else SET_UNKNOWN
    found["cells"] = [{key: value for key, value in row.items() if key != "examples"} for row in summary["cells"]]
    found["timings"] = [{**row, "steps": None, "examples": None} for row in summary["timings"]]
    found["throughput_model"] = found["statistical_efficiency"] = missing(why)
    if spec.judged.progress == "seconds":
        found["scaling"] = found["lr_rule"] = missing(why)
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
