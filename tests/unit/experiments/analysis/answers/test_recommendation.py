"""Pareto front, knee, what to choose, and what to know of a choice."""

import itertools
import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalestudy.experiments.analysis import recommend, summarise
from scalestudy.experiments.analysis.answers.recommendation import batch_edges, caveats_of, knee, pareto, rate_edges
from scalestudy.experiments.analysis.measures.cells import gather
from scalestudy.experiments.analysis.measures.metric import ACCURACY
from scalestudy.experiments.analysis.measures.targets import cost_of, typical_time
from tests.bench.choice import regrets
from tests.support.batch_studies import BatchTruth
from tests.support.batch_summaries import study as batch_study
from tests.support.factorised import factorised_study
from tests.support.synthetic_studies import study_of, summary_of
from tests.support.trials import Law


def option(seconds, gpu_seconds):
    return {"seconds": seconds, "gpu_seconds": gpu_seconds}


def test_the_front_leaves_out_what_is_beaten():
    options = [option(4, 4), option(2, 5), option(3, 6), option(5, 4), option(1, 9)]
    assert pareto(options) == [option(1, 9), option(2, 5), option(4, 4)]


POINTS = st.lists(st.tuples(st.floats(0.1, 100), st.floats(0.1, 100)), min_size=1, max_size=20)


@given(POINTS)
def test_the_front_dominates_everything_and_nothing_in_itself(points):
    options = [option(*point) for point in points]
    front = pareto(options)
    assert front[0]["seconds"] == min(point[0] for point in points)
    assert front[-1]["gpu_seconds"] == min(point[1] for point in points)
    for each in options:
        assert any(f["seconds"] <= each["seconds"] and f["gpu_seconds"] <= each["gpu_seconds"] for f in front)
    for before, after in itertools.pairwise(front):
        assert before["seconds"] < after["seconds"]
        assert before["gpu_seconds"] > after["gpu_seconds"]


def test_the_knee_is_farthest_below_the_line_on_log_axes():
    # in log10: (0, 2), (0.301, 0.602), (1, 0.301), (2, 0); the line from (0, 2) to (2, 0) is y = 2 - x;
    # below it by 2 - 0.301 - 0.602 = 1.097 and 2 - 1 - 0.301 = 0.699
    front = [option(1, 100), option(2, 4), option(10, 2), option(100, 1)]
    assert knee(front) == option(2, 4)
    assert knee(front[:2]) is None
    assert knee([option(1, 100), option(2, 99), option(100, 1)]) is None  # above the line


@given(POINTS)
def test_the_knee_is_a_point_between_the_ends(points):
    front = pareto([option(*point) for point in points])
    bend = knee(front)
    assert bend is None or bend in front[1:-1]


@given(POINTS, st.floats(0.1, 10), st.floats(0.1, 10), st.randoms())
def test_front_and_knee_do_not_hang_on_units_or_order(points, time, cost, shuffler):
    options = [option(*point) for point in points]
    shuffled = [option(seconds * time, spent * cost) for seconds, spent in points]
    shuffler.shuffle(shuffled)
    front, scaled = pareto(options), pareto(shuffled)
    assert [each["seconds"] * time for each in front] == pytest.approx([each["seconds"] for each in scaled])
    bend, scaled_bend = knee(front), knee(scaled)
    if bend is not None and scaled_bend is not None:
        depths = [
            _depth(front, each)
            for each in (bend, option(scaled_bend["seconds"] / time, scaled_bend["gpu_seconds"] / cost))
        ]
        assert depths[0] == pytest.approx(depths[1], abs=1e-6)


def _depth(front, point):
    """How far a point lies below the line from fastest to cheapest, on log axes."""
    (left, top), (right, bottom) = (
        (math.log(end["seconds"]), math.log(end["gpu_seconds"])) for end in (front[0], front[-1])
    )
    share = (math.log(point["seconds"]) - left) / (right - left)
    return top + share * (bottom - top) - math.log(point["gpu_seconds"])


@given(POINTS)
def test_no_point_of_the_front_lies_deeper_than_the_knee(points):
    front = pareto([option(*point) for point in points])
    bend = knee(front)
    if bend is not None:
        assert max(_depth(front, each) for each in front) == pytest.approx(_depth(front, bend))


