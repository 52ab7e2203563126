"""Whatever became of the trials and their records: parts that are missing say why, and nothing raises."""

import copy
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalestudy.experiments.analysis import recommend
from scalestudy.experiments.analysis.answers.comparison import compared_laws, law_lines
from scalestudy.experiments.analysis.answers.efficiency import statistical_efficiency, tunings
from scalestudy.experiments.analysis.answers.lr_rule import lr_rule
from scalestudy.experiments.analysis.measures.cells import gather
from scalestudy.experiments.analysis.measures.metric import StudyMetric
from scalestudy.experiments.analysis.measures.parts import present
from tests.support.batch_summaries import study

SMALL = {"batches": "[64, 128, 256]", "rates": "[0.05, 0.1, 0.2, 0.4, 0.8]", "seeds": "[0, 1]", "epochs": 12}


def check(spec, plan, trials):
    """Strict JSON, and a why beside all that is missing."""
    metric = StudyMetric.of(spec.workload)
    recommendation = recommend(plan, trials, metric=metric, targets=spec.targets.accuracy)
    found = tunings(spec, gather(plan, trials, metric), recommendation)
    parts = {
        "statistical_efficiency": statistical_efficiency(spec, found),
        "lr_rule": lr_rule(spec, found),
        "recommendation": recommendation,
    }
    assert json.loads(json.dumps(parts, allow_nan=False)) == parts
    for name, keys in (
        ("statistical_efficiency", ("s_min", "b_crit", "e_min", "noise_scale")),
        ("lr_rule", ["exponent"]),
    ):
        part = parts[name]
        if not present(part):
            assert part["why"]
            continue
        for key in keys:
            assert part[key]["value"] is not None or part[key]["why"]
            assert part[key].get("identified", True) or part[key]["why"]
    for row in ("fastest", "cheapest", "knee", metric.choice_key):
        assert recommendation[row].get("why") or isinstance(recommendation[row]["caveats"], list)
    law_lines(compared_laws({"a": parts, "b": parts}))
    return parts


def test_one_trial():
    parts = check(*study(batches="[256]", rates="[0.4]", seeds="[0]"))
    assert "needs 3" in parts["statistical_efficiency"]["why"]
    assert "needs 3" in parts["lr_rule"]["why"]


@pytest.mark.parametrize("ending", ["diverged", "out_of_memory", "failed", "skipped", "stopped"])
def test_every_trial_ended_so(ending):
    check(*study(**SMALL, endings={"*": ending}))


def test_no_target_was_reached():
    parts = check(*study(**SMALL, targets="[0.999]"))
    assert "no batch size reached a target" in parts["statistical_efficiency"]["why"]
    assert parts["lr_rule"]["target_or_metric"] == "test accuracy after the last epoch"


def test_a_metric_of_which_less_is_better():
    parts = check(*study(**SMALL, targets="[0.2]", more="workload: {metric: mse, metric_mode: min}"))
    assert parts["statistical_efficiency"]["points"][0]["steps"]
    assert parts["lr_rule"]["target_or_metric"] == "soonest to 0.2 test mse"


def test_random_points_each_a_batch_size_of_its_own():
    check(*study(**{**SMALL, "batches": "[32, 48, 64, 96, 128, 192, 256]", "rates": "[0.1]", "seeds": "[0]"}))


VALUES = st.sampled_from([None, -1.0, 0, 0.0, 1e308, 1e-308, 1e17, "x", [], {}, float("nan"), float("inf")])
FIELDS = st.sampled_from(
    ["train_seconds", "test_accuracy", "steps", "samples", "grad_sq_norm", "grad_trace_cov", "@epochs", "@status"]
)
SPEC, PLAN, TRIALS = study(**SMALL)


@settings(max_examples=60)
@given(st.lists(st.tuples(FIELDS, VALUES, st.floats(0.1, 1)), max_size=4), st.integers(0, 1000))
def test_damaged_records_never_raise(damages, seed):
    trials, generator = copy.deepcopy(TRIALS), random.Random(seed)
    for field, value, share in damages:
        for trial in trials:
            if generator.random() > share:
                continue
            if field == "@epochs":
                trial["epochs"] = generator.choice([None, [], trial["epochs"] and trial["epochs"][:2]])
            elif field == "@status":
                trial["status"] = generator.choice(["diverged", "failed", "stopped", "out_of_memory"])
            else:
                for epoch in trial["epochs"] or ():
                    epoch[field] = value
    check(SPEC, PLAN, trials)
