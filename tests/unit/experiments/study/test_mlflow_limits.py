"""What MLflow takes, by MLflow's own checks, and that nothing is lost for it."""

import pytest
from mlflow.exceptions import MlflowException
from mlflow.utils import validation

from scalestudy.experiments.study import mlflow_limits
from scalestudy.experiments.study.mlflow_filters import cell_filter
from scalestudy.experiments.study.mlflow_limits import (
    LONGEST_PARAM,
    artifact_folder,
    experiment_name,
    fitted_names,
    fitted_params,
    fitted_text,
)

TAKEN = ["num_gpus", "train.optimizer.name", "a b", "müll", "a/b", "a.b:c-d", ".hidden", "x" * 250]
REFUSED = [
    "New York (city)",
    "a@b",
    "",
    ".",
    "..",
    "..a",
    "/x",
    "a/../b",
    "a//b",
    "a/",
    "./a",
    "tab\tname",
    "line\n",
    "50%",
    "q\"`'",
    "x" * 251,
    "\ud800",
    "a\0b",
    "😀",
    "//",
]


def takes(name):
    try:
        validation._validate_metric_name(name)
        validation._validate_param(name, "1")
        validation._validate_tag(name, "1")
    except MlflowException:
        return False
    return len(name) <= 250


@pytest.mark.parametrize("name", TAKEN)
def test_a_name_that_mlflow_takes_stays(name):
    assert takes(name)
    assert fitted_names([name]) == [name]


@pytest.mark.parametrize("name", REFUSED)
def test_another_gets_one_that_it_takes_the_same_each_time(name):
    [fitted] = fitted_names([name])
    assert fitted != name
    assert takes(fitted)
    assert fitted_names(["before", name])[1] == fitted
    assert fitted_names([name, f"{name}*"])[0] == fitted, "what comes later changes nothing"


def test_a_fitted_name_can_be_read():
    [fitted] = fitted_names(["workload.model_args.New York (city)"])
    assert fitted.startswith("workload.model_args.New York _city_-")


def test_names_that_would_be_one_are_told_apart():
    names = ["a.b", "a.b", "a.b", "A.B", "a@b", "a#b", "x" * 300, "x" * 301, *REFUSED]
    fitted = fitted_names(names)
    assert fitted[0] == "a.b"
    assert len({each.casefold() for each in fitted}) == len(names)
    assert all(map(takes, fitted))


def test_parameters_say_what_differs():
    given = [("lr", 0.1), ("a@b", 1), ("note", "x" * 20_000), ("a@b", None), ("odd", "a\0\ud800")]
    fitted, changes = fitted_params(given)
    assert len(fitted) == len(given)
    assert fitted["lr"] == "0.1"
    assert fitted["note"] == "x" * (LONGEST_PARAM - 1) + "…"
    assert fitted["odd"].encode().isascii()
    assert changes["note"] == "note cut to 6,000 of 20,000 characters"
    assert [words.partition("-")[0] for words in changes.values()] == ["a@b as a_b", changes["note"], "a@b as a_b"]
    for name, value in fitted.items():
        validation._validate_param(name, value)


def test_the_limits_are_mlflow_s():
    assert mlflow_limits.LONGEST_NAME <= validation.MAX_ENTITY_KEY_LENGTH
    assert mlflow_limits.LONGEST_NAME <= validation.MAX_EXPERIMENT_NAME_LENGTH
    assert mlflow_limits.LONGEST_PARAM <= validation.MAX_PARAM_VAL_LENGTH
    assert mlflow_limits.LONGEST_TAG <= validation.MAX_TAG_VAL_LENGTH
    assert mlflow_limits.LONGEST_DATA_NAME <= validation.MAX_DATASET_NAME_SIZE
    assert mlflow_limits.LONGEST_DATA_SOURCE <= validation.MAX_DATASET_SOURCE_SIZE


def test_the_filter_of_a_cell_has_the_names_that_its_runs_have():
    cell = {"num_gpus": 1, "workload.model_args.a`b": "x" * 7_000}
    wanted = cell_filter(cell, "x-1")
    for name, value in fitted_params(cell.items())[0].items():
        assert f"params.`{name}` = '{value}'" in wanted


@pytest.mark.parametrize("text", ["a\0b", "\ud800", "x" * 99])
def test_a_text_is_cut_and_has_nothing_that_a_database_refuses(text):
    fitted = fitted_text(text, 50)
    assert len(fitted) <= 50
    assert "\0" not in fitted
    assert fitted.encode("utf-8")


@pytest.mark.parametrize("name", ["x" * 251, "é" * 600, "a\0", "\ud800"])
def test_an_experiment_gets_a_name_that_every_database_takes(name):
    fitted = experiment_name(name)
    validation._validate_experiment_name(fitted)
    assert len(fitted) <= 250
    assert fitted != experiment_name(f"{name}_") != name
    assert experiment_name("a/../b @ home") == "a/../b @ home"


@pytest.mark.parametrize("name", ["digits", "with space", "a#b?", "50%25", "größer"])
def test_an_experiment_s_folder_has_its_name(name):
    assert artifact_folder(name) == name


@pytest.mark.parametrize("name", [".", "..", "../x", "a/b", "/x", "a/../../b", "😀" * 100, "x" * 250, "a\0b"])
def test_an_experiment_that_can_not_name_a_folder_gets_one_all_the_same(tmp_path, name):
    folder = artifact_folder(name)
    (tmp_path / folder).mkdir()
    assert (tmp_path / folder).resolve().parent == tmp_path
    assert artifact_folder(f"{name}_") != folder