def test_typical_times():
    assert typical_time([3.0, 1.0, 2.0]) == 2.0
    assert typical_time([1.0, math.inf]) is None
    assert typical_time([1.0, 2.0, math.inf]) == 2.0
    # five: without the fastest and the slowest, mean of 2, 3, 4
    assert typical_time([1.0, 2.0, 3.0, 4.0, 100.0]) == 3.0
    assert typical_time([1.0, 2.0, 3.0, 4.0, math.inf]) == 3.0
    assert typical_time([1.0, 2.0, 3.0, math.inf, math.inf]) is None
    assert typical_time([]) is None


def test_cost():
    # 1800 GPU-seconds are half an hour, at 2.5 an hour
    assert cost_of(1800.0, 2.5) == 1.25
    assert cost_of(None, 2.5) is None
    assert cost_of(1.0, None) is None


TEXT = (
    "name: x\ntrain: {epochs: 8}\ntargets: {accuracy: [0.5, 0.8]}\n"
    "sweep: {num_gpus: [1, 2, 4], batch_size: [32, 128], learning_rate: [0.1, 0.2], seed: [0, 1]}"
)


def test_the_true_optimum_is_found():
    law = Law(noise=0, learning=130)
    _, plan, trials = study_of(TEXT, law)
    found = recommend(plan, trials, targets=(0.5, 0.8), price=3.6)

    def seconds(workers, batch, rate):
        """Time to 0.8, interpolated between the epochs around it."""
        before = (0.0, 0.0)
        for epoch in range(1, 9):
            after = (epoch * law.epoch_seconds(workers, batch), law.accuracy(epoch, batch, rate))
            if after[1] >= 0.8:
                return before[0] + (0.8 - before[1]) / (after[1] - before[1]) * (after[0] - before[0])
            before = after
        return math.inf

    grid = [(workers, batch, rate) for workers in (1, 2, 4) for batch in (32, 128) for rate in (0.1, 0.2)]
    fastest = min(grid, key=lambda cell: seconds(*cell))
    cheapest = min(grid, key=lambda cell: seconds(*cell) * cell[0])
    keys = ("num_gpus", "batch_size", "learning_rate")
    assert found["target"] == 0.8
    assert tuple(found["fastest"][key] for key in keys) == fastest
    assert tuple(found["cheapest"][key] for key in keys) == cheapest
    assert found["fastest"]["seconds"] == pytest.approx(seconds(*fastest))
    # 3.6 an hour is 0.001 a GPU-second
    assert found["cheapest"]["cost"] == pytest.approx(seconds(*cheapest) * cheapest[0] / 1000)
    assert found["provisional"]


def test_choices_follow_what_is_asked():
    _, plan, trials = study_of(TEXT, Law(learning=130))
    assert recommend(plan, trials, accuracy=0.5)["target"] == 0.5
    assert recommend(plan, trials, targets=(0.8,), max_gpus=1)["fastest"]["num_gpus"] == 1
    by_cost = recommend(plan, trials, targets=(0.8,), by="cost")
    assert by_cost["choice"] == by_cost["cheapest"]
    none = recommend(plan, trials, accuracy=0.999)
    assert "no cell reached a test accuracy of 0.999" in none["fastest"]["why"]
    assert none["choice"] == none["best_accuracy"]
    assert recommend(plan, [], targets=(0.8,), max_gpus=0)["choice"]["value"] is None


def test_a_lower_target_is_used_where_the_highest_is_missed():
    recommendation = summary_of(TEXT.replace("0.8]", "0.999]"), Law(learning=130))["recommendation"]
    assert (recommendation["target"], recommendation["missed_targets"]) == (0.5, [0.999])


def test_five_seeds_are_no_longer_provisional():
    text = TEXT.replace("seed: [0, 1]", "seed: [0, 1, 2, 3, 4]")
    assert not summary_of(text, Law(learning=130))["recommendation"]["provisional"]


def test_a_choice_names_its_evidence_and_what_it_can_not_be_told_apart_from():
    _, plan, trials = batch_study(workers="[1, 2]", seeds="[0, 1, 2, 3, 4]")
    found = recommend(plan, trials, targets=(0.8,))
    fastest = found["fastest"]
    assert fastest["evidence"] == {"cells": [fastest["label"]], "seeds": 5, "kind": "measured"}
    assert fastest["interval"]["kind"] == "t"
    assert fastest["ties"]
    assert fastest["label"] not in fastest["ties"]
    assert f"Not told apart from {fastest['ties'][0]}" in " ".join(fastest["caveats"])
    assert fastest["tie_count"] == len(fastest["ties"])


