"""A spec given in Python: what becomes of callables, and which are refused."""

import functools
from pathlib import Path

import numpy as np
import pytest

from scalestudy.experiments.spec.spec_error import SpecError
from scalestudy.orchestration.study.callables import import_path, modules_of, plain_spec
from scalestudy.orchestration.study.folders import read_spec
from scalestudy.training.registry import METRICS, resolve
from tests.support import user_models

SPEC = {
    "name": "in-python",
    "train": {"epochs": 2},
    "sweep": {"num_gpus": [1], "batch_size": (32, 64), "learning_rate": np.array([0.1, 0.2])},
    "tracking": {"uri": "postgresql://me:secret@host/mlflow"},
    "storage": Path("elsewhere"),
}


def build(num_classes, in_channels):
    """A model's callable that any process can import."""


class Nested:
    @staticmethod
    def build(num_classes, in_channels):
        """Not at the top of its module."""


def test_a_callable_becomes_its_import_path_and_a_built_in_its_name():
    assert import_path(build, "workload.model") == f"{__name__}:build"
    assert import_path(resolve("accuracy", METRICS), "workload.metric") == "accuracy"
    spec = read_spec({**SPEC, "workload": {"model": build, "metric": resolve("accuracy", METRICS)}})
    assert (spec.workload.model, spec.workload.metric) == (f"{__name__}:build", "accuracy")
    assert resolve(spec.workload.model, {}) is build


def local():
    def inner(num_classes, in_channels):
        """Of a function."""

    return inner


def of_a_session():
    names = {"__name__": "__main__"}
    exec("def build(num_classes, in_channels): ...", names)
    return names["build"]


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (of_a_session(), "__main__:build"),
        (lambda num_classes, in_channels: None, "is a lambda"),
        (local(), "is defined inside a function"),
        (functools.partial(build, 10), "has no name"),
        (Nested.build, "is not what its module has under that name"),
        (functools.wraps(build)(lambda *_: None), "is not what its module has under that name"),
    ],
)
def test_what_workers_cannot_import_is_refused_with_the_way_out(function, why):
    with pytest.raises(SpecError) as refused:
        read_spec({**SPEC, "workload": {"model": function}})
    (problem,) = refused.value.problems
    assert problem.field == "workload.model"
    assert why in str(refused.value)
    assert "%%writefile my_model.py" in problem.remedy


def test_lists_arrays_and_paths_are_plain_data():
    plain = plain_spec(SPEC)
    assert plain["sweep"] == {"num_gpus": [1], "batch_size": [32, 64], "learning_rate": [0.1, 0.2]}
    spec = read_spec(SPEC)
    assert (spec.sweep.batch_size, spec.storage) == ((32, 64), "elsewhere")


def test_a_dict_is_checked_as_a_file_is_and_stays_as_it_was():
    given = {"name": "x", "train": {"epoch": 2}, "sweep": {"num_gpus": [0]}}
    with pytest.raises(SpecError) as refused:
        read_spec(given)
    assert {problem.field for problem in refused.value.problems} == {"train.epoch", "sweep.num_gpus"}
    assert all(problem.line is None for problem in refused.value.problems)
    with pytest.raises(SpecError, match="lenett"):
        read_spec({"name": "x", "workload": {"model": "lenett"}})
    given = {"name": "x", "train": {"epochs": 2}}
    assert read_spec(given, ["train.epochs=3"]).train.epochs == 3
    assert given == {"name": "x", "train": {"epochs": 2}}


def test_a_spec_comes_back_as_it_is_with_its_password_and_takes_overrides():
    spec = read_spec(SPEC)
    assert read_spec(spec) == spec
    assert spec.tracking.uri == SPEC["tracking"]["uri"]
    assert read_spec(spec, ["sweep.seed=[0, 1]"]).sweep.seed == (0, 1)


def test_the_modules_of_a_study_are_those_of_its_own_callables_each_once():
    workload = {"model": "mine.nets:build", "data": "mine.data:load", "loss": "mine.nets:loss", "metric": "accuracy"}
    own = {**SPEC, "workload": workload, "train": {"schedule": "rates:sawtooth", "optimizer": {"name": "rates:Lion"}}}
    assert modules_of(read_spec(own)) == ("mine.nets", "mine.data", "rates")
    assert modules_of(read_spec({**SPEC, "workload": {"model": "torchvision:resnet18"}})) == ()


def test_a_module_that_an_argument_alone_names_is_imported_before_the_first_trial_too():
    """What importing it sets holds in every trial, as in a fresh process; the fingerprint has it as well."""
    arguments = {"model_args": {"layers": [{"norm": "mine.norms:Rms"}]}, "data_args": {"augment": "flips:both"}}
    own = {**SPEC, "workload": {"model": "mine.nets:build", "data": "mine.data:load", **arguments}}
    own["sweep"] = {**SPEC["sweep"], "workload.model_args.act": ["gelu", "mine.acts:swish"]}
    assert set(modules_of(read_spec(own))) == {"mine.nets", "mine.norms", "mine.data", "flips", "mine.acts"}


def test_a_class_is_a_callable_too():
    name = next(name for name, value in vars(user_models).items() if isinstance(value, type))
    found = getattr(user_models, name)
    assert import_path(found, "workload.model") == f"{found.__module__}:{name}"
