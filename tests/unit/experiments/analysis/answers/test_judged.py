"""What a user's Ray Train loop can't show, and what is answered from what it tells.

Of runs that others made, tests/unit/experiments/judging says it.
"""

import functools

import pytest

from scalestudy.experiments.analysis.answers.analysis import Analysis
from scalestudy.experiments.analysis.answers.judged import LOOP_NOISE, LOOP_PHASES, LOOP_TIMES, SAID_BY_OTHERS
from scalestudy.experiments.analysis.answers.summary import summarise
from scalestudy.experiments.analysis.measures.parts import present
from scalestudy.experiments.analysis.measures.progress import LOOP_TELLS_NONE
from scalestudy.experiments.analysis.text.answer import study_took
from tests.support.loop_studies import LOOP, as_a_loop_tells, loop_study
from tests.support.synthetic_studies import strict, study_of
from tests.support.timed_studies import lent_study
from tests.support.trials import Law


@functools.cache
def summary(*, samples, rates=False):
    return strict(summarise(*loop_study(samples=samples, rates=rates)))


def recommended(found):
    return found["recommendation"]["recommended"]


@pytest.mark.parametrize("samples", [True, False])
def test_a_loop_gets_an_answer_from_its_reports(samples):
    found = summary(samples=samples)
    choice = recommended(found)
    assert choice["seconds"] == pytest.approx(choice["measured_seconds"], rel=0.1)
    assert choice["interval"]["low"] < choice["seconds"] < choice["interval"]["high"]
    assert found["cost"]["overhead_ratio"] >= 1
    assert found["study"]["loop"] == "my_loop:train"
    assert (found["study"]["model"], found["study"]["data"]) == (None, None)


def test_times_include_the_loops_evaluation_and_a_caveat_says_so():
    """A rate by `scalestudy.step` leaves evaluation out, which is a third of the time here."""
    with_rates, without = summary(samples=True, rates=True), summary(samples=True)
    assert recommended(with_rates)["seconds"] == pytest.approx(recommended(without)["seconds"], rel=1e-6)
    assert {"kind": "evaluation", "words": LOOP_TIMES} in without["caveats"]
    told, whole = (found["cells"][0]["samples_per_second"]["value"] for found in (with_rates, without))
    assert "start-up and recording are the difference" in study_took(without["cost"])
    assert told > 1.1 * whole  # of the cell, it is the loop's own


def test_the_laws_of_a_loop_that_tells_its_examples():
    found = summary(samples=True)
    for part in ("scaling", "throughput_model", "statistical_efficiency", "lr_rule", "predictions"):
        assert "why" not in found[part] or found[part]["why"] is None or "loop tells no steps" not in found[part]["why"]
    assert present(found["cells"][0]["samples_per_second"])
    assert found["statistical_efficiency"]["noise_scale"]["why"] == LOOP_NOISE
    assert found["statistical_efficiency"]["noise_scale"]["optimizer"] == SAID_BY_OTHERS
    assert all(row["step_seconds"] == {"value": None, "why": LOOP_PHASES} for row in found["cells"] + found["timings"])


def test_a_loop_that_tells_no_steps_has_no_law_and_each_part_says_why():
    found = summary(samples=False)
    for part in ("scaling", "throughput_model", "statistical_efficiency", "lr_rule", "predictions"):
        assert found[part]["why"] == LOOP_TELLS_NONE
    for row in found["cells"]:
        assert row["samples_per_second"] == row["epoch_seconds"] == {"value": None, "why": LOOP_TELLS_NONE}
        assert "examples" not in row
    assert all((row["steps"], row["examples"]) == (None, None) for row in found["timings"])


def test_seconds_in_place_of_updates_are_pooled_over_no_workers():
    """Two workers take half the seconds of one: a median over both would be the time of neither."""
    exact = LOOP.replace("metrics:", "exact: true, metrics:")
    for samples in (True, False):
        analysis = Analysis(*loop_study(samples=samples, text=exact))
        assert analysis.posterior.pooled("") is samples
        times = {row["label"]: (row["seconds"], row["measured_seconds"]) for row in analysis.times(0.8).rows}
        both = [times[f"workers={count} batch=32 lr=0.8"] for count in (1, 2)]
        for seconds, measured in both:
            assert seconds == pytest.approx(measured, rel=0.1)
    assert not Analysis(*loop_study()).posterior.pooled("")  # the spec does not say that it learns alike


def test_the_answer_is_that_of_the_same_trials_of_the_built_in_loop():
    """Without noise and evaluation: what a loop tells is enough."""
    law, own = Law(eval_seconds=0.0), LOOP.replace("metrics:", "exact: true, metrics:")
    built_in = LOOP.replace("loop: 'my_loop:train', loop_args: {hidden: 8}, metrics: {accuracy: eval_acc}", "")
    ours, theirs = summarise(*study_of(built_in, law)), summarise(*loop_study(law=law, text=own))
    for key in ("params", "seconds", "measured_seconds", "interval"):
        assert recommended(theirs)[key] == pytest.approx(recommended(ours)[key])


ADAPTIVE = (
    LOOP.replace("metrics:", "exact: true, metrics:").replace(", seed: [0, 1]", "")
    + "search: {method: adaptive}\nbudget: {trials: 40}\n"
)


def adaptive(*, samples):
    """A study of a loop whose trainings ran with one worker, with its timing runs of three reports."""
    law = Law(eval_seconds=0.05)
    study = lent_study(ADAPTIVE, law, seeds=[0, 1])
    for line in study.trials:
        as_a_loop_tells(line, samples=samples)
    return law, strict(study.summary())


def test_the_times_of_an_exact_loop_are_products_of_steps_and_whole_periods():
    law, found = adaptive(samples=True)
    rows = {row["label"]: row for row in found["cells"]}
    for batch_size in (32, 64, 128):
        row = rows[f"workers=2 batch={batch_size} lr=0.8"]
        assert row["kind"] == "lent"
        assert row["epoch_seconds"]["value"] == pytest.approx(law.epoch_seconds(2, batch_size) + law.eval_seconds)
    times = {row["label"]: row for row in found["time_to_target"]}
    ratio = times["workers=2 batch=128 lr=0.8"]["seconds"] / times["workers=1 batch=128 lr=0.8"]["seconds"]
    assert ratio == pytest.approx((law.epoch_seconds(2, 128) + 0.05) / (law.epoch_seconds(1, 128) + 0.05), rel=0.02)


def test_an_adaptive_study_of_a_loop_that_tells_no_steps_has_no_times_and_says_why():
    _, found = adaptive(samples=False)
    assert {row["seconds"] for row in found["time_to_target"]} == {None}
    assert recommended(found)["why"].endswith("its records do not tell its steps")
