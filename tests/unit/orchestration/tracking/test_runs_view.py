"""What MLflow's pages show of a study."""

import json

import pytest

from scalestudy.orchestration.tracking.runs_view import CELL, LONGEST_VIEW, cell_text, view_of, view_tag
from tests.support.synthetic_studies import TINY, study_of

SEEDS = TINY.replace("learning_rate: [0.1, 0.2]", "learning_rate: [0.1, 0.2], seed: [0, 1]")
AT = 1_769_860_800_125
FIGURES = ["metrics.`at_0.8_seconds`", "metrics.`best_test_accuracy`"]
DIFFERING = ["params.`num_gpus`", "params.`learning_rate`"]


def view(text, cells=None):
    """The view of a study's text: what MLflow lists it by, and its state."""
    spec, plan, _ = study_of(text)
    found = json.loads(view_of(spec, "tiny-1", plan.trials, AT, cells))
    return found, json.loads(found["state"])


def test_cells_of_one_seed_are_a_row_a_trial_with_what_differs_in_columns():
    listed, state = view(TINY)
    assert (listed["name"], listed["createdAt"], listed["updatedAt"]) == ("tiny-1", AT, AT)
    assert state["searchFilter"] == "tags.`scalestudy.study_id` = 'tiny-1'"
    assert (state["orderByKey"], state["orderByAsc"]) == ("metrics.`at_0.8_seconds`", True)
    assert state["selectedColumns"] == [f"tags.`{CELL}`", *FIGURES, *DIFFERING]
    assert "groupBy" not in state
    assert state["groupsExpanded"] == {}


def test_cells_of_several_seeds_are_a_row_each_with_means_and_their_trials_folded_below():
    _, state = view(SEEDS)
    assert state["selectedColumns"] == [*FIGURES, *DIFFERING]
    assert state["groupBy"]["aggregateFunction"] == "average"
    assert state["groupBy"]["groupByKeys"] == [{"mode": "tag", "groupByData": CELL}]
    names = ("w1 b32 lr.1", "w1 b32 lr.2", "w2 b32 lr.1", "w2 b32 lr.2")
    assert state["groupsExpanded"] == {f"tag.{CELL}.{name}": False for name in names}


def test_an_ended_study_s_cells_are_in_its_own_order():
    _, state = view(SEEDS, ["★ w2 b32 lr.2", "w1 b32 lr.2"])
    assert (state["orderByKey"], state["orderByAsc"]) == ("metrics.`cell_place`", True)
    assert list(state["groupsExpanded"]) == [f"tag.{CELL}.{name}" for name in ("★ w2 b32 lr.2", "w1 b32 lr.2")]


def test_without_a_target_a_column_is_there_once():
    assert view(TINY.replace("[0.8]", "[]"))[1]["selectedColumns"] == [f"tags.`{CELL}`", FIGURES[1], *DIFFERING]


def test_of_many_cells_the_first_are_folded_and_the_view_fits():
    rates = [round(0.001 * number, 3) for number in range(1, 301)]
    spec, plan, _ = study_of(SEEDS.replace("[0.1, 0.2]", str(rates)))
    cells = [cell_text(cell) for cell in reversed(plan.cells)]
    text = view_of(spec, "tiny-1", plan.trials, AT, cells)
    assert LONGEST_VIEW - 100 < len(text) <= LONGEST_VIEW
    folded = list(json.loads(json.loads(text)["state"])["groupsExpanded"])
    assert folded == [f"tag.{CELL}.{cell}" for cell in cells[: len(folded)]]


@pytest.mark.parametrize("study_id", ["tiny-20260131T120000Z", "a`b 'c' \"d\"", "naïve", "x" * 500])
def test_any_study_has_a_tag_of_its_own_that_mlflow_takes(study_id):
    from mlflow.utils.validation import _validate_tag_name

    _validate_tag_name(view_tag(study_id))
    assert view_tag(study_id) != view_tag(f"{study_id}.")


def test_only_the_recommended_cell_has_a_mark():
    cell = {"num_gpus": 4, "batch_size": 128, "learning_rate": 0.8}
    assert cell_text(cell, dict(reversed(cell.items()))) == "★ w4 b128 lr.8"
    assert cell_text(cell, {**cell, "num_gpus": 2}) == cell_text(cell) == "w4 b128 lr.8"
