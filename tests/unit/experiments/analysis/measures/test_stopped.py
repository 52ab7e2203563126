"""Trainings that a scheduler has stopped – their timings, targets that they had not met, best rates."""

import pytest

from scalestudy.experiments.analysis import answer_lines, summarise
from scalestudy.experiments.analysis.measures.cells import gather
from scalestudy.experiments.analysis.measures.metric import ACCURACY
from scalestudy.experiments.analysis.measures.records import stopped_caveat
from scalestudy.experiments.analysis.text.answer import measured_when
from tests.support.factorised import stopped_after
from tests.support.synthetic_studies import study_of
from tests.support.trials import Law

TEXT = """
    name: x
    train: {epochs: 9}
    targets: {accuracy: [0.5]}
    search: {scheduler: asha}
    sweep: {num_gpus: [1, 2], batch_size: [64], learning_rate: [0.1, 0.2, 0.4], seed: [0, 1, 2]}
"""
ALL, ONE_LEFT = 0.1, 0.4


def stopped(trial):
    params = trial["params"]
    early = params["learning_rate"] == ALL or (params["learning_rate"] == ONE_LEFT and params["seed"] != 0)
    return stopped_after(trial, 1) if early else trial


def study(law):
    spec, plan, trials = study_of(TEXT, law)
    return spec, plan, [stopped(trial) for trial in trials]


def slow_first(trials):
    for trial in trials:
        first = trial["epochs"][0]
        slow = {"train_seconds": 4 * first["train_seconds"], "samples_per_second": first["samples_per_second"] / 4}
        trial["epochs"][0] = {**first, **slow}
    return trials


def rows_of(summary, key="cells"):
    return {row["label"]: row for row in summary[key]}


def test_their_first_epoch_is_left_out_of_timings_as_their_siblings_is():
    spec, plan, trials = study(Law())
    truth = summarise(spec, plan, trials)
    found = summarise(spec, plan, slow_first(trials))
    assert [row["epoch_seconds"] for row in found["timings"]] == [row["epoch_seconds"] for row in truth["timings"]]
    assert [row["speedup"] for row in found["timings"]] == [row["speedup"] for row in truth["timings"]]
    assert all(row["unsteadiness"]["value"] == pytest.approx(0) for row in found["timings"])
    assert not [verdict for verdict in found["verdicts"] if verdict["cause"] == "disturbed"]
    assert "stopped within their first epoch" in rows_of(found)["gpus=1 batch=64 lr=0.1"]["epoch_seconds"]["why"]


def test_one_stopped_after_two_epochs_is_timed_by_its_second():
    spec, plan, trials = study(Law())
    first, *_ = trials
    assert first["params"]["learning_rate"] == ALL
    whole = stopped_after(study_of(TEXT, Law())[2][0], 2)
    (cell, *_) = gather(plan, slow_first([whole, *trials[1:]]), ACCURACY)
    row = rows_of(summarise(spec, plan, [whole, *trials[1:]]))[cell.label]
    assert row["epoch_seconds"]["value"] == pytest.approx(Law().epoch_seconds(1, 64))


def test_without_longer_siblings_the_first_epoch_is_all_there_is():
    spec, plan, trials = study_of(TEXT)
    found = summarise(spec, plan, [stopped_after(trial, 1) for trial in trials])
    assert all(row["epoch_seconds"]["n"] == 3 for row in found["cells"])


def test_those_that_had_not_met_the_target_are_left_out_of_its_seeds():
    rows = rows_of(summarise(*study(Law(learning=90))), "time_to_target")
    # 0.985 - 0.885 exp(-90 * 0.4 / 64 e) is 0.487 after one epoch and 0.698 after two
    left = rows["gpus=1 batch=64 lr=0.4"]
    assert (left["n_seeds"], left["reached"], left["stopped"]) == (1, 1, 2)
    assert left["seconds"] is not None
    none = rows["gpus=1 batch=64 lr=0.1"]
    assert (none["n_seeds"], none["reached"], none["stopped"], none["seconds"]) == (0, 0, 3, None)
    assert none["why"] == "all of its 3 seeds were stopped before reaching 0.5"


def test_a_seed_that_had_met_the_target_counts():
    spec, plan, trials = study_of(TEXT, Law(learning=900))
    rows = rows_of(summarise(spec, plan, [stopped(trial) for trial in trials]), "time_to_target")
    assert (rows["gpus=1 batch=64 lr=0.4"]["n_seeds"], rows["gpus=1 batch=64 lr=0.4"]["stopped"]) == (3, 0)


def test_one_that_diverged_still_missed():
    spec, plan, trials = study_of(TEXT, Law(learning=90), endings={"gpus=1 batch=64 lr=0.4 seed=1": "diverged"})
    row = rows_of(summarise(spec, plan, trials), "time_to_target")["gpus=1 batch=64 lr=0.4"]
    assert (row["n_seeds"], row["reached"], row["stopped"]) == (3, 2, 0)


def test_the_best_rate_is_that_of_the_seeds_that_went_on():
    summary = summarise(*study(Law(learning=90)))
    (point,) = summary["statistical_efficiency"]["points"]
    assert (point["learning_rate"], point["edge"], point["n"], point["stopped"]) == (0.4, "highest", 1, 2)
    assert point["rates"] == 3  # 0.1 was tried, though none of its seeds went on
    assert summary["recommendation"]["fastest"]["learning_rate"] == 0.4
    assert any("2 more seeds were stopped" in words for words in summary["recommendation"]["fastest"]["caveats"])


def test_a_rate_that_was_given_up_is_a_rate_that_was_tried():
    spec, plan, trials = study_of(TEXT, Law(learning=90))
    ends = [stopped_after(trial, 1) if trial["params"]["learning_rate"] != 0.2 else trial for trial in trials]
    (point,) = summarise(spec, plan, ends)["statistical_efficiency"]["points"]
    assert (point["learning_rate"], point["edge"], point["rates"]) == (0.2, None, 3)


def test_rows_and_caveats_say_how_many_and_after_how_many_epochs():
    summary = summarise(*study(Law()))
    assert rows_of(summary)["gpus=1 batch=64 lr=0.4"]["stopped_after"] == [1, 1]
    assert rows_of(summary)["gpus=1 batch=64 lr=0.2"]["stopped_after"] == []
    assert any(words.startswith("10 trainings were stopped early") for words in summary["caveats"])
    assert stopped_caveat([]) is None


def test_the_best_metric_says_where_it_was_measured():
    """Every trial of the best cell was stopped after its third epoch; of another, none was."""
    spec, plan, trials = study_of(TEXT.replace("[0.5]", "[]"), Law())
    assert measured_when(summarise(spec, plan, trials)["recommendation"]["best_accuracy"]) == "after the last epoch"
    cut = [stopped_after(trial, 3) for trial in trials]
    found = summarise(spec, plan, cut)
    when = "after the last epoch, or where trials were stopped (epoch 3)"
    assert measured_when(found["recommendation"]["best_accuracy"]) == when
    assert any(line.endswith(f"{when}.") for line in answer_lines(found))
