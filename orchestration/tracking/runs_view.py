"""A study's list of runs on MLflow's pages: its address, and the view of the experiment that the address opens.

MLflow's addresses name a filter and an order, and no columns. Its pages keep those in a view, JSON in a tag of the
experiment, and an address can name the tag. A study's view shows a row a cell, with means over its seeds and its trials
folded below; of cells with one seed, a row a trial. Pure.

MLflow makes those rows from the trials' runs. A run for each cell was rejected: ordered by a metric it stands among its
own trials, and it counts once more in every chart and in each list of an experiment's runs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scalestudy.experiments.analysis.measures.metric import StudyMetric
from scalestudy.experiments.plan.plan import TrialPlan, cell_key
from scalestudy.experiments.spec.study_spec import StudySpec
from scalestudy.experiments.study.mlflow_filters import study_filter
from scalestudy.experiments.study.mlflow_limits import LONGEST_TAG, fitted_names, fitted_text
from scalestudy.orchestration.tracking.run_content import short_label
from scalestudy.training.records import AT_TARGET, CELL_PLACE

CELL = "scalestudy.cell"
"""Tag of a training's run: its cell, with a mark if it is the recommended one. MLflow groups runs by it."""
MARK = "★"
PAGE = {"workflowType": "machine_learning"}
"""Names the pages for model training: a fresh browser shows those for language models. MLflow remembers it."""
VIEW = "mlflow.sharedViewState."
"""Begins the tag of a view; its key follows."""
LONGEST_VIEW = 5_000
"""Characters of a tag of an experiment that every MLflow 3 takes."""
RUN_NAME = "attributes.`Run Name`"
RUN_NAME_PIXELS = 260
"""The width of the column with the cells' names, of which MLflow would show ten characters."""
DIGITS = 16


def cell_text(cell: Mapping[str, Any], recommended: Mapping[str, Any] | None = None) -> str:
    """Return the value of the tag CELL: `w4 b128 lr.2`, and `★ w4 b128 lr.2` of the recommended cell."""
    text = short_label(cell)
    is_best = recommended is not None and cell_key(cell) == cell_key(recommended)
    return fitted_text(f"{MARK} {text}" if is_best else text, LONGEST_TAG)


def view_tag(study_id: str) -> str:
    """Return the experiment's tag that holds a study's view. The id itself may have letters that no tag takes."""
    return f"{VIEW}{hashlib.sha256(study_id.encode()).hexdigest()[:DIGITS]}"


def query_of(spec: StudySpec, study_id: str, tags: Mapping[str, str]) -> dict[str, str]:
    """Return the query of the address of a study's list.

    tags: of the experiment. Without the study's view, as of one that has not begun, filter and order stand in the
    address: MLflow opens no view whose address has them.
    """
    tag = view_tag(study_id)
    if tag in tags:
        return {**PAGE, "viewStateShareKey": tag.removeprefix(VIEW)}
    state = _soonest_first(spec, study_id)
    return {**PAGE, **state, "orderByAsc": str(state["orderByAsc"]).lower()}


def view_of(
    spec: StudySpec, study_id: str, trials: Iterable[TrialPlan], at: int, cells: Sequence[str] | None = None
) -> str:
    """Return the content of a study's view.

    Args:
        spec: the study's.
        study_id: the view is listed by it.
        trials: of the study, as far as they are known.
        at: when it is made, in milliseconds since 1970.
        cells: values of the tag CELL, the recommended cell first, once runs have their CELL_PLACE; None: the soonest
            run comes first.
    """
    trainings = [trial for trial in trials if trial.kind == "training"]
    texts = list(dict.fromkeys(cell_text(trial.cell) for trial in trainings))
    state = _soonest_first(spec, study_id)
    figures = [_column("metrics", _at_target(spec)), _column("metrics", StudyMetric.of(spec.workload).best_key)]
    columns = [*dict.fromkeys(figures), *(_column("params", key) for key in _differing(trainings))]
    if cells is not None:
        state |= {"orderByKey": _column("metrics", CELL_PLACE), "orderByAsc": True}
    if len(texts) == len(trainings):
        columns = [_column("tags", CELL), *columns]
    else:
        group = {"mode": "tag", "groupByData": CELL}
        state["groupBy"] = {"aggregateFunction": "average", "groupByKeys": [group]}
        state["columnWidths"] = {RUN_NAME: RUN_NAME_PIXELS}
    state |= {"selectedColumns": columns, "columnOrder": [RUN_NAME, *columns], "groupsExpanded": {}}

    def whole() -> str:
        return json.dumps({"name": study_id, "createdAt": at, "updatedAt": at, "state": json.dumps(state)})

    view = whole()
    for text in (cells if cells is not None else texts) if "groupBy" in state else ():
        state["groupsExpanded"][f"tag.{CELL}.{text}"] = False
        if len(longer := whole()) > LONGEST_VIEW:
            break  # the cells from here on are unfolded
        view = longer
    return view


def _soonest_first(spec: StudySpec, study_id: str) -> dict[str, Any]:
    """Return filter and order: the soonest at the hardest target first, or the best. By default MLflow folds trials."""
    ascending = bool(spec.targets.accuracy) or StudyMetric.of(spec.workload).mode == "min"
    order = _column("metrics", _at_target(spec))
    return {"searchFilter": study_filter(study_id), "orderByKey": order, "orderByAsc": ascending}


def _at_target(spec: StudySpec) -> str:
    """Return the metric by which runs are compared."""
    hardest = spec.hardest_target
    return StudyMetric.of(spec.workload).best_key if hardest is None else AT_TARGET.format(hardest)


def _differing(trials: Sequence[TrialPlan]) -> list[str]:
    """Return the parameters of cells that differ, by their names in MLflow."""
    keys = list(dict.fromkeys(key for trial in trials for key in trial.params))
    names = dict(zip(keys, fitted_names(keys), strict=True))
    return [names[key] for key in keys if key != "seed" and len({str(trial.params.get(key)) for trial in trials}) > 1]


def _column(kind: str, name: str) -> str:
    return f"{kind}.`{name}`"
