"""What a choice can't be told apart from, and what a reader must know of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalestudy.experiments.analysis.answers.recommendation import batch_edges, caveats_of, rate_edges
from scalestudy.experiments.analysis.measures.cells import gather
from scalestudy.experiments.analysis.measures.intervals import Contender, disjoint, indistinguishable, tie_sentence
from scalestudy.experiments.analysis.measures.metric import ACCURACY
from tests.support.batch_summaries import study


def contender(label, low, high, n=5, figure=None):
    interval = {"kind": "t", "low": low, "high": high}
    return Contender(label=label, figures=(figure or low,), intervals=(interval,), n_seeds=n)


def test_overlapping_intervals_are_ties_the_runner_up_first():
    chosen = contender("a", 1.0, 2.0)
    others = [contender("d", 2.1, 3.0), contender("c", 1.8, 2.5), contender("b", 1.5, 2.2), chosen]
    assert indistinguishable(chosen, others) == ["b", "c"]


def test_one_seed_is_no_tie_but_not_known():
    assert indistinguishable(contender("a", 1.0, 1.0, n=1), [contender("b", 1.0, 1.0, n=1)]) == []
    assert indistinguishable(contender("a", 1.0, 1.0, n=2), [contender("b", 1.0, 1.0, n=2)]) == ["b"]


def test_two_figures_must_both_overlap():
    def of(label, *intervals):
        both = tuple({"kind": "t", "low": low, "high": high} for low, high in intervals)
        return Contender(label=label, figures=tuple(low for low, _ in intervals), intervals=both, n_seeds=5)

    chosen = of("a", (1, 2), (10, 20))
    assert indistinguishable(chosen, [of("b", (1.5, 3), (15, 30)), of("c", (1.5, 3), (25, 30))]) == ["b"]


ENDS = st.tuples(st.floats(0.1, 100), st.floats(0.1, 100)).map(sorted)


@given(st.lists(ENDS, min_size=1, max_size=10))
def test_ties_are_mutual_and_overlap(ends):
    contenders = [contender(str(number), low, high) for number, (low, high) in enumerate(ends)]
    found = {each.label: indistinguishable(each, contenders) for each in contenders}
    for one in contenders:
        assert one.label not in found[one.label]
        for other in contenders:
            if other is not one:
                assert (other.label in found[one.label]) == (one.label in found[other.label])
                assert (other.label in found[one.label]) != disjoint(one.intervals[0], other.intervals[0])


def test_ties_in_words():
    assert tie_sentence([]) is None
    assert tie_sentence(["b"]) == "Not told apart from b: their intervals overlap."
    assert tie_sentence(["b", "c"]) == "Not told apart from b and 1 other: their intervals overlap."
    assert tie_sentence(["b", "c", "d"]) == "Not told apart from b and 2 others: their intervals overlap."


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
    _, plan, trials = study(workers="[1, 2]", batches="[64]", rates="[0.1, 0.2, 0.4]", seeds="[0]", epochs=2)
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
    _, plan, trials = study(workers="[1]", batches="[32, 64, 128]", rates="[0.1, 0.4]", seeds="[0]", epochs=2)
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
