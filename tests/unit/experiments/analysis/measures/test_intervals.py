"""What several seeds say of one figure, and what a choice can't be told apart from."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalestudy.experiments.analysis.measures.intervals import (
    Contender,
    disjoint,
    holding,
    indistinguishable,
    order_rank,
    over_seeds,
    scaled,
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
    found, wanted = over_seeds([time * factor for time in times]), scaled(over_seeds(times), factor)
    assert found["kind"] == wanted["kind"]
    assert (found["low"], found["high"]) == pytest.approx((wanted["low"], wanted["high"]))


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
    assert scaled(None, 2.0) is None


# --- what a choice can't be told apart from ---------------------------------------------------------------------------


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
