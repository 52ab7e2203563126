"""The study's metric – accuracy or another, more or less of it better."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalestudy.experiments.analysis.measures.metric import ACCURACY, StudyMetric
from scalestudy.experiments.analysis.measures.units import setting_text
from scalestudy.experiments.spec.reaching import meets
from scalestudy.training.config import Workload
from tests.support.synthetic_studies import summary_of
from tests.support.trials import Law

MSE = StudyMetric(name="mse", mode="min", share=False)
RISING = (
    "name: x\ntrain: {epochs: 8}\ntargets: {accuracy: [0.25, 0.75, 0.9375], price_per_gpu_hour: 2}\n"
    "sweep: {num_gpus: [1, 2, 4], batch_size: [32, 128], learning_rate: [0.1, 0.2], seed: [0, 1]}\n"
)
FALLING = RISING.replace("[0.25, 0.75, 0.9375]", "[0.75, 0.25, 0.0625]") + (
    "workload: {metric: mse, metric_mode: min}\n"
)
"""The same study, told by 1 minus its accuracy."""
LAW = Law(learning=130)


def test_the_metric_of_a_spec():
    assert StudyMetric.of(Workload()) == ACCURACY
    assert StudyMetric.of(Workload.model_construct(metric="mse", metric_mode="min")) == MSE
    mine = StudyMetric.of(Workload.model_construct(metric="my.package:top_5", metric_mode="max"))
    assert mine == StudyMetric(name="top_5", mode="max", share=False)
    assert StudyMetric(**mine.to_dict()) == mine


def test_a_user_s_own_accuracy_may_be_in_per_cent():
    mine = StudyMetric.of(Workload.model_construct(metric="mine:accuracy", metric_mode="max"))
    assert (mine.key, mine.text(93.25, 4)) == ("test_accuracy", "93.25")


def test_names():
    assert (ACCURACY.key, ACCURACY.best_key, ACCURACY.choice_key, ACCURACY.time_key(0.85)) == (
        "test_accuracy",
        "best_test_accuracy",
        "best_accuracy",
        "time_to_accuracy_0.85",
    )
    assert (MSE.key, MSE.best_key, MSE.time_key(0.01)) == ("test_mse", "best_test_mse", "time_to_mse_0.01")
    assert (MSE.title, MSE.named("0.1"), ACCURACY.named("0.1")) == ("test mse", "0.1 test mse", "0.1")


def test_which_way_is_better():
    assert ACCURACY.better(0.9, 0.8)
    assert not ACCURACY.better(0.8, 0.8)
    assert MSE.better(0.8, 0.9)
    assert not MSE.better(0.8, 0.8)
    assert (ACCURACY.best([1.0, 3.0, 2.0]), MSE.best([3.0, 1.0, 2.0]), MSE.best([])) == (3.0, 1.0, None)


@given(st.lists(st.floats(-1e9, 1e9), min_size=1), st.sampled_from([ACCURACY, MSE]))
def test_nothing_beats_the_best_and_an_easier_target_is_met_first(values, metric):
    best = metric.best(values)
    assert not any(metric.better(value, best) for value in values)
    order = metric.easiest_first(values)
    assert order == metric.hardest_first(values)[::-1]
    for place, target in enumerate(order):
        assert all(meets(target, easier, metric.mode) for easier in order[:place])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0123456, "0.0123"),
        (12.345, "12.3"),
        (999.4, "999"),
        (999.6, "1,000"),
        (12345.6, "12,346"),
        (-4567.8, "-4,568"),
        (2.5e7, "2.5e+07"),
        (1.2e-7, "1.2e-07"),
        (0.0, "0"),
        (1.0, "1"),
    ],
)
def test_values_in_words(value, text):
    assert MSE.text(value) == text


def test_accuracy_has_as_many_decimals_as_are_asked_for():
    assert (ACCURACY.text(0.98765), ACCURACY.text(0.5, 4), MSE.text(0.98765, 4)) == ("0.988", "0.5000", "0.9877")


@pytest.fixture(scope="module")
def rising():
    return summary_of(RISING, LAW)


@pytest.fixture(scope="module")
def falling():
    return summary_of(FALLING, LAW)


def test_cells_hold_the_metric_under_its_name(rising, falling):
    assert falling["study"]["metric"] == {"name": "mse", "mode": "min", "share": False}
    for up, down in zip(rising["cells"], falling["cells"], strict=True):
        assert "test_accuracy" not in down
        for key in ("test_", "best_test_"):
            assert down[f"{key}mse"]["value"] == pytest.approx(1 - up[f"{key}accuracy"]["value"])
            assert down[f"{key}mse"]["low"] == pytest.approx(1 - up[f"{key}accuracy"]["high"])
        assert down["best_test_mse"]["value"] <= down["test_mse"]["value"]


def test_times_to_a_target_are_those_of_the_study_turned_over(rising, falling):
    times = {row["target"]: row for row in rising["time_to_target"] if row["label"] == "workers=1 batch=32 lr=0.2"}
    assert len(falling["time_to_target"]) == len(rising["time_to_target"]) == 36
    assert any(row["seconds"] for row in falling["time_to_target"] if row["target"] == 0.25)
    for up, down in zip(rising["time_to_target"], falling["time_to_target"], strict=True):
        assert (down["label"], down["target"], down["reached"]) == (up["label"], 1 - up["target"], up["reached"])
        assert down["seconds"] == pytest.approx(up["seconds"])
    # gradually harder targets take longer
    assert times[0.25]["seconds"] <= times[0.75]["seconds"] < times[0.9375]["seconds"]


def test_the_recommendation_is_that_of_the_study_turned_over(rising, falling):
    up, down = rising["recommendation"], falling["recommendation"]
    assert (up["target"], down["target"]) == (0.9375, 0.0625)
    assert down["pareto"] == up["pareto"]
    for role in ("fastest", "cheapest", "choice"):
        assert down[role]["label"] == up[role]["label"]
        assert down[role]["cost"] == pytest.approx(up[role]["cost"])
        assert down[role]["test_mse"]["value"] == pytest.approx(1 - up[role]["test_accuracy"]["value"])
    assert "best_accuracy" not in down
    assert down["best_mse"]["label"] == up["best_accuracy"]["label"]


def test_the_easiest_of_missed_targets_is_named_first():
    for text, missed in ((RISING, [0.75, 0.9375]), (FALLING, [0.25, 0.0625])):
        recommendation = summary_of(text, Law(learning=6))["recommendation"]
        assert recommendation["missed_targets"] == missed


def test_without_targets_the_smallest_error_is_recommended():
    text = "name: x\nworkload: {metric: mse, metric_mode: min}\nsweep: {learning_rate: [0.1, 0.2, 0.3]}"
    summary = summary_of(text, Law(noise=0))
    smallest = min(summary["cells"], key=lambda row: row["test_mse"]["value"])
    assert summary["recommendation"]["choice"]["label"] == smallest["label"]


def test_settings_in_words():
    assert [setting_text(value) for value in (True, None, 120, 0.123456, "amx", [0.61234, 2])] == [
        "true",
        "null",
        "120",
        "0.123",
        "amx",
        "[0.612, 2]",
    ]


@pytest.mark.parametrize(
    ("values", "place"),
    [([0.7, 0.8, 0.9], 1), ([0.8, 0.7, 0.8, 0.8], 2), ([0.8, 0.7, 0.8], None), ([0.7, 0.8], None), ([], None)],
)
def test_a_target_is_reached_at_the_first_of_two_consecutive_evaluations_that_meet_it(
    values: list[float], place: int | None
) -> None:
    assert ACCURACY.arrival(values, 0.8) == place