def test_the_evidence_of_an_inferred_cell_are_the_trainings_it_is_inferred_from():
    text = (
        "name: x\ntrain: {epochs: 6}\nsearch: {method: factorised}\n"
        "sweep: {num_gpus: [1, 2, 4], batch_size: [32, 64], learning_rate: [0.2, 0.4], seed: [0, 1, 2]}"
    )
    study = factorised_study(text, Law(learning=130))
    row = recommend(study.plan, [*study.trained, *study.timings], targets=(0.3,))["fastest"]
    assert row["num_gpus"] != study.plan.factorised.train_on
    trained = f"gpus={study.plan.factorised.train_on} batch={row['batch_size']} lr={row['learning_rate']:g}"
    assert row["evidence"] == {"cells": [trained], "seeds": 3, "kind": "factorised"}
    assert f"Inferred: the epochs are those of {trained}" in " ".join(row["caveats"])


def test_a_clear_choice_has_neither_ties_nor_caveats():
    truth = BatchTruth(noise=0.001, curvature=0.5)
    _, plan, trials = batch_study(truth, workers="[1, 2]", seeds="[0, 1, 2, 3, 4]")
    fastest = recommend(plan, trials, targets=(0.8,))["fastest"]
    assert (fastest["ties"], fastest["caveats"]) == ([], [])


def test_caveats_of_a_choice_at_the_edge_of_its_rates_with_one_seed():
    truth = BatchTruth(noise=0.001)
    _, plan, trials = batch_study(truth, rates="[0.4, 0.8]", batches="[128]", seeds="[0]")
    caveats = " ".join(recommend(plan, trials, targets=(0.8,))["fastest"]["caveats"])
    assert "one seed" in caveats
    assert "0.4 is the lowest learning rate tried at batch 128" in caveats


def test_many_ties_are_counted_and_not_all_listed():
    _, plan, trials = batch_study(targets="[]", epochs=60)  # nearly all come to the same accuracy
    best = recommend(plan, trials)["best_accuracy"]
    assert len(best["ties"]) == 20 < best["tie_count"]
    assert f"and {best['tie_count'] - 1} others" in " ".join(best["caveats"])


def test_the_choice_is_within_five_percent_of_the_true_optimum():
    """Over draws: the true time of the cell that is chosen, over the true time of the best of all cells."""
    for found in regrets(8).values():
        assert statistics.median(found) <= 0.05
        assert max(found) <= 0.10


def test_workers_that_are_slower_than_one_are_chosen_with_a_caveat():
    text = """
        name: x
        train: {epochs: 8}
        targets: {accuracy: [0.5]}
        sweep: {num_gpus: [1, 2], batch_size: [64], learning_rate: [0.2], seed: [0, 1]}
    """
    spec, plan, trials = study_of(text, Law(sync=0.01))
    for trial in trials:
        if trial["params"]["num_gpus"] == 2:  # luckier seeds: there from the first epoch on
            trial["epochs"] = [{**epoch, "test_accuracy": 0.9} for epoch in trial["epochs"]]
    fastest = summarise(spec, plan, trials)["recommendation"]["fastest"]
    # a step takes 0.0002 + 0.002 + 0.0064 + 0.0003 = 0.0089 s with one, 0.0025 + 0.0032 + 0.01 = 0.0157 with two
    assert (fastest["num_gpus"], fastest["strong_speedup"]) == (2, pytest.approx(89 / 157))
    assert any("2 workers made steps at 0.57× the speed of one" in words for words in fastest["caveats"])
    quick = summarise(*study_of(text, Law(sync=0.0)))["recommendation"]["fastest"]
    assert not any("the speed of one" in words for words in quick["caveats"])


# --- what a reader must know of a choice ------------------------------------------------------------------------------


MEASURED = {"cells": ["a"], "seeds": 5, "kind": "measured"}
CHOICE = {
    "evidence": MEASURED,
    "n_seeds": 5,
    "reached": 5,
    "learning_rate": 0.4,
    "batch_size": 64,
    "upper_bound": False,
    "flags": [],
}


