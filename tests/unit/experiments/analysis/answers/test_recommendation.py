"""What to choose, on what evidence."""

import copy
import math

import pytest

from scalestudy.experiments.analysis import recommend
from scalestudy.experiments.analysis.answers.analysis import Analysis
from scalestudy.experiments.analysis.measures.parts import present
from scalestudy.experiments.analysis.text.sentences import recommendation_lines
from tests.support.batch_studies import BatchTruth
from tests.support.batch_summaries import study as batch_study
from tests.support.synthetic_studies import study_of, summary_of, words_of
from tests.support.timed_studies import lent_study, stopped_after
from tests.support.trials import Law

TEXT = (
    "name: x\ntrain: {epochs: 8}\ntargets: {accuracy: [0.5, 0.8]}\n"
    "sweep: {num_gpus: [1, 2, 4], batch_size: [32, 128], learning_rate: [0.1, 0.2], seed: [0, 1]}"
)


def seconds_to(target, law, workers, batch, rate):
    """Time to a target, interpolated between the epochs around it."""
    before = (0.0, 0.0)
    for epoch in range(1, 9):
        after = (epoch * law.epoch_seconds(workers, batch), law.accuracy(epoch, batch, rate))
        if after[1] >= target:
            return before[0] + (target - before[1]) / (after[1] - before[1]) * (after[0] - before[0])
        before = after
    return math.inf


KEYS = ("num_gpus", "batch_size", "learning_rate")


def test_the_true_optimum_is_found():
    law = Law(noise=0, learning=130)
    found = recommend(*study_of(TEXT, law), price=3.6)
    grid = [(workers, batch, rate) for workers in (1, 2, 4) for batch in (32, 128) for rate in (0.1, 0.2)]
    fastest = min(grid, key=lambda cell: seconds_to(0.8, law, *cell))
    cheapest = min(grid, key=lambda cell: seconds_to(0.8, law, *cell) * cell[0])
    assert found["target"] == 0.8
    for role, cell in (("fastest", fastest), ("cheapest", cheapest)):
        choice, seconds = found[role], seconds_to(0.8, law, *cell)
        cell = tuple(choice[key] for key in KEYS)  # four workers are as fast as two
        assert seconds_to(0.8, law, *cell) == pytest.approx(seconds)
        assert choice["measured_seconds"] == pytest.approx(seconds)
        assert choice["seconds"] == pytest.approx(seconds, rel=0.02)
        assert choice["interval"]["kind"] == "estimate"
        assert choice["interval"]["low"] < seconds < choice["interval"]["high"]
        # 3.6 an hour is 0.001 a GPU-second
        assert choice["cost"] == pytest.approx(choice["seconds"] * cell[0] / 1000)
    assert found["provisional"]


def test_choices_follow_what_is_asked():
    spec, plan, trials = study_of(TEXT, Law(learning=130))
    assert recommend(spec, plan, trials, accuracy=0.5)["target"] == 0.5
    one = recommend(spec, plan, trials, max_gpus=1, by="cost")
    assert one["fastest"]["num_gpus"] == 1
    assert one["choice"] == one["cheapest"]
    fitted = Analysis(spec, plan, trials)
    for by, role in (("cost", "cheapest"), ("time", "fastest"), (None, "recommended")):
        found = fitted.recommend(by=by)
        assert found["choice"] == found[role]
    none = recommend(spec, plan, trials, accuracy=0.999)
    assert "no cell reached a test accuracy of 0.999" in none["fastest"]["why"]
    assert none["choice"] == none["best_accuracy"]
    assert recommend(spec, plan, [], max_gpus=0)["choice"]["value"] is None


def test_cells_that_are_too_large_are_not_chosen_but_still_tell_of_the_others():
    spec, plan, trials = study_of(TEXT, Law(learning=130, noise=0.05))
    fitted = Analysis(spec, plan, trials)
    every, allowed = fitted.recommend(), fitted.recommend(max_gpus=1)
    label = allowed["fastest"]["label"]
    assert every["fastest"]["num_gpus"] > 1 == allowed["fastest"]["num_gpus"]
    by_label = {row["label"]: row for row in fitted.times(0.8).rows}
    assert allowed["fastest"]["seconds"] == by_label[label]["seconds"]
    alone = recommend(spec, plan, [trial for trial in trials if trial["params"]["num_gpus"] == 1])
    assert alone["fastest"]["seconds"] != allowed["fastest"]["seconds"]


