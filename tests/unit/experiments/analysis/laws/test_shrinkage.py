"""The posterior of cells' values: against dense algebra, and what must hold whatever was measured."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from scalestudy.experiments.analysis.laws import shrinkage
from scalestudy.experiments.analysis.laws.shrinkage import LinearLaw, shrink

NOISE, DEVIATION, SHARE = 0.1, 0.05, 0.6
CELLS, GROUPS = 6, 4


def line(prior=(3.0, 1.0)):
    """A straight line over six cells."""
    places = np.linspace(-1.0, 1.0, CELLS)
    return LinearLaw(
        features=np.stack([np.ones(CELLS), places], axis=1), offset=np.full(CELLS, 0.5), prior=np.array(prior)
    )


def drawn(generator, count, *, groups=True):
    """Measurements: values, cells and groups. The last cell is not measured."""
    cells = generator.integers(0, CELLS - 1, count)
    effects = NOISE * SHARE * generator.standard_normal(GROUPS) if groups else np.zeros(GROUPS)
    members = generator.integers(0, GROUPS, count)
    members[:GROUPS] = np.arange(GROUPS)
    law = line()
    truth = law.offset + law.features @ [1.0, 0.7] + DEVIATION * generator.standard_normal(CELLS)
    return truth[cells] + effects[members] + NOISE * generator.standard_normal(count), cells, members


def dense(values, cells, groups, noise, deviation):
    """Mean and covariance of the cells' values, and the log density of the measurements.

    By the whole covariance of all measurements: Rasmussen and Williams 2006, equations 2.23, 2.24 and 2.30.
    """
    law = line()
    of_cells = law.features @ np.diag(law.prior**2) @ law.features.T + deviation**2 * np.eye(CELLS)
    same_group = groups[:, None] == groups
    whole = of_cells[np.ix_(cells, cells)] + (noise * SHARE) ** 2 * same_group + noise**2 * np.eye(len(values))
    gain = np.linalg.solve(whole, of_cells[cells]).T
    off = values - law.offset[cells]
    density = -(off @ np.linalg.solve(whole, off) + np.linalg.slogdet(2 * np.pi * whole)[1]) / 2
    return law.offset + gain @ off, of_cells - gain @ of_cells[cells], density


def cells_of(found, count, generator):
    """Draw the values of all cells (count, c)."""
    draws, counts = [], iter(generator.multinomial(count, found.weights).tolist())
    for level in found.levels:
        for lower, mean, precision in zip(level.lower, level.means, level.precision, strict=True):
            chance = generator.standard_normal((next(counts), len(mean) + CELLS))
            shared = mean + np.linalg.solve(lower.T, chance[:, : len(mean)].T).T
            own = (level.sums - shared @ level.rows.T) / precision + chance[:, len(mean) :] / np.sqrt(precision)
            draws.append(found.law.offset + shared @ found.linear.T + own)
    return np.vstack(draws)


@pytest.mark.parametrize("count", [4, 9, 40])
def test_for_one_noise_and_one_deviation_it_is_the_posterior_of_generalised_least_squares(monkeypatch, count):
    monkeypatch.setattr(shrinkage, "SPREADS", (NOISE,))
    monkeypatch.setattr(shrinkage, "GROUP_SHARES", (SHARE,))
    generator = np.random.default_rng(count)
    values, cells, groups = drawn(generator, count)
    found, (mean, covariance, _) = shrink(values, cells, line(), groups), dense(values, cells, groups, NOISE, NOISE)
    assert found.mean == pytest.approx(mean, abs=1e-9)
    assert found.noise == pytest.approx(NOISE)
    draws = cells_of(found, 40_000, generator)
    errors = np.sqrt(np.diag(covariance))
    assert np.abs(draws.mean(axis=0) - mean).max() < 5 * errors.max() / 200  # five standard errors of 40,000 draws
    assert np.abs(np.cov(draws.T) - covariance).max() < 0.05 * errors.max() ** 2


@pytest.mark.parametrize("count", [4, 9, 40])
def test_several_are_averaged_by_how_likely_they_make_the_measurements(monkeypatch, count):
    spreads = (0.03, NOISE, 0.3)
    monkeypatch.setattr(shrinkage, "SPREADS", spreads)
    monkeypatch.setattr(shrinkage, "GROUP_SHARES", (SHARE,))
    values, cells, groups = drawn(np.random.default_rng(count), count)
    means, weights = [], []
    for noise, deviation in itertools.product(spreads, spreads):
        mean, _, density = dense(values, cells, groups, noise, deviation)
        # log-normal beforehand: noise about 12 %, deviations about 5 %
        beforehand = (np.log(noise / 0.12) / 0.8) ** 2 + (np.log(deviation / 0.05) / 0.8) ** 2
        means.append(mean)
        weights.append(density - beforehand / 2)
    wanted = np.average(means, axis=0, weights=np.exp(np.array(weights) - max(weights)))
    assert shrink(values, cells, line(), groups).mean == pytest.approx(wanted, abs=1e-4)  # negligible ones are left out


def test_more_measurements_narrow():
    generator = np.random.default_rng(4)
    values, cells, groups = drawn(generator, 400)

    def width(count):
        draws = cells_of(shrink(values[:count], cells[:count], line(), groups[:count]), 4000, generator)[:, :5]
        return (draws - draws.mean(axis=1, keepdims=True)).std(axis=0).mean()  # of cells against each other

    few, some, many = width(12), width(60), width(400)
    assert few > 1.3 * some > 1.3**2 * many


def test_a_cell_that_was_not_measured_lies_on_the_law():
    generator = np.random.default_rng(5)
    law = line()
    on_it = law.offset + law.features @ [1.0, 0.7]
    cells = np.repeat(np.arange(CELLS - 1), 3)
    found = shrink(on_it[cells] + 0.01 * generator.standard_normal(len(cells)), cells, law)
    assert found.mean[-1] == pytest.approx(on_it[-1], abs=0.03)
    draws = cells_of(found, 4000, generator)
    assert draws[:, -1].std() > draws[:, 0].std(), "it is known less well than a measured one"


def test_a_cell_that_deviates_is_drawn_to_the_law_the_less_the_more_often_it_is_measured():
    law = line()
    truth = law.offset + law.features @ [1.0, 0.7]
    truth[2] += 0.3
    generator, off = np.random.default_rng(6), []
    for repeats in (1, 5, 40):
        cells = np.concatenate([np.repeat(np.arange(CELLS), 4), np.full(repeats - 1, 2)])
        scatter = 0.1 * generator.standard_normal(len(cells))
        scatter[cells == 2] -= scatter[cells == 2].mean()  # the cell itself is measured without error
        off.append(truth[2] - shrink(truth[cells] + scatter, cells, law).mean[2])
    assert off[0] > off[1] > off[2]
    assert abs(off[2]) < 0.05


def test_intervals_cover_what_is_drawn():
    """90 % intervals of all cells, in 150 draws of six cells: a bound on both sides."""
    covered = []
    for draw in range(150):
        generator = np.random.default_rng(draw)
        law, deviation = line(), float(np.exp(np.log(0.05) + 0.8 * generator.standard_normal()))
        noise = float(np.exp(np.log(0.12) + 0.8 * generator.standard_normal()))
        truth = law.offset + law.features @ [1.0, 0.7] + deviation * generator.standard_normal(CELLS)
        cells = np.repeat(np.arange(CELLS), 3)
        found = shrink(truth[cells] + noise * generator.standard_normal(len(cells)), cells, law)
        low, high = np.quantile(cells_of(found, 500, generator), [0.05, 0.95], axis=0)
        covered.append(((low <= truth) & (truth <= high)).mean())
    assert 0.86 <= np.mean(covered) <= 0.94


def test_the_slope_of_the_density_is_that_of_its_differences():
    cells, generator = np.repeat(np.arange(CELLS), 3), np.random.default_rng(0)
    groups = np.tile(np.arange(3), CELLS)
    found = shrink(generator.standard_normal(len(cells)), cells, replace(line(), exact=1), groups)
    level, above = found.levels[len(found.levels) // 2], 0.1 * generator.standard_normal(CELLS)
    steps = level.offset + above + 1e-5 * np.vstack([np.eye(CELLS), -np.eye(CELLS)])
    for point in range(len(level.spreads)):
        density = level.given(steps, np.full(2 * CELLS, point))[0]
        at = (level.offset + above)[None], np.array([point])
        slope = level.slope(*at, level.given(*at)[1])[0]
        assert slope == pytest.approx((density[:CELLS] - density[CELLS:]) / 2e-5, rel=1e-4, abs=1e-4)


def test_each_point_of_the_grid_has_its_own_deviation():
    values, cells, groups = drawn(np.random.default_rng(0), 40)
    found = shrink(values, cells, line(), groups)
    assert len(set(found.spreads.tolist())) > 1
    assert len({share for level in found.levels for share in level.effects / level.noise}) > 1
    for level in found.levels:
        assert level.precision == pytest.approx(level.counts + level.spreads[:, None] ** -2.0)
