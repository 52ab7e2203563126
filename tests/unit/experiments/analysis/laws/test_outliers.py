"""Measurements that are far off."""

import numpy as np
import pytest

from scalestudy.experiments.analysis.laws.outliers import clipped, clipped_repeats, without_outliers


def noisy(places, repeats, noise=0.05):
    return list(np.random.default_rng(0).normal(0, noise, (places, repeats)) + np.arange(places)[:, None])


def test_a_repeat_far_from_the_others_of_its_place_is_left_out():
    repeats = noisy(20, 5)
    repeats[3][2] += np.log(3)
    kept = without_outliers(repeats)
    assert [len(each) for each in kept] == [5] * 3 + [4] + [5] * 16
    assert kept[3].tolist() == np.delete(repeats[3], 2).tolist()


@pytest.mark.parametrize("repeats", [3, 5, 9])
def test_gaussian_noise_loses_next_to_nothing(repeats):
    kept = without_outliers(noisy(1000, repeats))
    assert sum(map(len, kept)) > 0.999 * 1000 * repeats


@pytest.mark.parametrize("half", [2, 3, 5])
def test_of_as_many_slow_repeats_as_fast_ones_the_fast_ones_are_kept(half):
    repeats = noisy(20, 2 * half)
    repeats[3][half:] += np.log(3)
    assert without_outliers(repeats)[3].tolist() == repeats[3][:half].tolist()
    assert [len(each) for each in without_outliers([-each for each in repeats])][3] == half


def test_a_place_that_is_off_at_all_its_repeats_is_kept():
    repeats = noisy(20, 5)
    repeats[3] += np.log(3)
    assert [len(each) for each in without_outliers(repeats)] == [5] * 20


def test_two_repeats_and_few_places_do_not_tell():
    for repeats in (noisy(20, 2), noisy(3, 3), [np.array([1.0, 1.0, 1.0, 9.0])]):
        repeats[0][0] += 9
        assert [len(each) for each in without_outliers(repeats)] == [len(each) for each in repeats]


def test_a_repeat_far_from_the_others_of_its_place_is_clipped_at_three_deviations():
    repeats = noisy(20, 5)
    repeats[3][2] += np.log(3)
    found = clipped_repeats(repeats)
    assert found[3][2] - np.median(repeats[3]) == pytest.approx(3 * 0.05, rel=0.25)
    others = np.arange(5) != 2
    assert found[3][others].tolist() == repeats[3][others].tolist()


def test_of_two_repeats_far_apart_the_slower_counts_as_the_faster():
    repeats = noisy(50, 2)
    repeats[7][1] += np.log(3)
    found = clipped_repeats(repeats)
    assert found[7].tolist() == [repeats[7][0]] * 2
    kept = [one.tolist() == other.tolist() for one, other in zip(found, repeats, strict=True)]
    assert kept.count(False) <= 2


def test_three_repeats_are_seldom_clipped_and_equal_ones_hardly_any():
    repeats = noisy(1000, 3)
    moved = sum((one != other).sum() for one, other in zip(clipped_repeats(repeats), repeats, strict=True))
    assert 0 < moved < 0.02 * 3000
    equal = [np.full(9, 1.0), np.array([1.0] * 8 + [9.0])]
    assert clipped_repeats(equal)[1].tolist() == pytest.approx([1.0] * 8 + [1.03])


def test_where_too_few_repeats_tell_none_is_clipped():
    for repeats in (noisy(4, 2), noisy(4, 3), noisy(20, 1), [np.array([1.0, 1.0, 1.0, 9.0])]):
        repeats[0][0] += 9
        assert [each.tolist() for each in clipped_repeats(repeats)] == [each.tolist() for each in repeats]


def test_residuals_are_clipped_at_two_and_a_half_deviations():
    residuals = np.random.default_rng(0).normal(0, 0.1, 10_000)
    found = clipped(residuals, 4)
    assert found.max() == pytest.approx(0.25, rel=0.03)
    assert (found != residuals).mean() == pytest.approx(1 / 80, rel=0.2)
    assert clipped(residuals[:13], 4).tolist() == residuals[:13].tolist()
