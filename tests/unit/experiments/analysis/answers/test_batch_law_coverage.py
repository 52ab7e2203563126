"""What the intervals hold on 100 draws from known truths; on 1,000 it is `tests.bench.batch_law` that tells."""

import pytest
from scipy import stats

from tests.bench import batch_law
from tests.bench.batch_law import (
    PARTS,
    RATES,
    SIZES,
    exponent_tally,
    law_tallies,
    noise_tally,
    seed_tally,
)

DRAWS = 100
LEAST = int(stats.binom.ppf(0.001, DRAWS, 0.86))
"""Hits that 100 draws fall below once in 1,000 times where 86 % of the intervals hold the truth."""
MOST = int(stats.binom.ppf(0.98, DRAWS, 0.94))
"""Hits that 100 draws pass 15 times in 1,000 where 94 % of the intervals hold the truth: 98. A bound that is
passed once in 1,000 would be 100 of 100, which no interval passes, however wide."""


@pytest.mark.parametrize("sizes", SIZES)
def test_the_law_over_batch_sizes(sizes):
    tallies = law_tallies(SIZES[sizes], RATES["5 rates, neighbours take 16 % more steps"], DRAWS)
    for name, tally in tallies.items():
        assert LEAST <= DRAWS * tally.coverage <= MOST, name
        assert tally.error < 0.1, name


@pytest.mark.parametrize("rates", RATES)
def test_the_law_whatever_is_known_of_the_rate(rates):
    tallies = law_tallies(SIZES["7 sizes, B_crit/8 to 8 B_crit"], RATES[rates], DRAWS)
    for name, tally in tallies.items():
        assert LEAST <= DRAWS * tally.coverage <= MOST, name
        assert tally.error < 0.05, name
        assert abs(tally.bias) < 0.02, name


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0])
def test_the_exponent_of_the_rate_is_held_at_least_as_often_as_promised(exponent):
    tally = exponent_tally(SIZES["5 sizes, B_crit/4 to 4 B_crit"], exponent, 0.15, DRAWS)
    assert DRAWS * tally.coverage >= stats.binom.ppf(0.001, DRAWS, 0.9)


@pytest.mark.parametrize(("trainings", "scatter"), [(5, 0.1), (25, 0.5)])
def test_the_noise_scale(trainings, scatter):
    assert LEAST <= DRAWS * noise_tally(trainings, DRAWS, scatter).coverage <= MOST


@pytest.mark.parametrize(("seeds", "missed"), [(5, 0.0), (10, 0.0)])
def test_a_typical_time(seeds, missed):
    assert LEAST <= DRAWS * seed_tally(seeds, DRAWS, missed).coverage <= MOST


def test_order_statistics_hold_the_median_of_all_seeds():
    """With a tenth of the seeds missing, the median of all is that of seeds that never miss at 5/9: a little later."""
    tally = seed_tally(10, DRAWS, 0.1)
    assert DRAWS * tally.coverage >= LEAST


def test_the_tables_can_be_printed(monkeypatch):
    monkeypatch.setattr(batch_law, "FEW_DRAWS", 4)
    for part in PARTS.values():
        heading, _, table = part.text(small=True).partition("\n\n")
        assert heading == f"### {part.title}"
        assert len(table.splitlines()) >= 2 + 4, "a header, a rule, and a row a case"
