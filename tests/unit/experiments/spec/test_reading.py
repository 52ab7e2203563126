"""Specs from the catalogue, from a file with overrides, and from the template."""

import functools
import itertools
import re

import pytest
import yaml

from scalestudy.experiments.plan.plan import make_plan
from scalestudy.experiments.spec.reading import (
    SpecError,
    catalogue,
    find_study,
    load_study,
    new_spec,
    new_spec_from,
    parse_study,
)
from scalestudy.experiments.spec.sections import leaf_keys
from scalestudy.experiments.spec.study_spec import StudySpec
from tests.support.project_files import REPOSITORY
from tests.support.synthetic_studies import spec_of


def test_the_catalogue():
    assert catalogue() == [
        "batch-doubled",
        "batch-rate",
        "big-cluster",
        "d2l-lenet",
        "d2l-resnet18",
        "digits-quick",
        "fashion-answer",
        "fashion-grid",
        "large-batch",
        "resnet18-rates",
        "strategies",
        "strong-scaling",
        "uneven-devices",
        "weak-scaling",
    ]


def test_the_page_of_the_catalogue_names_every_study():
    lines = (REPOSITORY / "docs" / "keys.md").read_text("utf-8").splitlines()
    table = itertools.takewhile(lambda line: line.startswith("|"), lines[lines.index("| catalogue | its question |") :])
    named = [name for line in table for name in re.findall(r"`([\w-]+)`", line.split("|")[1])]
    assert sorted(named) == catalogue()


@pytest.mark.parametrize("name", catalogue())
def test_every_study_loads_and_says_what_it_is_for(name):
    path = find_study(name)
    spec = load_study(path)
    assert spec.name == name
    assert spec.description
    assert [line for line in ("# Question:", "# Costs:", "# Look at:") if line not in path.read_text("utf-8")] == []


def test_digits_quick_is_a_grid_of_one_and_two_workers():
    plan = make_plan(load_study(find_study("digits-quick")))
    assert len(plan.trials) == 16
    assert {trial.num_gpus for trial in plan.trials} == {1, 2}


def points_of(plan):
    """The cells of a plan, as the book writes them."""
    return {(trial.num_gpus, trial.batch_size, trial.learning_rate) for trial in plan.trials}


def test_d2l_lenet_has_the_books_points():
    plan = make_plan(load_study(find_study("d2l-lenet")))
    assert points_of(plan) == {(1, 256, 0.2), (2, 256, 0.2), (2, 512, 0.3)}
    assert {trial.seed for trial in plan.trials} == set(range(5))
    assert {trial.train["epochs"] for trial in plan.trials} == {10}
    assert plan.trials[0].workload["model_args"] == {"init": "normal"}


def test_d2l_resnet18_has_the_books_points():
    plan = make_plan(load_study(find_study("d2l-resnet18")))
    assert points_of(plan) == {(1, 256, 0.1), (2, 512, 0.2)}
    assert {trial.seed for trial in plan.trials} == set(range(5))
    assert plan.trials[0].workload["model_args"] == {"init": "normal"}


def test_a_path_is_taken_as_it_is(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine")
    assert find_study(str(path)) == path


@pytest.mark.parametrize("name", ["digits-quik", "nothing/there.yaml", "", "a\0b", "x" * 5000])
def test_neither_file_nor_study_lists_the_catalogue(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpecError, match="digits-quick"):
        find_study(name)


@pytest.mark.parametrize("name", catalogue())
def test_a_study_has_as_many_trials_as_it_says(name):
    path = find_study(name)
    text = re.sub(r"\n# +", " ", path.read_text("utf-8"))

    def said(what):
        found = re.search(rf"\b(\d+) {what}\b", text)
        return int(found[1]) if found else 0

    plan = make_plan(load_study(path))
    assert said("(?:trials|trainings)") == len(plan.trials)
    assert said("places") == (plan.to_suggest.points if plan.to_suggest else 0)


def test_weak_scaling_keeps_the_examples_per_worker():
    plan = make_plan(load_study(find_study("weak-scaling")))
    cells = {(trial.num_gpus, trial.batch_size) for trial in plan.trials}
    assert cells == {(1, 64), (2, 128)}


# --- a file and its overrides -----------------------------------------------------------------------------------------


def load(path, *overrides):
    return load_study(path, overrides)


def test_overrides_replace_values_and_make_sections():
    spec = spec_of(
        "name: x\ntrain: {epochs: 3}",
        "train.epochs=4",
        "sweep.num_gpus=[1, 2]",
        "sweep.train.gradient_sync=[ddp, naive]",
        "workload.model_args.init=xavier",
        "train.gradient_clip=1e-3",
    )
    assert (spec.train.epochs, spec.train.gradient_clip) == (4, 0.001)
    assert spec.sweep.lists()["train.gradient_sync"] == ("ddp", "naive")
    assert spec.workload.model_args == {"init": "xavier"}


def test_a_file_that_is_no_spec(tmp_path):
    cases = {
        "empty.yaml": (b"", "is empty"),
        "comment.yaml": (b"# nothing\n", "is empty"),
        "list.yaml": (b"- 1\n", "not a mapping"),
        "words.yaml": (b"hello\n", "not a mapping"),
        "latin.yaml": ("name: é".encode("latin-1"), "not UTF-8"),
        "binary.yaml": (bytes(range(8)) * 10, "not YAML"),
        "big.yaml": (b"#" * 1_000_001, "larger than 1 MB"),
    }
    for name, (content, piece) in cases.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(SpecError, match=piece) as caught:
            load(tmp_path / name)
        assert str(caught.value).startswith(str(tmp_path / name))
    with pytest.raises(SpecError, match=r"nothing.yaml: can't be read \(No such file"):
        load(tmp_path / "nothing.yaml")
    with pytest.raises(SpecError, match="is a folder"):
        load(tmp_path)


def test_a_byte_order_mark_is_no_problem(tmp_path):
    (tmp_path / "bom.yaml").write_bytes(b"\xef\xbb\xbfname: x\n")
    assert load(tmp_path / "bom.yaml").name == "x"


# --- the spec that `scalestudy new` writes ----------------------------------------------------------------------------


OWN = ("name", "description", "sweep")


def read_new(name):
    return parse_study(new_spec(name), f"{name}.yaml")


def test_what_it_says_are_the_defaults():
    spec, default = read_new("mine").to_dict(), parse_study("name: mine", "x").to_dict()
    assert spec["name"] == "mine"
    for key in OWN:
        del spec[key], default[key]
    assert spec == default


def test_every_key_is_in_it():
    assert set(_paths(yaml.safe_load(new_spec("mine")))) == {*leaf_keys(StudySpec, "")} - {"sweep.points", "judged"}


def _paths(section, prefix=""):
    for key, value in section.items():
        path = f"{prefix}{key}"
        yield from _paths(value, f"{path}.") if isinstance(value, dict) and value else [path]


@pytest.mark.parametrize("name", ["123", "null", "1e5", "yes", "a.b-c_D"])
def test_any_name_of_a_folder_will_do(name):
    assert read_new(name).name == name
    assert f"scalestudy run {name}.yaml" in new_spec(name)


@pytest.mark.parametrize("make", [new_spec, functools.partial(new_spec_from, "digits-quick")])
def test_a_name_that_can_name_no_folder_is_refused(make):
    with pytest.raises(SpecError, match=r"^../up.yaml:\d+: name: \"../up\" can't name a folder; use letters"):
        make("../up")
