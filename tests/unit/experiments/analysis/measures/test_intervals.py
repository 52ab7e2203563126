"""What several seeds say of one figure, and what a choice can't be told apart from."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalestudy.experiments.analysis.measures.intervals import (
    Contender,
    Scatter,
    disjoint,
    holding,
    indistinguishable,
    order_rank,
    over_seeds,
    scatter,
    t_interval,
    tie_sentence,
)

TIMES = st.lists(st.floats(0.1, 1e6), min_size=1, max_size=15)


def test_below_five_seeds_the_range():
    assert over_seeds([]) is None
    assert over_seeds([3.0]) == {"kind": "range", "low": 3.0, "high": 3.0}
    assert over_seeds([3.0, 1.0, 2.0, 5.0]) == {"kind": "range", "low": 1.0, "high": 5.0}
    assert over_seeds([3.0, math.inf]) == {"kind": "range", "low": 3.0, "high": None}
    assert over_seeds([math.inf]) == {"kind": "range", "low": None, "high": None}


def test_from_five_a_t_interval_of_logarithms():
    # logarithms 0 to 4: mean 2, standard deviation √2.5 = 1.5811; 2.1318 · 1.5811 / √5 = 1.5074
    found = over_seeds([math.exp(power) for power in (0, 1, 2, 3, 4)])
    assert found["kind"] == "t"
    assert (math.log(found["low"]), math.log(found["high"])) == pytest.approx((0.4926, 3.5074), abs=1e-4)
    plain = over_seeds([0.0, 1.0, 2.0, 3.0, 4.0])  # a zero has no logarithm
    assert (plain["low"], plain["high"]) == pytest.approx((0.4926, 3.5074), abs=1e-4)
    assert t_interval([0.0, 1.0, 2.0, 3.0, 4.0]) == (plain["low"], plain["high"])


def test_with_a_miss_order_statistics():
    assert over_seeds([5.0, 1.0, math.inf, 2.0, 3.0]) == {"kind": "order", "low": 1.0, "high": None}
    # of eight the second from either end: 2 · (1 + 8)/256 = 7 %
    values = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, math.inf]
    assert over_seeds(values) == {"kind": "order", "low": 2.0, "high": 7.0}


def test_ranks():
    # 5: 2/32 = 6 %; 7: 2 · (1 + 7)/128 = 12.5 % is too much for the second; 8: 7 %; 11: 2 · (1 + 11 + 55)/2048 = 6.5 %
    assert [order_rank(count) for count in (1, 4, 5, 7, 8, 11)] == [1, 1, 1, 1, 2, 3]


@given(TIMES, st.floats(0.01, 100))
def test_intervals_scale_with_their_figures(times, factor):
    found, base = over_seeds([time * factor for time in times]), over_seeds(times)
    assert found["kind"] == base["kind"]
    for end in ("low", "high"):
        assert found[end] == (None if base[end] is None else pytest.approx(base[end] * factor))


@given(TIMES, TIMES)
def test_apart_is_the_same_both_ways_and_never_from_itself(one, other):
    first, second = over_seeds(one), over_seeds(other)
    assert disjoint(first, second) == disjoint(second, first)
    assert not disjoint(first, first)


def test_what_is_apart():
    assert disjoint({"low": 1.0, "high": 2.0}, {"low": 2.1, "high": None})
    assert not disjoint({"low": 1.0, "high": 2.0}, {"low": 2.0, "high": 3.0})  # they touch
    assert not disjoint({"low": 1.0, "high": None}, {"low": 5.0, "high": 6.0})
    assert disjoint({"low": 1.0, "high": 2.0}, {"low": None, "high": None})  # never reached


def test_an_interval_is_made_to_hold_the_typical_value():
    interval = {"kind": "t", "low": 2.0, "high": 3.0}
    assert holding(interval, 2.5) == interval
    assert holding(interval, 4.0) == {"kind": "t", "low": 2.0, "high": 4.0}
    assert holding(interval, None) == interval
    assert holding(None, 1.0) is None


# --- what a choice is tied with ---------------------------------------------------------------------------


def contender(label, low, high, n=5, figure=None):
    interval = {"kind": "t", "low": low, "high": high}
    return Contender(label=label, figure=figure or low, interval=interval, n_seeds=n)


def test_overlapping_intervals_are_ties_the_runner_up_first():
    chosen = contender("a", 1.0, 2.0)
    others = [contender("d", 2.1, 3.0), contender("c", 1.8, 2.5), contender("b", 1.5, 2.2), chosen]
    assert indistinguishable(chosen, others) == ["b", "c"]


def test_one_seed_is_no_tie_but_not_known():
    assert indistinguishable(contender("a", 1.0, 1.0, n=1), [contender("b", 1.0, 1.0, n=1)]) == []
    assert indistinguishable(contender("a", 1.0, 1.0, n=2), [contender("b", 1.0, 1.0, n=2)]) == ["b"]


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
                assert (other.label in found[one.label]) != disjoint(one.interval, other.interval)


def test_ties_in_words():
    assert tie_sentence([]) is None
    assert tie_sentence(["b"]) == "Tied with b: the difference is within noise."
    assert tie_sentence(["b", "c"]) == "Tied with b and 1 other: the difference is within noise."
    assert tie_sentence(["b", "c", "d"]) == "Tied with b and 2 others: the difference is within noise."


def test_scatter_is_pooled_over_places():
    # logs 0 and log 2: their deviation is log(2)/√2 = 0.490; 0, log 2, log 4: log 2 = 0.693
    places = [scatter([1.0, 2.0]), scatter([5.0]), scatter([1.0, 2.0, 4.0]), scatter([None, 0.0])]
    assert places[0] == {"value": pytest.approx(0.4901, abs=1e-4), "n": 2}
    few = {"value": None, "why": "fewer than two runs measured it"}
    assert (places[1], places[3]) == ({**few, "n": 1}, {**few, "n": 0})
    found = Scatter.pooled(places)
    # √((1 · 0.2402 + 2 · 0.4805) / 3) = 0.6327
    assert (found.deviation, found.freedom) == (pytest.approx(0.6327, abs=1e-4), 3)
    # t at 90 % and 3 degrees 2.3534; the mean of two runs and the median of three: √(1/2 + 1.5708/3) = 1.0117
    assert found.half(2, 3) == pytest.approx(2.3534 * 0.6327 * 1.0117, rel=1e-3)
    # the upper 5 % point of chi-square with 3 degrees is 7.8147
    assert found.least() == pytest.approx(0.6327 * math.sqrt(3 / 7.8147), rel=1e-3)
    assert Scatter.pooled(places[1:2]) is None


@pytest.mark.parametrize("runs", [2, 3, 9])
def test_the_interval_of_a_ratio_of_medians_covers_it(runs):
    generator = np.random.default_rng(3)
    held = 0
    for _ in range(600):
        places = np.exp(generator.normal(0, 0.15, (4, runs)))
        half = Scatter.pooled(map(scatter, places)).half(runs, runs)
        held += abs(math.log(np.median(places[0]) / np.median(places[1]))) <= half
    assert 0.86 <= held / 600 <= 0.97
