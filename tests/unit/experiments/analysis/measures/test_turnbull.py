"""The median of times of which some are known as intervals."""

import math
import statistics
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize

from scalestudy.experiments.analysis.measures.arrivals import NEVER, Arrival
from scalestudy.experiments.analysis.measures.turnbull import estimate, median_arrival


def at(time):
    """Known by interpolation."""
    return Arrival(low=time - 1, high=time + 1, value=time)


def after(time):
    """Its training ended then."""
    return Arrival(low=time, high=math.inf)


def first(time):
    """The first evaluation met the target, and the second."""
    return Arrival(low=0.0, high=time)


def last(time, chance=0.8):
    """The last evaluation alone met the target, a little after this time."""
    return replace(at(time), chance=chance)


def test_the_median_of_times_some_of_which_were_cut_off():
    # five: an event at 1 leaves 4/5, one of three left at 3 leaves 4/5 · 2/3 = 8/15, one of two at 4 leaves 4/15
    assert median_arrival([at(1), after(2), at(3), at(4), after(5)]) == 4
    # four: 3/4 at 1, exactly half at 2; the median is the middle of 2 and the next event, at 4
    assert median_arrival([at(1), at(2), after(3), at(4)]) == 3
    # an event and an end at one time: the event is first, so that it counts among two: half; no later event
    assert median_arrival([after(2), at(2)]) == math.inf
    assert median_arrival([at(1), at(2), NEVER]) == 2
    assert median_arrival([at(1), NEVER, NEVER]) == math.inf
    assert median_arrival([at(1), after(2), after(3)]) == math.inf  # two thirds outlast what was seen
    assert median_arrival([]) == math.inf


def test_an_arrival_before_the_first_evaluation_is_where_others_are_known_to_be():
    assert median_arrival([first(10), at(6)]) == 6  # both at 6 is the likeliest
    # 6 and 8 are as likely for the first of three: half of it each leaves 1/2 at 6, so the middle of 6 and 8
    assert median_arrival([first(10), at(6), at(8)]) == pytest.approx(7)
    assert median_arrival([first(10), first(12), at(13)]) == 10  # the end of what the two have in common
    assert median_arrival([first(10), after(5)]) == 10


def test_a_last_evaluation_counts_by_its_chance():
    # unconfirmed it would leave 1 and 2 of three: 2; confirmed 1, 1.5, 2: 1.5
    assert median_arrival([at(1), at(2), last(1.5)]) == 1.5
    assert median_arrival([at(1), at(2), last(1.5, chance=0.01)]) == pytest.approx(2)


def test_where_one_more_evaluation_would_decide_whether_there_is_a_median_there_is_none():
    assert median_arrival([last(3)]) == math.inf
    assert median_arrival([at(1), last(3), after(5)]) == math.inf
    assert median_arrival([at(1), at(2), last(3)]) == 2


TIMES = st.lists(st.floats(0.1, 100), min_size=1, max_size=12)
WHOLE = st.integers(1, 6)
ANY = st.one_of(
    WHOLE.map(at),
    WHOLE.map(after),
    WHOLE.map(first),
    st.builds(last, WHOLE, st.sampled_from([0.3, 0.8])),
    st.just(NEVER),
)


def kaplan_meier(ends):
    """Times of events and the shares that survive them. ends: time and whether the event came then."""
    found, surviving, left = [], 1.0, len(ends)
    for time, known in sorted(ends, key=lambda end: (end[0], not end[1])):
        if known:
            surviving *= 1 - 1 / left
            found.append((time, surviving))
        left -= 1
    return dict(found)


@given(st.lists(st.tuples(WHOLE, st.booleans()), min_size=1, max_size=10))
def test_where_nothing_is_an_interval_it_is_kaplan_and_meiers(ends):
    survivors, below = kaplan_meier(ends), 0.0
    for time, probability in estimate([at(time) if known else after(time) for time, known in ends]):
        below += probability
        if math.isfinite(time):
            assert 1 - below == pytest.approx(survivors[time], abs=1e-6)


@given(TIMES)
def test_with_every_event_known_it_is_the_ordinary_median(times):
    assert median_arrival([at(time) for time in times]) == pytest.approx(statistics.median(times))


@given(TIMES, st.data())
def test_to_be_cut_off_never_makes_it_earlier(times, data):
    cut = data.draw(st.lists(st.booleans(), min_size=len(times), max_size=len(times)))
    known = median_arrival([at(time) for time in times])
    ends = [after(time) if ends else at(time) for time, ends in zip(times, cut, strict=True)]
    assert median_arrival(ends) >= known * (1 - 1e-12)


@given(st.lists(ANY, min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_the_order_of_the_seeds_changes_nothing(arrivals, random):
    mixed = random.sample(arrivals, len(arrivals))
    assert median_arrival(mixed) == pytest.approx(median_arrival(arrivals))


def chances(arrivals, times):
    """The chance (arrivals, times) of what was seen of each, if it came at these times."""

    def chance(arrival, time):
        if arrival == NEVER:
            return float(math.isinf(time))
        exact = arrival.value is not None
        between = time == arrival.value if exact else arrival.low < time <= arrival.high
        return arrival.chance * between + (1 - arrival.chance) * (time > arrival.high)

    return np.array([[chance(arrival, time) for time in times] for arrival in arrivals])


@given(st.lists(ANY, min_size=1, max_size=6))
def test_no_other_probabilities_of_the_times_are_likelier(arrivals):
    """The likelihood is concave: it is greatest where no time's slope is above the number of arrivals."""
    times = [*np.arange(0.5, 8.1, 0.5).tolist(), math.inf]
    likely = chances(arrivals, times)
    found = dict(estimate(arrivals))
    mass = np.array([found.get(time, 0.0) for time in times])
    assert mass.sum() == pytest.approx(1, abs=1e-5)
    slopes = (likely / (likely @ mass)[:, None]).sum(axis=0)
    assert slopes.max() <= len(arrivals) * (1 + 1e-3)


@pytest.mark.parametrize("seed", range(8))
def test_a_general_optimiser_finds_nothing_likelier(seed):
    generator = np.random.default_rng(seed)
    kinds = [at, after, first, last]
    arrivals = [kinds[generator.integers(4)](int(generator.integers(1, 7))) for _ in range(6)]
    times = [*np.arange(1.0, 8.1, 1.0).tolist(), math.inf]
    likely, found = chances(arrivals, times), dict(estimate(arrivals))
    own = np.log(likely @ [found.get(time, 0.0) for time in times]).sum()

    def loss(logits):
        return -np.log(likely @ (np.exp(logits) / np.exp(logits).sum())).sum()

    others = [-optimize.minimize(loss, generator.normal(size=len(times))).fun for _ in range(4)]
    assert own == pytest.approx(max(others), abs=1e-3)
