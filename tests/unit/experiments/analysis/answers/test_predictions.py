"""Predictions beyond the cluster, and where they break."""

import copy
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalestudy.experiments.analysis.answers.predictions import MOST_WORKERS, NODE_WORKERS, predictions_part
from scalestudy.experiments.analysis.answers.throughput import throughput_part, timed_steps
from scalestudy.experiments.analysis.laws.step_terms import Constants
from scalestudy.experiments.analysis.laws.step_time import MEASURE
from scalestudy.experiments.analysis.measures.cells import gather
from scalestudy.experiments.analysis.measures.metric import ACCURACY
from scalestudy.experiments.analysis.measures.parts import missing
from tests.support.known_laws import StepLaw
from tests.support.synthetic_studies import study_of
from tests.support.trials import slow

CONSTANTS = Constants(alpha_c=0.004, beta_c=5e-5, launch=0.0029, linear=0.0001, gamma=1.5)
BATCHES = (64, 256, 1024, 4096)
S_MIN, B_CRIT = 200.0, 2000.0


def steps_to_target(batch_size):
    return S_MIN * (1 + B_CRIT / batch_size)


def throughput(num_gpus=(1, 2, 4, 8), noise=0.02, batches=BATCHES, nodes=None, change=None):
    """nodes: by num_gpus, on how many nodes they were; None: on one. change: of each trial."""
    sweep = f"num_gpus: {list(num_gpus)}, batch_size: {list(batches)}, seed: [0, 1, 2]"
    text = f"name: x\ntrain: {{epochs: 3}}\nsweep: {{{sweep}}}"
    law = StepLaw(constants=CONSTANTS, noise=noise, data=0.0, samples=65_536)
    _, plan, trials = study_of(text, law, change=change)
    for trial in trials:
        trial["world"]["nodes"] = (nodes or {}).get(trial["params"]["num_gpus"], 1)
    return throughput_part(timed_steps(gather(plan, trials, ACCURACY)))


def slowed(num_gpus):
    """A change that makes the steps of these workers at batch 256 take twice as long."""
    return lambda trial: (trial["params"]["num_gpus"], trial["params"]["batch_size"]) == (num_gpus, 256) and slow(trial)


def efficiency(batches=BATCHES, **changes):
    """As `statistical_efficiency` writes it, without noise."""
    points = [
        {
            "batch_size": batch,
            "learning_rate": 0.1,
            "steps": steps_to_target(batch),
            "n": 5,
            "low": steps_to_target(batch) * 0.95,
            "high": steps_to_target(batch) / 0.95,
            "fitted_steps": steps_to_target(batch),
        }
        for batch in batches
    ]
    return {
        "of": "",
        "target": 0.8,
        "points": points,
        "s_min": {"value": S_MIN, "low": 180.0, "high": 222.0},
        "b_crit": {"value": B_CRIT, "low": 1700.0, "high": 2350.0},
        **changes,
    }


SEVERAL_NODES = {16: 2, 32: 4, 64: 8}


@pytest.fixture(scope="module")
def cluster():
    return throughput((1, 2, 4, 8, 16, 32, 64), nodes=SEVERAL_NODES)


def check(part):
    assert json.loads(json.dumps(part, allow_nan=False)) == part
    return part


def test_rows_are_steps_times_seconds_at_the_soonest_batch():
    part = check(predictions_part(throughput(noise=0.0), efficiency(), 3.6))
    assert [row["num_gpus"] for row in part["rows"] if row["valid"]] == [1, 2, 4, 8]
    for row in part["rows"][:4]:
        workers = row["num_gpus"]
        seconds = {
            batch: steps_to_target(batch) * float(CONSTANTS.step_seconds(workers, batch / workers)) for batch in BATCHES
        }
        assert row["batch_size"] == min(seconds, key=seconds.get)
        assert row["seconds_to_target"] == pytest.approx(seconds[row["batch_size"]], rel=0.01)
        assert row["worker_seconds"] == pytest.approx(row["seconds_to_target"] * workers)
        assert row["cost"] == pytest.approx(row["worker_seconds"] / 1000)  # 3.6 an hour is 0.001 a second
        assert row["per_worker_batch"] == row["batch_size"] / workers
        assert not row["beyond"]
    assert part["batch_size"] == "the soonest of 64, 256, 1024, 4096"
    assert part["best"]["fastest"]["num_gpus"] == 8
    assert part["best"]["cheapest"]["num_gpus"] == 1
    assert (part["of"], part["target"]) == ("", 0.8)


def test_one_node_says_nothing_of_several():
    part = predictions_part(throughput(), efficiency())
    assert part["breaks_at"]["num_gpus"] == 2 * NODE_WORKERS
    assert "several nodes" in part["breaks_at"]["why"]
    assert MEASURE["alpha_n"] in part["breaks_at"]["why"]
    assert part["rows"][-1]["seconds_to_target"] is None
    fewer = predictions_part(throughput((1, 2, 3, 4)), efficiency())
    assert [row["num_gpus"] for row in fewer["rows"] if row["valid"]] == [1, 2, 3, 4, NODE_WORKERS]


