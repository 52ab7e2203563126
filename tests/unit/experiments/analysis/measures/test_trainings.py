"""The best rate of a batch size."""

import math
import statistics

from hypothesis import given
from hypothesis import strategies as st

from scalestudy.experiments.analysis.measures.trainings import best_rate


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


def test_estimates_decide_which_rate_is_best_and_costs_stay_what_was_measured():
    table = costs(r1=[9, 8, 10], r2=[7, 8, 6], r4=[math.inf, math.inf, 1])
    best = best_rate(table, {0.1: 7.0, 0.2: 7.5, 0.4: 1.0})
    assert (best.rate, best.edge, best.costs) == (0.1, "lowest", (9, 8, 10))
    assert best_rate(table, {0.1: 7.6, 0.2: 7.5}).rate == 0.2


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
    assert (best.edge is None) == (min(table) < best.rate < max(table))
