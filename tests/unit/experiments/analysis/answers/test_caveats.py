"""What a reader must know of a choice."""

from pathlib import Path

from scalestudy.experiments.analysis.answers.caveats import batch_edges, caveats_of, rate_edges
from scalestudy.experiments.analysis.measures.cells import gather
from scalestudy.experiments.analysis.measures.metric import ACCURACY
from tests.support.approved import approved
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


FACTS = (
    {},
    {"n_seeds": 1, "reached": 1},
    {"n_seeds": 3, "reached": 3},
    {"reached": 4},
    {"reached": 3, "censored": 2},
    {"reached": 3, "censored": 2, "cut": 1},
    {"reached": None, "censored": None},
    {"evidence": {**MEASURED, "kind": "lent"}},
    {"upper_bound": True},
    {"stopped_after": [1]},
    {"stopped_after": [1], "reached": None, "censored": None},
    {"seconds": 3.0, "strong_speedup": 0.8, "num_gpus": 2},
    {"seconds": 3.0, "strong_speedup": 1.0, "num_gpus": 2},
    {"seconds": None, "strong_speedup": 0.8, "num_gpus": 2},
    {"flags": ["oversubscribed", "resumed"]},
    {"nodes": 2},
)
"""What is not as usual of a choice."""


def test_the_words_are_the_approved_ones():
    found = {str(facts): caveats_of({**CHOICE, **facts}, None, []) for facts in FACTS}
    for edge in ("lowest", "highest", "only", None):
        found[f"learning rate: {edge}"] = caveats_of(CHOICE, edge, [])
        found[f"batch size: {edge}"] = caveats_of(CHOICE, None, [], edge)
    found["two seeds, a tie"] = caveats_of({**CHOICE, "n_seeds": 2, "reached": 2}, None, ["b"])
    text = "".join(
        f"# {title}\n" + "".join(f"{caveat['kind']}: {caveat['words']}\n" for caveat in caveats)
        for title, caveats in found.items()
    )
    approved(text, Path(__file__).parent / "caveats.txt")


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
