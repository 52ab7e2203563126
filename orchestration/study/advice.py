"""What to choose by a study's records: for `scalestudy recommend` and for the result of `run_study`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from scalestudy.experiments.analysis.measures.metric import StudyMetric
from scalestudy.experiments.plan.plan import Plan
from scalestudy.experiments.spec.study_spec import StudySpec
from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.orchestration.base.errors import RequestError
from scalestudy.orchestration.study.folders import readable, spec_of

WISHES = ("target", "max_gpus", "price", "tolerance", "by")
BY = ("time", "cost")


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What to choose by a study's records."""

    data: dict[str, Any]  # for --json
    lines: list[str]  # in words, as the command prints them
    role: str  # role of the requested cell: recommended, fastest or cheapest
    spec: StudySpec  # the study's, with the target, price and tolerance of the request
    plan: Plan
    study_id: str

    def __str__(self) -> str:
        return "\n".join(self.lines)


def advise(
    folder: StudyFolder,
    *,
    target: float | None = None,
    max_gpus: int | None = None,
    price: float | None = None,
    tolerance: float | None = None,
    by: str | None = None,
    next_count: int | None = None,
    names: Mapping[str, str] | None = None,
) -> Advice:
    """Return what to choose by a study's records.

    Adds to what `analysis.recommend` gives: `predictions` (the summary's, for the target that is answered, up to
    max_gpus), `study` (the num_gpus that were measured, the device) and `caveats` on all of it, as in the summary.

    target: of whatever metric the study has. next_count: adds `next`, so many trainings that would tell most about the
    answer (`next_trainings`). names: what an error calls an argument, if not by its name. Raises
    RequestError for a request that can't be met, or for records that can't be read.
    """
    # these load SciPy, which a study that starts does not need
    from scalestudy.experiments.analysis.answers.analysis import Analysis, asked
    from scalestudy.experiments.analysis.answers.next_trainings import next_trainings
    from scalestudy.experiments.analysis.answers.predictions import MOST_WORKERS
    from scalestudy.experiments.analysis.answers.recommendation import ROLE_BY, By
    from scalestudy.experiments.analysis.measures.parts import present
    from scalestudy.experiments.analysis.measures.usable import versions_caveat
    from scalestudy.experiments.analysis.text.sentences import recommendation_lines

    called = {**{wish: wish for wish in WISHES}, **(names or {})}
    if max_gpus is not None and max_gpus < 1:
        raise RequestError(f"{called['max_gpus']}: {max_gpus}: is not a number of workers", "give 1 or more")
    if price is not None and not 0 <= price < float("inf"):
        raise RequestError(f"{called['price']}: {price}: is not a price", "give the price of a GPU-hour, 0 or more")
    if tolerance is not None and not 0 <= tolerance < float("inf"):
        raise RequestError(
            f"{called['tolerance']}: {tolerance}: is not a share", "give 0 or more, such as 0.1 for 10 %"
        )
    if by is not None and by not in BY:
        raise RequestError(f"{called['by']}: {by}: is not known", f"choose {' or '.join(BY)}")
    with readable(folder):
        spec = spec_of(folder)
        plan, trials = folder.read_plan(), folder.read_trials()
    metric = StudyMetric.of(spec.workload)
    if target is not None:
        if metric.share and not 0 < target <= 1:
            raise RequestError(
                f"{called['target']}: {target}: is not a share", "give one above 0 and up to 1, such as 0.95"
            )
        if not math.isfinite(target):
            raise RequestError(f"{called['target']}: {target}: is not a number", f"give a {metric.title} to reach")
    analysis = Analysis(asked(spec, accuracy=target, price=price, tolerance=tolerance), plan, trials)
    advice = analysis.recommend(max_gpus=max_gpus, by=cast(By, by))
    advice["predictions"] = analysis.predict(advice, most_workers=max_gpus or MOST_WORKERS)
    choice = advice["choice"]
    measured = sorted({cell["num_gpus"] for cell in plan.cells})
    advice["study"] = {"num_gpus": measured, "device": choice.get("device")}
    versions = versions_caveat(analysis.trials)
    advice["caveats"] = [{"kind": "versions", "words": versions}] if versions else []
    if next_count is not None:
        advice["next"] = next_trainings(analysis, advice, next_count, max_gpus=max_gpus, by_cost=by == "cost")
    lines = recommendation_lines(advice)
    if by is not None and present(advice["fastest"]):  # else the best metric decides, and nothing is least
        lines = [f"Choose {choice['label']} (least {by}).", *lines]
    return Advice(
        data=advice, lines=lines, role=ROLE_BY[cast(By, by)], spec=analysis.spec, plan=plan, study_id=folder.study_id
    )
