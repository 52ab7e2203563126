"""Predictions beyond the cluster, and where they break."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalestudy.experiments.analysis.answers.posterior import Learnt, Posterior
from scalestudy.experiments.analysis.answers.predictions import predictions_part
from scalestudy.experiments.analysis.answers.throughput import throughput_part
from scalestudy.experiments.analysis.laws.steps_to_target import steps_to_target
from scalestudy.experiments.analysis.measures.cells import gather
from scalestudy.experiments.analysis.measures.metric import ACCURACY
from scalestudy.experiments.analysis.measures.parts import missing, present
from tests.support.approved import approved
from tests.support.arrivals import arrived
from tests.support.known_laws import Constants, StepLaw
from tests.support.synthetic_studies import strict, study_of
from tests.support.trials import slow_down

CONSTANTS = Constants(alpha_c=0.004, beta_c=5e-5, launch=0.0029, linear=0.0001, gamma=1.5)
BATCHES = (64, 256, 1024, 4096)
S_MIN, B_CRIT = 200.0, 2000.0


def steps_of(batch_size):
    return S_MIN * (1 + B_CRIT / batch_size)


class Timed(Posterior):
    """The posterior of a study whose steps were timed, and whose steps to a target are given."""

    points = ()

    def learnt(self, of, target):
        """As told by the points of a `statistical_efficiency`, each at five seeds of the same steps."""
        known = [point for point in self.points if point["estimate"] is not None]
        if not known:
            return None
        trained = np.array([(point.get("examples_per_step", point["batch_size"]), 0.1, 1.0) for point in known])
        logs = np.log([point["estimate"]["value"] for point in known])
        arrivals = arrived(np.repeat(logs, 5), np.repeat(range(len(known)), 5))
        keys = [(point["batch_size"], point["learning_rate"], 1) for point in known]
        return Learnt(
            pooled=True,
            places={key: index for index, key in enumerate(keys)},
            found=steps_to_target(trained, arrivals, np.random.default_rng(0)),
            able=dict.fromkeys(keys, 1.0),
            unseen=0,
        )


def throughput(num_gpus=(1, 2, 4, 8), noise=0.02, batches=BATCHES, nodes=None, change=None):
    """nodes: by num_gpus, on how many nodes they were; None: on one. change: of each trial."""
    sweep = f"num_gpus: {list(num_gpus)}, batch_size: {list(batches)}, seed: [0, 1, 2]"
    text = f"name: x\ntrain: {{epochs: 3}}\nsweep: {{{sweep}}}"
    law = StepLaw(constants=CONSTANTS, noise=noise, data=0.0, samples=65_536)
    spec, plan, trials = study_of(text, law, change=change)
    for trial in trials:
        trial["world"]["nodes"] = (nodes or {}).get(trial["params"]["num_gpus"], 1)
    return Timed(spec, gather(plan, trials, ACCURACY))


def predicted(timed, steps, price=None, part=None):
    """The predictions of timed steps and a `statistical_efficiency`. part: in place of the law's own."""
    timed.points = steps.get("points", ())
    return predictions_part(timed, throughput_part(timed) if part is None else part, steps, price)


def slowed(num_gpus):
    """A change that makes the steps of these workers at batch 256 take twice as long."""

    def change(trial):
        if (trial["params"]["num_gpus"], trial["params"]["batch_size"]) == (num_gpus, 256):
            slow_down(trial)

    return change


