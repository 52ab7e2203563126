"""What a search looks for: the score of a point by its trials."""

import math

import pytest

from scalestudy.experiments.analysis.answers.objective import Objective, Score
from tests.support.synthetic_studies import spec_of


def record(values, status="finished", gpus=1, seconds=1.0):
    epochs = [{"epoch": n, "test_accuracy": v, "train_seconds": seconds} for n, v in enumerate(values, start=1)]
    return {"status": status, "params": {"num_gpus": gpus}, "epochs": epochs}


def objective(name="metric", **workload):
    sections = "".join(f"\n  {key}: {value}" for key, value in workload.items())
    text = f"name: x\nworkload:\n  model: lenet{sections}\nsweep: {{num_gpus: [1, 2]}}"
    text = f"{text}\ntargets: {{accuracy: [0.5, 0.9]}}"
    return Objective.of(spec_of(f"{text}\nsearch: {{method: tpe, objective: {name}}}"))


def test_of_a_point_s_seeds_the_median_of_the_best_epochs_counts():
    trials = [record([0.2, 0.7]), record([0.9, 0.1]), record([0.8], "stopped")]
    assert objective().score(trials) == Score(value=0.8)
    assert objective().mode == "max"


def test_of_a_loss_the_smallest_counts():
    looks = objective(metric="mse", metric_mode="min")
    trials = [{**record([]), "epochs": [{"epoch": 1, "test_mse": value}]} for value in (3.0, 1.0)]
    assert (looks.score(trials), looks.mode) == (Score(value=2.0), "min")


@pytest.mark.parametrize("status", ["diverged", "out_of_memory"])
def test_a_seed_without_a_result_is_worse_than_all_others(status):
    good, bad = record([0.9]), record([0.95], status)
    assert objective().score([good, good, bad]) == Score(value=0.9)
    assert objective().score([good, bad]) == Score(), "half of the seeds: not to be relied on"
    assert objective().score([bad]) == Score()


def test_a_seed_that_failed_does_not_count_unless_all_did():
    assert objective().score([record([0.9]), record([], "failed"), record([], "failed")]) == Score(value=0.9)
    assert objective().score([record([], "failed")]) == Score()
    assert objective("time_to_target").score([record([], "failed")]) == Score()


def test_values_that_are_no_numbers_are_the_worst():
    assert objective().score([record([math.nan, None])]) == Score()
    assert objective().score([record([math.nan, 0.5])]) == Score(value=0.5)


def test_a_seed_on_more_nodes_counts_with_the_seconds_of_those_on_fewer():
    here, there = record([0.6, 1.0, 0.9], gpus=2), record([0.6, 0.8, 1.0, 0.9], gpus=2, seconds=9.0)
    there["world"] = {"nodes": 2}
    looks = objective("time_to_target")
    # 0.9 lies three quarters of the way in the second epoch, and half way in the third
    assert looks.score([here, there]) == Score(value=pytest.approx((1.75 + 2.5) / 2))
    assert looks.score([there]) == Score(value=pytest.approx(2.5 * 9.0))


def test_time_and_cost_are_to_the_hardest_target_and_less_is_better():
    trials = [record([0.6, 0.8, 1.0, 0.9], gpus=2, seconds=4.0)]
    # 0.9 lies half way between the epochs' 0.8 and 1.0: 8 s + 0.5 · 4 s; with 2 workers 20 worker-seconds
    assert objective("time_to_target").score(trials) == Score(value=10.0)
    assert objective("cost_to_target").score(trials) == Score(value=20.0)
    falls = objective("time_to_target", metric="mse", metric_mode="min")
    assert falls.target == 0.5, "of an error the smaller is the harder"
    assert {objective("time_to_target").mode, objective("cost_to_target").mode} == {"min"}


def test_a_missed_target_is_the_worst_and_the_nearer_the_better():
    near, far = (objective("time_to_target").score([record([value])]) for value in (0.45, 0.2))
    assert (near.value, far.value) == (None, None)
    assert near.progress < far.progress
