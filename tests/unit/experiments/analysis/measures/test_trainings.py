"""The best rate of a batch size, and how well the seeds single it out."""

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalestudy.experiments.analysis.measures.trainings import alike, best_rate, fair_costs
from tests.support.batch_studies import BatchTruth


def costs(**by_rate):
    """`costs(r10=[1, 2])`: of rate 1.0 the costs of seeds 0 and 1."""
    return {float(name[1:]) / 10: dict(enumerate(values)) for name, values in by_rate.items()}


def test_the_best_rate_has_the_smallest_median():
    best = best_rate(costs(r1=[9, 8, 30], r2=[7, 8, 6], r4=[5, 40, 41]))
    assert (best.rate, best.edge, best.rates, best.costs) == (0.2, None, 3, (7, 8, 6))


def test_a_best_rate_at_the_edge_is_marked():
    assert best_rate(costs(r1=[1, 1], r2=[2, 2])).edge == "lowest"
    assert best_rate(costs(r1=[2, 2], r2=[1, 1])).edge == "highest"
    assert best_rate(costs(r1=[2, 2])).edge == "lowest"
    # a rate at which it diverged bounds the grid as well as any
    assert best_rate(costs(r1=[3, 3], r2=[2, 2], r4=[math.inf, math.inf])).edge is None


def test_where_half_of_the_seeds_miss_everywhere_no_rate_is_best():
    assert best_rate({}) is None
    assert best_rate(costs(r1=[1, math.inf], r2=[math.inf, math.inf])) is None
    assert best_rate(costs(r1=[1, 1, math.inf])).costs == (1, 1, math.inf)


def test_fair_costs_by_hand():
    # medians 10 and 9. Seed 0: the others say 10 (of 10, 10) and 9, so its 9; seed 1: 5.5 (of 1, 10) and 9, so its 10;
    # seed 2 alike
    table = costs(r1=[1, 10, 10], r2=[9, 9, 9])
    assert fair_costs(table, 0.2) == (9, 10, 10)
    assert best_rate(table).fair == (9, 10, 10)


def test_one_seed_has_no_others_to_choose_for_it():
    assert best_rate(costs(r1=[3], r2=[2], r4=[4])).fair == (2,)


def test_a_seed_that_missed_where_the_others_would_send_it_keeps_its_own():
    # without seed 2 rate 0.1 has median 2.5 and rate 0.2 has 3; but seed 2 missed at 0.1
    assert fair_costs(costs(r1=[2, 3, math.inf], r2=[3, 3, 1]), 0.2) == (3, 3, 1)


def test_choosing_by_the_same_seeds_flatters_and_fair_costs_do_not():
    """Five rates as good as each other: the smallest median of 5 seeds with 5 % noise is 2 % too small."""
    truth, generator = BatchTruth(curvature=0.0), random.Random(3)
    found = [best_rate(truth.costs(256, generator)) for _ in range(400)]
    chosen = statistics.fmean(math.log(statistics.median(best.costs) / truth.steps(256)) for best in found)
    fair = statistics.fmean(math.log(cost / truth.steps(256)) for best in found for cost in best.fair)
    assert -0.04 < chosen < -0.02
    assert abs(fair) < 0.006  # 2,000 figures of 5 %, five of a draw nearly the same


def test_the_range_reaches_half_way_to_the_next_rates():
    # neighbours are told apart: from 0.2/√2 to 0.2·√2
    best = best_rate(costs(r1=[8, 9, 8], r2=[1, 2, 1], r4=[7, 9, 9]))
    assert (best.low, best.high) == pytest.approx((0.2 / math.sqrt(2), 0.2 * math.sqrt(2)))
    assert best.middle == pytest.approx(0.2)
    assert best.width == pytest.approx(math.log(2))


def test_rates_that_can_not_be_told_apart_widen_the_range():
    # the ranges of 0.2 and 0.4 overlap, those of 0.1 and 0.8 lie apart: from 0.2/√2 to 0.4·√2, the middle 0.2·√2
    best = best_rate(costs(r1=[8, 9, 8], r2=[1, 3, 2], r4=[2, 3, 4], r8=[9, 9, 9]))
    assert (best.low, best.high) == pytest.approx((0.2 / math.sqrt(2), 0.4 * math.sqrt(2)))
    assert best.middle == pytest.approx(0.2 * math.sqrt(2))


def test_one_seed_can_not_tell_neighbours_apart():
    best = best_rate(costs(r1=[9], r2=[2], r4=[1], r8=[9], r16=[9]))
    assert (best.low, best.high) == pytest.approx((0.2 / math.sqrt(2), 0.8 * math.sqrt(2)))


def test_a_rate_alone_has_no_range():
    best = best_rate(costs(r1=[9, 9]))
    assert (best.low, best.high, best.width) == (0.1, 0.1, 0.0)


def test_five_seeds_are_compared_one_by_one():
    seeds = {0: 1.0, 1: 2.0, 2: 3.0, 3: 4.0, 4: 5.0}
    later = {seed: cost + 0.1 + 0.01 * seed for seed, cost in seeds.items()}  # always later, the ranges overlap
    assert not alike(seeds, later)
    assert alike(seeds, {0: 1.1, 1: 1.9, 2: 3.1, 3: 3.9, 4: 5.1})
    assert alike({seed: seeds[seed] for seed in range(4)}, later)  # of four the ranges count
    assert not alike(seeds, dict.fromkeys(range(5), math.inf))


COSTS = st.dictionaries(
    st.sampled_from([0.025, 0.05, 0.1, 0.2, 0.4]),
    st.dictionaries(st.integers(0, 6), st.one_of(st.floats(1, 1e5), st.just(math.inf)), min_size=1),
)


@given(COSTS)
def test_what_holds_for_every_grid(table):
    best = best_rate(table)
    if best is None:
        assert all(math.isinf(statistics.median(seeds.values())) for seeds in table.values())
        return
    assert statistics.median(best.costs) == min(statistics.median(seeds.values()) for seeds in table.values())
    assert best.low <= best.rate <= best.high
    assert len(best.fair) == len(best.costs)
    for own, fair in zip(best.costs, best.fair, strict=True):
        assert math.isfinite(fair) or math.isinf(own)
    assert (best.edge is None) == (min(table) < best.rate < max(table))