def test_across_nodes_predictions_go_on_and_hold_the_truth(cluster):
    part = check(predictions_part(cluster, efficiency()))
    beyond = [row for row in part["rows"] if row["beyond"] and row["valid"]]
    assert beyond[0]["num_gpus"] == 128
    for row in beyond:
        workers, batch = row["num_gpus"], row["batch_size"]
        truth = steps_to_target(batch) * float(CONSTANTS.step_seconds(workers, batch / workers))
        assert row["seconds_to_target"] == pytest.approx(truth, rel=0.1)
        assert row["low"] < truth < row["high"]


def test_workers_without_an_example_each_are_the_end(cluster):
    part = predictions_part(cluster, efficiency(batches=(16, 64)), most_workers=MOST_WORKERS)
    assert part["breaks_at"]["num_gpus"] == 128
    assert "more than the largest batch measured has examples (64); up to 2e+03" in part["breaks_at"]["why"]
    assert all(row["per_worker_batch"] >= 1 for row in part["rows"] if row["valid"])
    flat = efficiency(batches=(16, 64), b_crit={"value": 50.0, "low": 40.0, "high": 60.0})
    assert "hardly needs fewer steps" in predictions_part(cluster, flat)["breaks_at"]["why"]
    unknown = efficiency(batches=(16, 64), b_crit=missing("two batch sizes"))
    assert "train with larger batches" in predictions_part(cluster, unknown)["breaks_at"]["why"]


def test_a_larger_batch_that_would_pay_is_named(cluster):
    part = predictions_part(cluster, efficiency(batches=(64, 256)))
    row = next(row for row in part["rows"] if row["num_gpus"] == 8)
    assert row["valid"]
    assert "beyond those measured, is predicted to be" in row["why"]
    bounds = efficiency(batches=(64, 256), s_min={"value": S_MIN, "low": None, "high": None, "identified": False})
    assert predictions_part(cluster, bounds)["rows"][3]["why"] is None


def test_a_law_that_the_timings_reject_proposes_no_larger_batch():
    few, times = efficiency(batches=(64, 256)), throughput((1, 2, 3, 4), change=slowed(2))
    assert times["misfit"]
    part = predictions_part(times, few)
    assert "with 2 workers and batch 256 they take" in part["breaks_at"]["why"]
    assert {row["why"] for row in part["rows"] if row["valid"]} == {None}
    assert predictions_part(throughput((1, 2, 3, 4)), few)["rows"][3]["why"]


def test_fewer_than_four_numbers_of_workers_are_not_extrapolated():
    for sizes, words in (
        ((1, 2), "only 2 workers"),
        ((1, 2, 4), "only 2 and 4 workers"),
        ((1,), "no more than one worker"),
    ):
        part = predictions_part(throughput(sizes), efficiency())
        assert part["breaks_at"]["num_gpus"] == 2 * sizes[-1]
        assert words in part["breaks_at"]["why"]
        assert [row["num_gpus"] for row in part["rows"] if row["valid"]] == list(sizes)


def test_a_step_of_which_too_little_is_known_is_no_prediction(cluster):
    part = predictions_part(throughput((1, 2, 4, 8, 16, 32, 64), noise=0.6, nodes=SEVERAL_NODES), efficiency())
    assert part["breaks_at"]["num_gpus"] > 64
    assert part["breaks_at"]["num_gpus"] <= predictions_part(cluster, efficiency())["rows"][-1]["num_gpus"]
    assert "laws that fit the timings equally well differ there" in part["breaks_at"]["why"]


def test_an_epoch_s_smaller_last_batch_makes_no_share_too_small():
    times = throughput()
    times["alpha_c"] = {**times["alpha_c"], "identified": False, "why": "it may be far less"}
    steps = efficiency(batches=(64,))
    steps["points"][0]["examples_per_step"] = 63.6
    assert all(row["valid"] for row in predictions_part(times, steps)["rows"] if not row["beyond"])
    fewer = [row for row in predictions_part(times, efficiency(batches=(16,)))["rows"] if row["num_gpus"] == 8]
    assert "2 examples a worker are fewer than the 8 timed" in fewer[0]["why"]


def test_one_batch_size_is_constant():
    part = predictions_part(throughput(), efficiency(batches=(256,)))
    assert part["batch_size"] == "constant at 256"
    assert {row["batch_size"] for row in part["rows"] if row["valid"]} == {256}


def test_batches_that_were_not_timed_a_worker_may_not_fit_memory():
    part = predictions_part(throughput(batches=(64, 256, 1024)), efficiency(batches=(4096,)))
    assert [row["valid"] for row in part["rows"]] == [False, False, True, True, False]
    assert "more than the 1024 examples a worker" in part["rows"][0]["why"]
    assert part["breaks_at"]["num_gpus"] == 16
    none = predictions_part(throughput((1, 2), batches=(64, 256, 1024)), efficiency(batches=(4096,)))
    assert "more than the 1024 examples" in none["best"]["fastest"]["why"]