@pytest.mark.parametrize(
    ("facts", "edge", "ties", "words"),
    [
        ({}, None, [], []),
        ({"n_seeds": 1, "reached": 1}, None, [], ["with one seed it is not known"]),
        ({"n_seeds": 3, "reached": 3}, None, [], ["of 3 seeds the range is shown"]),
        ({"reached": 4}, None, [], ["1 of 5 seeds did not reach the target"]),
        ({"reached": None}, None, [], []),
        ({}, "highest", [], ["0.4 is the highest learning rate tried at batch 64: a higher one may do better"]),
        ({}, "lowest", [], ["a lower one may do better"]),
        ({}, "only", [], ["0.4 is the only learning rate tried at batch 64: another one may do better"]),
        ({"evidence": {**MEASURED, "kind": "factorised"}}, None, [], ["Inferred: the epochs are those of a, the"]),
        ({"upper_bound": True}, None, [], ["an upper bound"]),
        ({"stopped": 2}, None, [], ["2 more seeds were stopped before the target and left out"]),
        ({"stopped": 0, "stopped_after": [1]}, None, [], []),
        ({"stopped_after": [1]}, None, [], ["1 seed was stopped early, so that the last epoch is not that of a whole"]),
        ({"seconds": 3.0, "strong_speedup": 0.8, "num_gpus": 2}, None, [], ["2 workers made steps at 0.80× the speed"]),
        ({"seconds": 3.0, "strong_speedup": 1.0, "num_gpus": 2}, None, [], []),
        ({"seconds": None, "strong_speedup": 0.8, "num_gpus": 2}, None, [], []),
        ({"flags": ["oversubscribed", "resumed"]}, None, [], ["marked oversubscribed, resumed"]),
        ({"n_seeds": 2, "reached": 2}, None, ["b"], ["of 2 seeds", "Not told apart from b"]),
    ],
)
def test_caveats(facts, edge, ties, words):
    found = caveats_of({**CHOICE, **facts}, edge, ties)
    assert len(found) == len(words)
    for sentence, part in zip(found, words, strict=True):
        assert part in sentence
        assert sentence.endswith(".")


def test_edges_of_the_rates_tried_whatever_the_number_of_workers():
    _, plan, trials = batch_study(workers="[1, 2]", batches="[64]", rates="[0.1, 0.2, 0.4]", seeds="[0]", epochs=2)
    # on two workers alone the highest was tried
    trials = [trial for trial in trials if trial["params"]["num_gpus"] == 2 or trial["params"]["learning_rate"] < 0.4]
    assert rate_edges(gather(plan, trials, ACCURACY)) == {
        "gpus=1 batch=64 lr=0.1": "lowest",
        "gpus=2 batch=64 lr=0.1": "lowest",
        "gpus=1 batch=64 lr=0.4": "highest",
        "gpus=2 batch=64 lr=0.4": "highest",
    }
    for trial in trials:
        trial["status"] = "out_of_memory" if trial["params"]["learning_rate"] != 0.2 else "diverged"
    assert rate_edges(gather(plan, trials, ACCURACY))["gpus=1 batch=64 lr=0.2"] == "only"


def test_edges_of_the_batch_sizes_tried_each_at_its_own_rates():
    _, plan, trials = batch_study(workers="[1]", batches="[32, 64, 128]", rates="[0.1, 0.4]", seeds="[0]", epochs=2)
    own = {32: 0.1, 64: 0.1, 128: 0.4}
    trials = [trial for trial in trials if trial["params"]["learning_rate"] == own[trial["params"]["batch_size"]]]
    assert batch_edges(gather(plan, trials, ACCURACY)) == {
        "gpus=1 batch=32 lr=0.1": "lowest",
        "gpus=1 batch=32 lr=0.4": "lowest",
        "gpus=1 batch=128 lr=0.1": "highest",
        "gpus=1 batch=128 lr=0.4": "highest",
    }


@pytest.mark.parametrize(
    ("edge", "words"),
    [
        ("lowest", ["is the smallest batch size tried: a smaller one may do better."]),
        ("highest", ["is the largest batch size tried: a larger one may do better."]),
        ("only", []),
        (None, []),
    ],
)
def test_a_batch_size_at_the_edge_is_a_caveat(edge, words):
    found = caveats_of(CHOICE, None, [], edge)
    assert [sentence.partition(" ")[2] for sentence in found] == words
