"""Ranges in the sweep."""

import pytest

from scalestudy.experiments.spec.sections import Range
from scalestudy.experiments.spec.study_spec import StudySpec
from tests.support.synthetic_studies import spec_of

RATE = "learning_rate: {log_uniform: [0.01, 1]}"


def test_ranges_are_kept_as_written_and_read_back_equal():
    others = "batch_size: {uniform: [32, 512]}, train.optimizer.momentum: {uniform: [0, 0.9]}"
    spec = spec_of(f"name: x\nsweep: {{{RATE}, {others}}}\nsearch: {{method: random}}")
    assert spec.sweep.ranges() == {
        "batch_size": Range(kind="uniform", low=32, high=512),
        "learning_rate": Range(kind="log_uniform", low=0.01, high=1.0),
        "train.optimizer.momentum": Range(kind="uniform", low=0.0, high=0.9),
    }
    assert spec.sweep.lists() == {"num_gpus": (1,), "seed": (0,)}
    assert spec.to_dict()["sweep"]["learning_rate"] == {"log_uniform": [0.01, 1.0]}
    assert spec_of(spec.to_yaml()) == spec == StudySpec.model_validate(spec.to_dict())


@pytest.mark.parametrize("method", ["random", "tpe"])
@pytest.mark.parametrize(
    "key", ["num_gpus", "batch_size", "train.epochs", "train.accumulation", "train.base_batch_size"]
)
def test_whole_numbers_may_have_ranges(method, key):
    text = f"name: x\nsweep: {{{key}: {{log_uniform: [2, 8]}}}}\nsearch: {{method: {method}}}"
    assert spec_of(text).sweep.ranges()[key].whole


@pytest.mark.parametrize(("bounds", "whole"), [("0, 4", True), ("0, 0.5", False), ("0.5, 4", False)])
def test_the_range_of_an_argument_is_whole_if_both_bounds_are(bounds, whole):
    swept = f"{{workload.model_args.a: {{uniform: [{bounds}]}}}}"
    spec = spec_of(f"name: x\nsweep: {swept}\nsearch: {{method: random}}")
    assert spec.sweep.ranges()["workload.model_args.a"].whole is whole
    assert spec_of(spec.to_yaml()) == spec
