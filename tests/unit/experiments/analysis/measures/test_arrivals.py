"""When a training met a target, as far as its evaluations tell."""

import math

import pytest

from scalestudy.experiments.analysis.measures.arrivals import (
    Arrival,
    Passing,
    arrival_of,
    arrival_of_stopped,
    confirmed_share,
)
from scalestudy.experiments.analysis.measures.metric import ACCURACY

TARGET = 0.8


def curve(*values):
    return tuple((100.0 * place, value) for place, value in enumerate(values, start=1))


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ((0.5, 0.7, 0.9, 0.9), Arrival(low=200, high=300, value=pytest.approx(250))),
        ((0.9, 0.9), Arrival(low=0, high=100)),
        ((0.9, 0.7, 0.9, 0.9), Arrival(low=200, high=300, value=pytest.approx(250))),
        ((0.5, 0.7, 0.8), Arrival(low=200, high=300, chance=0.6, value=pytest.approx(300))),
        ((0.9,), Arrival(low=0, high=100, chance=0.6)),
        ((0.5, 0.9, 0.7), Arrival(low=300, high=math.inf)),
        ((0.5, 0.7), Arrival(low=200, high=math.inf)),
        ((), Arrival(low=0, high=math.inf)),
    ],
)
def test_it_lies_between_two_evaluations(values, found):
    assert arrival_of(curve(*values), TARGET, ACCURACY, confirmed=0.6) == found


def test_the_share_that_the_next_evaluation_confirms():
    curves = [curve(0.9, 0.9), curve(0.5, 0.9, 0.7, 0.9, 0.9), curve(0.5, 0.9), curve(0.1, 0.2), ()]
    # of five that are assumed, four; of the two that were followed, one
    assert confirmed_share(curves, TARGET, ACCURACY) == pytest.approx(5 / 7)
    assert confirmed_share([], TARGET, ACCURACY) == pytest.approx(4 / 5)


def passing(*curves):
    return Passing.of(curves, TARGET, ACCURACY)


def test_one_that_was_stopped_for_being_behind_takes_what_the_others_took_from_there():
    others = [curve(0.4, 0.6, 0.8, 0.9), curve(0.2, 0.5, 0.8, 0.9), curve(0.4, 0.5, 0.6, 0.8, 0.9)]
    others += [curve(0.6, 0.7), curve(0.9, 0.9)]  # one never arrived, and one was there at its first evaluation
    found = arrival_of_stopped(curve(0.1, 0.2, 0.3, 0.4), passing(*others))
    # they passed 0.4 after 100, 200 and 100 steps, and arrived after 300, 300 and 400: 3, 1.5 and 4 times as many
    assert (found.low, found.high) == (400, math.inf)
    assert found.value == pytest.approx(1200)
    assert found.extra == pytest.approx(0.245, abs=0.01)


def test_where_too_few_came_past_its_value_it_arrives_some_time_after_its_end():
    assert arrival_of_stopped(curve(0.1, 0.4), passing(curve(0.4, 0.8, 0.9))) == Arrival(low=200, high=math.inf)
    assert arrival_of_stopped(curve(0.1, 0.4), passing()) == Arrival(low=200, high=math.inf)
    assert arrival_of_stopped((), passing()) == Arrival(low=0, high=math.inf)