def test_one_seed_gives_no_interval():
    one = efficiency()
    for point in one["points"]:
        point |= {"n": 1, "low": point["steps"], "high": point["steps"]}
    row = predictions_part(throughput(), one)["rows"][0]
    assert (row["low"], row["high"]) == (None, None)
    assert row["valid"]


def test_steps_that_were_measured_where_there_is_no_law():
    points = [{**point, "fitted_steps": None, "steps": 77.0} for point in efficiency()["points"]]
    law = dict.fromkeys(("s_min", "b_crit"), missing("one batch size"))
    part = check(predictions_part(throughput(), efficiency(points=points, **law)))
    row = part["rows"][0]
    assert row["seconds_to_target"] == pytest.approx(77 * row["step_seconds"])


@pytest.mark.parametrize(
    ("steps", "times", "words"),
    [
        (missing("no target"), None, "steps to a target are not known: no target"),
        (efficiency(points=[]), None, "no batch size reached one"),
        (None, {"of": "", **missing("one place"), "others": []}, "the time of a step is not known: one"),
        (efficiency(of="gradient_sync=naive"), None, "not for this combination"),
    ],
)
def test_what_cannot_be_predicted_says_why(steps, times, words):
    part = predictions_part(times or throughput(), steps or efficiency())
    assert part["value"] is None
    assert words in part["why"]


@settings(max_examples=30)
@given(
    st.sampled_from([(1,), (1, 2), (1, 4), (2, 4, 8), (1, 2, 4, 8)]),
    st.sampled_from([0.0, 0.05, 1.0, 3.0]),
    st.sampled_from([None, {2: 2, 4: 2, 8: 2}, {8: 2}]),
    st.booleans(),
)
def test_whatever_is_not_identified_it_never_raises(sizes, noise, nodes, phases):
    part = copy.deepcopy(throughput(sizes, noise, nodes=nodes))
    if not phases:
        part["data_seconds"] = missing("phases were not measured")
    found = check(predictions_part(part, efficiency(), 2.0))
    for row in found["rows"]:
        assert row["valid"] or row["why"]
        if row["low"] is not None:
            assert row["low"] <= row["seconds_to_target"] <= row["high"]


def test_three_numbers_above_one_are_too_few_without_one_worker():
    part = predictions_part(throughput((2, 4, 8)), efficiency())
    assert part["breaks_at"]["num_gpus"] == 16
    nodes = dict.fromkeys((2, 4, 8), 2)
    across = predictions_part(throughput((2, 4, 8), nodes=nodes), efficiency())
    assert "only 2, 4 and 8 workers were timed across nodes" in across["breaks_at"]["why"]
    assert "time at least 4 values of num_gpus" in across["breaks_at"]["why"]
    with_one = predictions_part(throughput((1, 2, 4, 8), nodes={2: 2, 4: 4, 8: 8}), efficiency())
    assert with_one["rows"][4]["valid"]
    two_nodes = predictions_part(throughput((1, 2, 4, 8), nodes=nodes), efficiency())
    assert "with 2 nodes only" in two_nodes["breaks_at"]["why"]
    assert MEASURE["beta_n"] in two_nodes["breaks_at"]["why"]


def test_below_five_seeds_the_range_of_steps_is_no_interval():
    points = efficiency()["points"]
    for change in ({"n": 4}, {"upper_bound": True}):
        part = predictions_part(throughput(), efficiency(points=[{**point, **change} for point in points]))
        valid = [row for row in part["rows"] if row["valid"]]
        assert valid
        assert all((row["low"], row["high"]) == (None, None) for row in valid)


def test_no_batch_is_proposed_above_the_training_set_or_where_one_missed(cluster):
    few = efficiency(batches=(64, 256))

    def proposed(part):
        return predictions_part(cluster, part)["rows"][3]["why"]  # with 8 workers

    assert "a batch of" in proposed(few)
    assert "a batch of 512," in proposed({**few, "training_examples": 600.0})
    assert proposed({**few, "training_examples": 500.0}) is None
    missed = {**few["points"][0], "batch_size": 512, "steps": None, "fitted_steps": None}
    assert proposed({**few, "points": [*few["points"], missed]}) is None


def test_nothing_is_predicted_beyond_four_times_the_workers_timed(cluster):
    part = predictions_part(cluster, efficiency())
    assert [row["num_gpus"] for row in part["rows"] if row["beyond"] and row["valid"]] == [128, 256]
    assert part["breaks_at"] == {
        "num_gpus": 512,
        "why": "512 workers are more than 4 times the 64 timed; time steps with 128 workers or more",
    }


def test_where_no_law_fits_the_size_to_time_again_is_named():
    times = throughput((1, 2, 4, 8, 16, 32, 64), nodes=SEVERAL_NODES, change=slowed(16))
    part = predictions_part(times, efficiency())
    assert part["breaks_at"]["num_gpus"] == 128
    assert "no law fits the steps timed: with 16 workers and batch 256 they take" in part["breaks_at"]["why"]
    assert "time that size again" in part["breaks_at"]["why"]
    assert all(row["valid"] for row in part["rows"] if not row["beyond"])
