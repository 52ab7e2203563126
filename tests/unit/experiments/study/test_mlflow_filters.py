"""Filters that name a study's runs, and those of a cell."""

import pytest

from scalestudy.experiments.study.mlflow_filters import cell_filter, study_filter


@pytest.mark.parametrize(("study_id", "clause"), [("a-1", "'a-1'"), ("bob's", '"bob\'s"')])
def test_the_filter_of_a_study(study_id, clause):
    assert study_filter(study_id) == f"tags.`scalestudy.study_id` = {clause}"


@pytest.mark.parametrize(
    ("init", "clause"),
    [("plain", "'plain'"), ("it's", '"it\'s"'), (["a"], "\"['a']\""), ("both ' and \"", None)],
)
def test_a_value_with_quotation_marks_is_written_or_refused(init, clause):
    wanted = f"params.`num_gpus` = '1' and params.`train.init` = {clause} and {study_filter('x-1')}"
    assert cell_filter({"num_gpus": 1, "train.init": init}, "x-1") == (wanted if clause else None)
