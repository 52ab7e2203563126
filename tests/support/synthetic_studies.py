"""Shared by the tests of spec, plan, analysis and report: specs from text, and studies with synthetic trials."""

import json
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from scalestudy.experiments.analysis import summarise
from scalestudy.experiments.plan.plan import Plan, make_plan
from scalestudy.experiments.spec.reading import Problem, SpecError, parse_study
from scalestudy.experiments.spec.study_spec import StudySpec
from scalestudy.experiments.study.folder import StudyFolder
from tests.support.trials import Law, make_trials

TINY = """
name: tiny
workload: {model: lenet, data: digits}
train: {epochs: 8}
sweep: {num_gpus: [1, 2], batch_size: [32], learning_rate: [0.1, 0.2]}
targets: {accuracy: [0.8]}
"""
"""A grid of four cells, for what looks at a study of any kind."""


def spec_of(text: str, *overrides: str) -> StudySpec:
    """The spec of a YAML text, indented as the test likes it."""
    return parse_study(textwrap.dedent(text), "study.yaml", overrides)


def problems_of(text: str, *overrides: str) -> list[Problem]:
    """What is wrong with a YAML text."""
    with pytest.raises(SpecError) as caught:
        spec_of(text, *overrides)
    return caught.value.problems


def study_of(
    text: str, law: Law | None = None, *, change: Callable[[dict[str, Any]], object] | None = None, **keywords: Any
) -> tuple[StudySpec, Plan, list[dict[str, Any]]]:
    """A spec, its plan and synthetic trials. change: is made to each trial, in place."""
    spec = spec_of(text)
    plan = make_plan(spec)
    trials = make_trials(plan, law, **keywords)
    for trial in trials if change else ():
        change(trial)
    return spec, plan, trials


def summary_of(text: str, law: Law | None = None, **keywords: Any) -> dict[str, Any]:
    """The summary of synthetic trials."""
    return summarise(*study_of(text, law, **keywords))


def words_of(part: Mapping[str, Any]) -> list[str]:
    """The words of the caveats of a summary or of a choice."""
    return [caveat["words"] for caveat in part["caveats"]]


def strict(part: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a summary, which is plain data that JSON gives back, without NaN."""
    assert json.loads(json.dumps(part, allow_nan=False)) == part
    return part


def folder_of(path: Path, text: str, law: Law | None = None, **keywords: Any) -> StudyFolder:
    """A study's folder with synthetic trials in it."""
    spec, plan, trials = study_of(text, law, **keywords)
    folder = StudyFolder(path)
    folder.create()
    folder.write_plan(plan, path.name, spec.to_yaml())
    for trial in trials:
        folder.append_trial(trial)
    return folder
