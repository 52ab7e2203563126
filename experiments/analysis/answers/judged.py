"""What runs that others made can't show: laws where their updates are not known, figures in updates where the size of
their training set is not."""

from collections.abc import Mapping
from typing import Any

from scalestudy.experiments.analysis.measures.parts import Figure, missing
from scalestudy.experiments.spec.study_spec import StudySpec

TIMES_ALONE = (
    "nothing but the runs' times is known, no updates or epochs: say which column has them (--column step=NAME, "
    "--column epoch=NAME)"
)
SET_UNKNOWN = "the size of the training set is not known, so epochs tell no updates: --set train_samples=N"
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


def known_alone(spec: StudySpec, summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return a summary without what the runs of a judged study can't show, and what is said of its making."""
    if spec.judged is None:
        return dict(summary)
    found = dict(summary)
    found["cost"] = {**summary["cost"], "wall_seconds": None, "overhead_ratio": None, "why": "others made its runs"}
    if spec.judged.progress == "steps":
        return found
    by_time = spec.judged.progress == "seconds"
    why = TIMES_ALONE if by_time else SET_UNKNOWN
    no_period = {"epoch_seconds": missing(why), "speedup": None, "efficiency": None} if by_time else {}
    found["cells"] = [{**row, "samples_per_second": missing(why), **no_period} for row in summary["cells"]]
    found["timings"] = [{**row, "steps": None, "examples": None, **no_period} for row in summary["timings"]]
    for row in found["cells"]:
        row.pop("examples", None)
    found["throughput_model"] = found["statistical_efficiency"] = missing(why)
    if by_time:
        found["scaling"] = found["lr_rule"] = missing(why)
    return found