# --- how far from the fastest the recommended cell may be -------------------------------------------------------------


NOISY = Law(noise=0.03, learning=130)
TWO_SIZES = TEXT.replace("[1, 2, 4]", "[1, 4]")


@pytest.fixture(scope="module")
def noisy():
    """Recommend from a noisy study, fitted once, whose cheapest cell takes `over` as long as its fastest."""
    fitted = Analysis(*study_of(TWO_SIZES, NOISY))

    def asked(confidence=0.5, tolerance=0.1, **wishes):
        again = copy.copy(fitted)
        targets = fitted.spec.targets.model_copy(update={"confidence": confidence, "tolerance": tolerance})
        again.spec = fitted.spec.model_copy(update={"targets": targets})
        return again.recommend(**wishes)

    fitted.recommend()

    return asked, asked()["cheapest"]["ratio"]["value"]


def test_the_recommended_cell_is_the_cheapest_that_is_likely_enough_to_be_near_enough(noisy):
    asked, over = noisy
    none = asked(tolerance=0.0)
    fastest, cheapest = none["fastest"], none["cheapest"]
    assert none["recommended"]["label"] == fastest["label"] != cheapest["label"]
    assert over == pytest.approx(cheapest["seconds"] / fastest["seconds"])
    assert fastest["ratio"] == {"value": 1.0}
    below, at, above = (asked(tolerance=over * factor - 1) for factor in (0.99, 1.0, 1.01))
    assert 0.4 < at["cheapest"]["probability"] < 0.6
    assert below["cheapest"]["probability"] < 0.4 < 0.6 < above["cheapest"]["probability"] < 0.9
    assert below["recommended"]["label"] == fastest["label"]
    assert above["recommended"]["label"] == cheapest["label"]
    assert (above["tolerance"], above["confidence"], asked()["tolerance"]) == (over * 1.01 - 1, 0.5, 0.1)
    for confidence, label in ((0.9, fastest["label"]), (0.1, cheapest["label"])):
        found = asked(confidence, tolerance=over - 1)
        assert (found["confidence"], found["recommended"]["label"]) == (confidence, label)


def test_that_only_the_fastest_qualifies_is_said(noisy):
    asked, over = noisy
    alone = asked(0.6, tolerance=0.05)
    words = "likely within 5% of the fastest of those, no cheaper cell reaches 60%."
    assert words in recommendation_lines(alone)[0]
    assert alone["recommended"]["label"] == alone["fastest"]["label"] != alone["cheapest"]["label"]
    cheaper, least = asked(tolerance=1.1 * over - 1), asked(max_gpus=1)
    assert least["recommended"]["label"] == least["cheapest"]["label"], "there is no cheaper one"
    assert not any("no cheaper cell" in line for each in (cheaper, least) for line in recommendation_lines(each))


def test_a_fastest_cell_that_was_not_shown_to_be_faster_is_called_that(noisy):
    asked, _ = noisy
    apart = asked(tolerance=1.0)
    assert apart["recommended"]["label"] == apart["cheapest"]["label"] != apart["fastest"]["label"]
    assert "not shown" not in recommendation_lines(apart)[1]
    tied = {**apart, "fastest": {**apart["fastest"], "ties": [apart["recommended"]["label"]]}}
    assert "× the time (not shown to be less) and" in "".join(recommendation_lines(tied))


def test_seeds_that_should_settle_it_are_named_where_they_would(noisy):
    asked, over = noisy
    below, above = (asked(tolerance=over * factor - 1) for factor in (0.99, 1.01))
    assert (below["recommended"]["label"], above["recommended"]["label"]) == (
        "workers=4 batch=32 lr=0.2",
        "workers=1 batch=32 lr=0.2",
    )
    each = 8 * NOISY.epoch_seconds(1, 32) + 4 * 8 * NOISY.epoch_seconds(4, 32)
    for found in (below, above):
        settle = found["settle"]
        assert settle["label"] == "workers=1 batch=32 lr=0.2"
        assert settle["beside"] == "workers=4 batch=32 lr=0.2"
        assert settle["probability"] == found["cheapest"]["probability"]
        assert 1 <= settle["seeds"] <= 50
        assert settle["worker_seconds"] == pytest.approx(settle["seeds"] * each, rel=0.05)
    for factor in (0.95, 1.05):
        assert asked(tolerance=over * factor - 1)["settle"] is None, "whether it is near enough is known"


