"""What a reader must know of a choice."""

import pytest

from scalestudy.experiments.analysis.answers.caveats import batch_edges, caveats_of, rate_edges
from scalestudy.experiments.analysis.measures.cells import gather
from scalestudy.experiments.analysis.measures.metric import ACCURACY
from tests.support.batch_summaries import study as batch_study

MEASURED = {"cells": ["a"], "seeds": 5, "kind": "measured"}
CHOICE = {
    "evidence": MEASURED,
    "n_seeds": 5,
    "reached": 5,
    "learning_rate": 0.4,
    "batch_size": 64,
    "censored": 0,
    "cut": 0,
    "upper_bound": False,
    "flags": [],
}


@pytest.mark.parametrize(
    ("facts", "edge", "ties", "words"),
    [
        ({}, None, [], []),
        ({"n_seeds": 1, "reached": 1}, None, [], ["Provisional: one seed. The scatter of seeds"]),
        ({"n_seeds": 3, "reached": 3}, None, [], ["Provisional: 3 seeds"]),
        ({"reached": 4}, None, [], ["1 of 5 seeds did not reach the target."]),
        ({"reached": 3, "censored": 2}, None, [], ["2 of 5 seeds did not reach the target."]),
        (
            {"reached": 3, "censored": 2, "cut": 1},
            None,
            [],
            ["2 of 5 seeds did not reach the target, 1 of which was stopped before their end."],
        ),
        ({"reached": None, "censored": None}, None, [], []),
        ({}, "highest", [], ["0.4 is the highest learning rate tried at batch 64: a higher one may do better"]),
        ({}, "lowest", [], ["a lower one may do better"]),
        ({}, "only", [], ["0.4 is the only learning rate tried at batch 64: another one may do better"]),
        ({"evidence": {**MEASURED, "kind": "factorised"}}, None, [], ["Inferred: the steps are those of a, the"]),
        ({"upper_bound": True}, None, [], ["an upper bound"]),
        ({"stopped_after": [1]}, None, [], []),
        (
            {"stopped_after": [1], "reached": None, "censored": None},
            None,
            [],
            ["1 seed was stopped early: its last evaluation"],
        ),
        ({"seconds": 3.0, "strong_speedup": 0.8, "num_gpus": 2}, None, [], ["2 workers ran at 0.80× the speed"]),
        ({"seconds": 3.0, "strong_speedup": 1.0, "num_gpus": 2}, None, [], []),
        ({"seconds": None, "strong_speedup": 0.8, "num_gpus": 2}, None, [], []),
        ({"flags": ["oversubscribed", "resumed"]}, None, [], ["marked oversubscribed, resumed"]),
        ({"nodes": 2}, None, [], ["Its workers were on 2 nodes: its times include the network between these."]),
        ({"n_seeds": 2, "reached": 2}, None, ["b"], ["Provisional: 2 seeds", "Tied with b"]),
    ],
)
def test_caveats(facts, edge, ties, words):
    found = caveats_of({**CHOICE, **facts}, edge, ties)
    assert len(found) == len(words)
    for caveat, part in zip(found, words, strict=True):
        assert part in caveat["words"]
        assert caveat["words"].endswith(".")


def test_edges_of_the_rates_tried_whatever_the_number_of_workers():
    _, plan, trials = batch_study(workers="[1, 2]", batches="[64]", rates="[0.1, 0.2, 0.4]", seeds="[0]", epochs=2)
    # on two workers alone the highest was tried
    trials = [trial for trial in trials if trial["params"]["num_gpus"] == 2 or trial["params"]["learning_rate"] < 0.4]
    assert rate_edges(gather(plan, trials, ACCURACY)) == {
        "workers=1 batch=64 lr=0.1": "lowest",
        "workers=2 batch=64 lr=0.1": "lowest",
        "workers=1 batch=64 lr=0.4": "highest",
        "workers=2 batch=64 lr=0.4": "highest",
    }
    for trial in trials:
        trial["status"] = "out_of_memory" if trial["params"]["learning_rate"] != 0.2 else "diverged"
    assert rate_edges(gather(plan, trials, ACCURACY))["workers=1 batch=64 lr=0.2"] == "only"


def test_edges_of_the_batch_sizes_tried_each_at_its_own_rates():
    _, plan, trials = batch_study(workers="[1]", batches="[32, 64, 128]", rates="[0.1, 0.4]", seeds="[0]", epochs=2)
    own = {32: 0.1, 64: 0.1, 128: 0.4}
    trials = [trial for trial in trials if trial["params"]["learning_rate"] == own[trial["params"]["batch_size"]]]
    assert batch_edges(gather(plan, trials, ACCURACY)) == {
        "workers=1 batch=32 lr=0.1": "lowest",
        "workers=1 batch=32 lr=0.4": "lowest",
        "workers=1 batch=128 lr=0.1": "highest",
        "workers=1 batch=128 lr=0.4": "highest",
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
    assert [caveat["words"].partition(" ")[2] for caveat in found] == words
