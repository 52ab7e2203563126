"""Why no cell is the fastest: one line that says what would help and what it costs."""

import statistics

import pytest

from scalestudy.experiments.analysis import recommend
from scalestudy.experiments.analysis.measures.parts import present
from scalestudy.experiments.analysis.measures.units import seconds_text
from scalestudy.experiments.analysis.text.sentences import recommendation_lines
from tests.support.batch_summaries import study as batch_study
from tests.support.factorised import stopped_after
from tests.support.synthetic_studies import study_of
from tests.support.trials import Law

TEXT = (
    "name: x\ntrain: {epochs: 8}\ntargets: {accuracy: [0.5, 0.8]}\n"
    "sweep: {num_gpus: [1, 2, 4], batch_size: [32, 128], learning_rate: [0.1, 0.2], seed: [0, 1]}"
)


def test_one_cell_is_no_choice():
    study = batch_study(batches="[128]", rates="[0.4]")
    found = recommend(*study)
    for role in ("recommended", "fastest", "cheapest"):
        assert found[role]["value"] is None
        assert found[role]["why"].startswith("only one cell was run (workers=1 batch=128 lr=0.4), so there is nothing")
    assert found["choice"]["value"] is None
    seconds = statistics.median(sum(epoch["train_seconds"] for epoch in trial["epochs"]) for trial in study[2])
    assert found["fastest"]["why"].endswith(f"a training takes some {seconds_text(seconds)}")


def test_a_target_that_every_cell_meets_at_once_tells_none_from_another():
    found = recommend(*study_of(TEXT, Law(learning=40_000)))
    assert found["fastest"]["why"].startswith("the cells that reached 0.8 met it at their first evaluation")
    assert found["fastest"]["why"].endswith("name a harder target"), "every one that was reached is met at once"


def test_a_harder_target_that_the_trainings_have_reached_is_named():
    spec, plan, trials = study_of(TEXT.replace("[0.5, 0.8]", "[0.15]"), Law(learning=130))
    found = recommend(spec, plan, trials)
    assert found["fastest"]["why"] == (
        "the cells that reached 0.15 met it at their first evaluation, too early to compare times: name a "
        "harder target, such as 0.98, which workers=1 batch=32 lr=0.2 has reached"
    )
    # 0.985 - 0.885 exp(-130 * 0.2 / 32 * 7) is 0.982: it and the last one, above it
    harder = recommend(spec, plan, trials, accuracy=0.98)
    assert present(harder["fastest"])


def test_a_target_out_of_reach_says_how_far_the_best_came_and_what_more_of_it_costs():
    law = Law(learning=130, per_example=0.00011)
    why = recommend(*study_of(TEXT, law), accuracy=0.99)["fastest"]["why"]
    # 0.985 - 0.885 exp(-130 * 0.2 / 32 * 8) = 0.9837; 45 steps of 0.0002 + 0.002 + 0.00352 + 0.0003 s
    assert why == (
        "no cell reached a test accuracy of 0.99: the best, workers=1 batch=32 lr=0.2, came to 0.984 in 8 evaluations; "
        "train longer, or try other rates (0.271 s from one evaluation to the next)"
    )
    spec, plan, trials = study_of(TEXT, law)
    for trial in trials:
        trial["epochs"] = [{**epoch, "test_accuracy": 0.9 * (epoch["epoch"] % 2)} for epoch in trial["epochs"]]
    once = recommend(spec, plan, trials, accuracy=0.85)["fastest"]["why"]
    assert "came to 0.900 in 8 evaluations, but 0 of 2 seeds met it twice in a row; train" in once
    stopped = [{**stopped_after(trial, 4), "status": "at_target"} for trial in study_of(TEXT, law)[2]]
    cut = recommend(spec, plan, stopped, accuracy=0.99)["fastest"]["why"]
    assert "came to 0.951 in 4 evaluations, where its trainings stopped; a study with this target would tell (" in cut


def test_where_no_trial_can_be_compared_it_says_what_to_look_at():
    spec, plan, trials = study_of(TEXT, endings={"*": "failed"})
    assert recommend(spec, plan, trials)["fastest"]["why"] == (
        "no trial ended in a way that can be compared (24 failed): the report says why, under trials that did not "
        "finish"
    )
    assert recommend(spec, plan, [])["fastest"]["why"] == "no trial has ended yet"


def test_where_only_larger_cells_reach_a_target_the_limit_is_named():
    spec, plan, trials = study_of(TEXT.replace("[0.5, 0.8]", "[0.8]"), Law(learning=130))
    lost = [{**each, "status": "failed", "epochs": []} if each["params"]["num_gpus"] == 1 else each for each in trials]
    assert present(recommend(spec, plan, lost)["fastest"])
    few = recommend(spec, plan, lost, max_gpus=1)
    assert few["fastest"]["why"].startswith(
        "no cell with at most 1 worker reached a test accuracy of 0.8 (workers=2 batch=32 lr=0.2"
    )
    spec, plan, trials = study_of(TEXT, Law(learning=70))
    # at 0.2 and batch 32: 0.985 - 0.885 exp(-70 * 0.2 / 32 e) is 0.41, 0.62, 0.75
    short = [{**each, "epochs": each["epochs"][:3]} if each["params"]["num_gpus"] < 4 else each for each in trials]
    found = recommend(spec, plan, short, max_gpus=2)
    assert (found["target"], found["missed_targets"], found["max_gpus"]) == (0.5, [0.8], 2)
    assert "No cell with at most 2 workers reached 0.8." in recommendation_lines(found)[0]


@pytest.mark.parametrize("lack", ["steps", "rate"])
def test_where_a_target_was_reached_and_no_time_is_known_the_reason_is_said(lack):
    spec, plan, trials = study_of(TEXT, Law(learning=130))
    for trial in trials:
        if lack == "rate":
            trial["params"] = {**trial["params"], "learning_rate": 0.0}
        else:
            trial["epochs"] = [{**epoch, "steps": None, "samples": None} for epoch in trial["epochs"]]
    found = recommend(spec, plan, trials)
    why = "its records do not tell its steps" if lack == "steps" else "its learning rate is 0"
    assert "reached 0.8, but no time to it can be told: " + why in found["fastest"]["why"]
    assert found["missed_targets"] == []
    assert "no cell reached" not in " ".join(recommendation_lines(found)).lower()


def test_the_harder_target_of_an_error_is_rounded_up():
    text = TEXT.replace("name: x", "name: x\nworkload: {metric: mse, metric_mode: min}").replace("[0.5, 0.8]", "[0.85]")
    why = recommend(*study_of(text, Law(learning=130)))["fastest"]["why"]
    # 1 - 0.985 + 0.885 exp(-130 * 0.2 / 32 * 7) is 0.017998
    assert why.endswith("such as 0.018, which workers=1 batch=32 lr=0.2 has reached")
