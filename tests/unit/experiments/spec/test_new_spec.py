"""The spec that `scalestudy new` writes: every key is in it, and says its default."""

import pytest
import yaml

from scalestudy.experiments.spec.reading import BUILT_IN, SpecError, new_spec, parse_study
from scalestudy.experiments.spec.sections import leaf_keys
from scalestudy.experiments.spec.study_spec import StudySpec

OWN = ("name", "description", "sweep")


def read(name):
    return parse_study(new_spec(name), f"{name}.yaml", **BUILT_IN)


def test_what_it_says_are_the_defaults():
    spec, default = read("mine").to_dict(), parse_study("name: mine", "x", **BUILT_IN).to_dict()
    assert spec["name"] == "mine"
    for key in OWN:
        del spec[key], default[key]
    assert spec == default


def test_every_key_is_in_it():
    assert set(_paths(yaml.safe_load(new_spec("mine")))) == {*leaf_keys(StudySpec, "")} - {"sweep.points"}


def _paths(section, prefix=""):
    for key, value in section.items():
        path = f"{prefix}{key}"
        yield from _paths(value, f"{path}.") if isinstance(value, dict) and value else [path]


@pytest.mark.parametrize("name", ["123", "null", "1e5", "yes", "a.b-c_D"])
def test_any_name_of_a_folder_will_do(name):
    assert read(name).name == name
    assert f"scalestudy run {name}.yaml" in new_spec(name)


@pytest.mark.parametrize("name", ["", "../up", "a b", "a\nb: 1", "-x", "x" * 65])
def test_a_name_that_is_no_folder_s_is_refused(name):
    with pytest.raises(SpecError, match="can't name a folder"):
        new_spec(name)