def test_between_cells_of_the_same_trainings_no_seed_settles_it():
    """Only timings tell them apart."""
    text = (
        "name: x\ntrain: {epochs: 6}\nsearch: {method: adaptive}\nbudget: {trials: 100}\ntargets: {accuracy: [0.8]}\n"
        "sweep: {num_gpus: [1, 2, 4], batch_size: [32], learning_rate: [0.2]}"
    )
    study = lent_study(text, Law(learning=130, noise=0.03))
    records = (study.spec, study.plan, study.trials)
    over = recommend(*records, accuracy=0.8)["cheapest"]["ratio"]["value"]
    near = recommend(*records, accuracy=0.8, tolerance=over - 1)
    assert 0.3 < near["cheapest"]["probability"] < 0.7
    assert near["settle"] is None


def test_without_targets_the_cheapest_of_those_that_are_as_good_as_the_best():
    grid = {"workers": "[1, 2]", "batches": "[64, 128, 256]", "rates": "[0.1, 0.2, 0.4]"}
    fitted = Analysis(*batch_study(targets="[]", seeds="[0, 1, 2, 3, 4]", epochs=20, **grid))
    found = fitted.recommend()
    best, chosen = found["best_accuracy"], found["recommended"]
    rows = {row["label"]: row for row in fitted.rows}

    def spent(label):
        return rows[label]["epoch_seconds"]["value"] * rows[label]["params"]["num_gpus"]

    assert chosen["label"] in {best["label"], *best["ties"]}
    assert all(spent(chosen["label"]) <= spent(label) for label in (best["label"], *best["ties"]))
    assert found["fastest"]["why"] == "the spec names no target accuracy (targets.accuracy)"
    assert found["choice"] == chosen


def test_trainings_that_stopped_at_a_target_tell_no_best_metric_whatever_is_asked_for():
    spec, plan, trials = study_of(TEXT.replace("0.8]", "0.6], stop: true"), Law(learning=130))
    cut = [{**stopped_after(trial, 4), "status": "at_target"} for trial in trials]
    untargeted = spec.model_copy(update={"targets": spec.targets.model_copy(update={"accuracy": ()})})
    for found in (recommend(spec, plan, cut, accuracy=0.99), recommend(untargeted, plan, cut)):
        assert found["best_accuracy"]["why"].startswith("trainings stopped at the target")
        assert not present(found["choice"])
        assert not any("as good as" in line or "Best" in line for line in recommendation_lines(found))
    one = [cut[0], *trials[1:]]
    assert not present(recommend(spec, plan, one, accuracy=0.99)["best_accuracy"])
    alone = recommend(spec, plan, [*trials[:-1], cut[-1]], accuracy=0.99, max_gpus=1)["best_accuracy"]
    assert present(alone), "the cell that stopped has more workers than are allowed"
    assert not any("stopped early" in words for words in words_of(alone))


def test_a_lower_target_is_used_where_the_highest_is_missed():
    recommendation = summary_of(TEXT.replace("0.8]", "0.999]"), Law(learning=130))["recommendation"]
    assert (recommendation["target"], recommendation["missed_targets"]) == (0.5, [0.999])


def test_five_seeds_are_no_longer_provisional():
    text = TEXT.replace("seed: [0, 1]", "seed: [0, 1, 2, 3, 4]")
    assert not summary_of(text, Law(learning=130))["recommendation"]["provisional"]


def test_a_choice_names_its_evidence_and_what_it_can_not_be_told_apart_from():
    found = recommend(
        *batch_study(BatchTruth(noise=0.2), workers="[1, 2]", rates="[0.2, 0.4, 0.8]", seeds="[0, 1, 2, 3, 4]")
    )
    fastest = found["fastest"]
    assert fastest["evidence"] == {"cells": [fastest["label"]], "seeds": 5, "kind": "measured"}
    assert fastest["ties"]
    assert fastest["label"] not in fastest["ties"]
    assert f"Tied with {fastest['ties'][0]}" in " ".join(words_of(fastest))
    assert fastest["tie_count"] == len(fastest["ties"])


