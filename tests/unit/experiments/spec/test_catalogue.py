"""The studies that come with the package."""

import itertools
import re

import pytest

from scalestudy.experiments.plan.estimate import estimate
from scalestudy.experiments.plan.plan import make_plan
from scalestudy.experiments.spec.reading import SpecError, catalogue, find_study, load_study
from tests.support.project_files import REPOSITORY
from tests.support.synthetic_studies import DATASETS, MODELS


def test_the_catalogue():
    assert catalogue() == [
        "batch-doubled",
        "batch-rate",
        "big-cluster",
        "d2l-lenet",
        "d2l-resnet18",
        "digits-quick",
        "fashion-answer",
        "fashion-factorised",
        "fashion-grid",
        "large-batch",
        "resnet18-rates",
        "strategies",
        "strong-scaling",
        "uneven-devices",
        "weak-scaling",
    ]


def test_the_page_of_the_catalogue_names_every_study():
    lines = (REPOSITORY / "docs" / "catalogue.md").read_text("utf-8").splitlines()
    table = itertools.takewhile(lambda line: line.startswith("|"), lines[lines.index("| catalogue | its question |") :])
    named = [name for line in table for name in re.findall(r"`([\w-]+)`", line.split("|")[1])]
    assert sorted(named) == catalogue()


@pytest.mark.parametrize("name", catalogue())
def test_every_study_loads_and_says_what_it_is_for(name):
    path = find_study(name)
    spec = load_study(path, models=MODELS, datasets=DATASETS)
    assert spec.name == name
    assert spec.description
    assert [line for line in ("# Question:", "# Costs:", "# Look at:") if line not in path.read_text("utf-8")] == []


def test_digits_quick_is_the_grid_of_the_issue():
    plan = make_plan(load_study(find_study("digits-quick"), models=MODELS, datasets=DATASETS))
    assert len(plan.trials) == 16
    assert {trial.num_gpus for trial in plan.trials} == {1, 2}


def points_of(plan):
    """The cells of a plan, as the book writes them."""
    return {(trial.num_gpus, trial.batch_size, trial.learning_rate) for trial in plan.trials}


def test_d2l_lenet_has_the_books_points():
    plan = make_plan(load_study(find_study("d2l-lenet"), models=MODELS, datasets=DATASETS))
    assert points_of(plan) == {(1, 256, 0.2), (2, 256, 0.2), (2, 512, 0.3)}
    assert {trial.seed for trial in plan.trials} == set(range(5))
    assert {trial.train["epochs"] for trial in plan.trials} == {10}
    assert plan.trials[0].workload["model_args"] == {"init": "normal"}


def test_d2l_resnet18_has_the_books_points():
    plan = make_plan(load_study(find_study("d2l-resnet18"), models=MODELS, datasets=DATASETS))
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


def test_the_factorised_study_is_the_grid_but_for_the_search():
    grid, factorised = (
        load_study(find_study(f"fashion-{name}"), models=MODELS, datasets=DATASETS) for name in ("grid", "factorised")
    )
    sections = ("workload", "train", "sweep", "targets", "resources")
    assert all(getattr(grid, section) == getattr(factorised, section) for section in sections)
    assert make_plan(factorised).cells == make_plan(grid).cells
    assert (len(make_plan(grid).trials), len(make_plan(factorised).trials)) == (48, 24)


@pytest.mark.parametrize("name", catalogue())
def test_a_study_has_as_many_trials_as_it_says(name):
    path = find_study(name)
    text = re.sub(r"\n# +", " ", path.read_text("utf-8"))

    def said(what):
        found = re.search(rf"\b(\d+) {what}\b", text)
        return int(found[1]) if found else 0

    plan = make_plan(load_study(path, models=MODELS, datasets=DATASETS))
    assert said("(?:trials|trainings)") == len(plan.trials)
    assert said("held-out trials") == plan.held_out_trials
    assert said("timing runs") == estimate(plan, []).timings


def test_weak_scaling_keeps_the_examples_per_worker():
    plan = make_plan(load_study(find_study("weak-scaling"), models=MODELS, datasets=DATASETS))
    cells = {(trial.num_gpus, trial.batch_size) for trial in plan.trials}
    assert cells == {(1, 64), (2, 128)}