def efficiency(batches=BATCHES, **changes):
    """As `statistical_efficiency` writes it, without noise."""
    points = [
        {
            "batch_size": batch,
            "learning_rate": 0.1,
            "estimate": {"value": steps_of(batch), "low": steps_of(batch) * 0.95, "high": steps_of(batch) / 0.95},
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


SEVERAL = (1, 2, 4, 8, 16, 32, 64)
SEVERAL_NODES = {16: 2, 32: 4, 64: 8}


@pytest.fixture(scope="module")
def cluster():
    return throughput(SEVERAL, nodes=SEVERAL_NODES)


def test_rows_are_steps_times_seconds_at_the_soonest_batch():
    part = strict(predicted(throughput(noise=0.0), efficiency(), 3.6))
    assert [row["num_gpus"] for row in part["rows"] if row["valid"]] == [1, 2, 4, 8]
    for row in part["rows"][:4]:
        workers = row["num_gpus"]
        seconds = {
            batch: steps_of(batch) * float(CONSTANTS.step_seconds(workers, batch / workers)) for batch in BATCHES
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


def test_across_nodes_predictions_go_on_and_hold_the_truth(cluster):
    part = strict(predicted(cluster, efficiency()))
    beyond = [row for row in part["rows"] if row["beyond"] and row["valid"]]
    assert beyond[0]["num_gpus"] == 128
    for row in beyond:
        workers, batch = row["num_gpus"], row["batch_size"]
        truth = steps_of(batch) * float(CONSTANTS.step_seconds(workers, batch / workers))
        assert row["seconds_to_target"] == pytest.approx(truth, rel=0.1)
        assert row["low"] < truth < row["high"]


def test_a_step_of_which_too_little_is_known_is_no_prediction(cluster):
    part = predicted(throughput(SEVERAL, noise=0.6, nodes=SEVERAL_NODES), efficiency())
    assert part["breaks_at"]["num_gpus"] > 64
    assert part["breaks_at"]["num_gpus"] <= predicted(cluster, efficiency())["rows"][-1]["num_gpus"]
    assert "laws that fit the timings equally well differ there" in part["breaks_at"]["why"]


@settings(max_examples=12)
@given(
    st.sampled_from([(1,), (1, 2), (1, 4), (2, 4, 8), (1, 2, 4, 8)]),
    st.sampled_from([0.0, 0.05, 1.0, 3.0]),
    st.sampled_from([None, {2: 2, 4: 2, 8: 2}, {8: 2}]),
    st.booleans(),
)
def test_whatever_is_not_identified_it_never_raises(sizes, noise, nodes, phases):
    def forget(trial):
        for epoch in trial["epochs"]:
            epoch["phases"] = None

    found = strict(
        predicted(throughput(sizes, noise, nodes=nodes, change=None if phases else forget), efficiency(), 2.0)
    )
    for row in found["rows"]:
        assert row["valid"] or row["why"]
        if row["low"] is not None:
            assert row["low"] <= row["seconds_to_target"] <= row["high"]


def cases(cluster):
    """Title, time of a step and steps to a target of each case. cluster: timings of 1 to 64 workers, on nodes."""
    one_node = throughput()
    few, short = efficiency(batches=(64, 256)), {"batches": (16, 64)}
    yield "one node", one_node, efficiency()
    yield "four workers", throughput((1, 2, 3, 4)), efficiency()
    yield "several nodes", cluster, efficiency()
    yield "more workers than examples, larger batches may pay", cluster, efficiency(**short)
    yield "… may hardly pay", cluster, efficiency(**short, b_crit={"value": 50.0, "low": 40.0, "high": 60.0})
    yield "… are not known to pay", cluster, efficiency(**short, b_crit=missing("two batch sizes"))
    yield "a larger batch than those trained", cluster, few
    bound = {"value": S_MIN, "low": None, "high": None, "identified": False}
    yield "… where S_min is a bound", cluster, {**few, "s_min": bound}
    yield "… of 600 examples", cluster, {**few, "training_examples": 600.0}
    yield "… of 500 examples", cluster, {**few, "training_examples": 500.0}
    missed = {**few["points"][0], "batch_size": 512, "estimate": None}
    yield "… where one of 512 missed the target", cluster, {**few, "points": [*few["points"], missed]}
    yield "… of four workers", throughput((1, 2, 3, 4)), few
    yield "… of which two do not fit the law", throughput((1, 2, 3, 4), change=slowed(2)), few
    yield "16 workers do not fit the law", throughput(SEVERAL, nodes=SEVERAL_NODES, change=slowed(16)), efficiency()
    for sizes in ((1, 2), (1, 2, 4), (1,), (2, 4, 8)):
        yield f"{', '.join(map(str, sizes))} workers", throughput(sizes), efficiency()
    yield "2, 4, 8 workers on two nodes", throughput((2, 4, 8), nodes=dict.fromkeys((2, 4, 8), 2)), efficiency()
    yield "… and one beside them", throughput(nodes=dict.fromkeys((2, 4, 8), 2)), efficiency()
    yield "… each on a node", throughput(nodes={2: 2, 4: 4, 8: 8}), efficiency()
    open_cost = throughput_part(one_node)
    open_cost["alpha_c"] = {**open_cost["alpha_c"], "identified": False, "why": "it may be far less"}
    smaller_last = efficiency(batches=(64,))
    smaller_last["points"][0]["examples_per_step"] = 63.6
    yield "8 examples a worker or a little less, as timed", one_node, smaller_last, open_cost
    yield "2 examples a worker, fewer than were timed", one_node, efficiency(batches=(16,)), open_cost
    yield "one batch size", one_node, efficiency(batches=(256,))
    for sizes in ((1, 2, 4, 8), (1, 2)):
        large = throughput(sizes, batches=(64, 256, 1024))
        yield f"a batch too large for {', '.join(map(str, sizes))} workers", large, efficiency(batches=(4096,))
    yield "no target", one_node, missing("no target")
    yield "no batch size reached it", one_node, efficiency(points=[])
    yield "no time of a step", one_node, efficiency(), {"of": "", **missing("one place"), "others": []}
    yield "another combination", one_node, efficiency(of="gradient_sync=naive")


def told(part):
    """What a part says: the workers whose time is predicted, what holds of the most of them, and where it ends."""
    if not present(part):
        return [part["why"]]
    valid = [row for row in part["rows"] if row["valid"]]
    notes = [f"{row['num_gpus']}: {row['why']}" for row in valid[-1:] if row["why"]]
    notes += [f"not {row['num_gpus']}: {row['why']}" for row in part["rows"] if not (row["valid"] or row["beyond"])]
    end = part["breaks_at"]
    notes += [f"ends at {end['num_gpus']}: {end['why']}"] if end else []
    notes += [] if valid else [f"no best: {part['best']['fastest']['why']}"]
    sizes = ", ".join(str(row["num_gpus"]) for row in valid)
    return [f"{sizes or 'none'}; batch {part['batch_size']}", *notes]


def test_the_words_are_the_approved_ones(cluster):
    parts = {title: predicted(times, steps, None, *part) for title, times, steps, *part in cases(cluster)}
    text = "".join(f"# {title}\n" + "".join(f"{line}\n" for line in told(part)) for title, part in parts.items())
    approved(text, Path(__file__).parent / "predictions.txt")