@pytest.mark.parametrize(("sync", "alike"), [("ddp", True), ("powersgd", False)])
def test_what_learns_alike_is_no_tie_of_the_most_accurate(sync, alike):
    text = TEXT.replace("{epochs: 8}", f"{{epochs: 8, gradient_sync: {sync}}}").replace("[0, 1]", "[0, 1, 2, 3, 4]")
    best = recommend(*study_of(text, Law(learning=8, noise=0.2)))["best_accuracy"]
    assert (best["named"] == "batch=32 lr=0.2") == alike
    same = [label for label in best["ties"] if label.endswith("batch=32 lr=0.2")]
    assert bool(same) != alike


def test_the_evidence_of_a_cell_with_lent_trainings_is_these():
    text = (
        "name: x\ntrain: {epochs: 6}\nsearch: {method: adaptive}\nbudget: {trials: 100}\ntargets: {accuracy: [0.8]}\n"
        "sweep: {num_gpus: [1, 2, 4], batch_size: [32, 64], learning_rate: [0.2, 0.4]}"
    )
    study = lent_study(text, Law(learning=130))
    row = recommend(study.spec, study.plan, study.trials, accuracy=0.8)["fastest"]
    assert row["num_gpus"] != 1
    trained = f"workers=1 batch={row['batch_size']} lr={row['learning_rate']:g}"
    assert row["evidence"] == {"cells": [trained], "seeds": 3, "kind": "lent"}
    assert f"Its steps are those of {trained}, its seconds a step those of timing runs." in words_of(row)


def test_a_clear_choice_has_neither_ties_nor_caveats():
    truth = BatchTruth(noise=0.001, curvature=0.5)
    fastest = recommend(*batch_study(truth, workers="[1, 2]", rates="[0.1, 0.2, 0.4, 0.8]", seeds="[0, 1, 2, 3, 4]"))[
        "fastest"
    ]
    assert (fastest["ties"], fastest["caveats"]) == ([], [])


def test_caveats_of_a_choice_at_the_edge_of_its_rates_with_one_seed():
    truth = BatchTruth(noise=0.001)
    study = batch_study(truth, rates="[0.4, 0.8]", batches="[128]", seeds="[0]")
    caveats = " ".join(words_of(recommend(*study)["fastest"]))
    assert "one seed" in caveats
    assert "0.4 is the lowest learning rate tried at batch 128" in caveats


def test_many_ties_are_counted_and_not_all_listed():
    best = recommend(*batch_study(targets="[]", epochs=60))["best_accuracy"]  # nearly all come to the same accuracy
    assert len(best["ties"]) == 20 < best["tie_count"]
    assert f"and {best['tie_count'] - 1} others" in " ".join(words_of(best))


RETROGRADE = """
    name: x
    train: {epochs: 8, gradient_sync: %s}
    targets: {accuracy: [0.5]}
    sweep: {num_gpus: [1, 2], batch_size: [64], learning_rate: [0.2], seed: [0, 1]}
"""


def lucky(sync, law):
    """Trials of which those with two workers are luckier: they have 0.9 from the first epoch on."""
    spec, plan, trials = study_of(RETROGRADE % sync, law)
    for trial in trials:
        if trial["params"]["num_gpus"] == 2:
            trial["epochs"] = [{**epoch, "test_accuracy": 0.9} for epoch in trial["epochs"]]
    return recommend(spec, plan, trials)["fastest"]


def test_lucky_seeds_of_slower_workers_decide_nothing_where_both_learn_alike():
    assert lucky("ddp", Law(sync=0.01))["num_gpus"] == 1


def test_workers_that_are_slower_than_one_are_chosen_with_a_caveat_where_they_may_learn_faster():
    fastest = lucky("powersgd", Law(sync=0.01))
    # a step takes 0.0002 + 0.002 + 0.0064 + 0.0003 = 0.0089 s with one, 0.0025 + 0.0032 + 0.01 = 0.0157 with two
    assert (fastest["num_gpus"], fastest["strong_speedup"]) == (2, pytest.approx(89 / 157))
    assert any("2 workers ran at 0.57× the speed of one" in words for words in words_of(fastest))
    assert not any("the speed of one" in words for words in words_of(lucky("powersgd", Law(sync=0.0))))
