"""Serial parts and the Universal Scalability Law."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalestudy.experiments.analysis.laws.least_squares import NoLawError
from scalestudy.experiments.analysis.laws.speedup import (
    amdahl,
    fit_amdahl,
    fit_gustafson,
    fit_usl,
    gustafson,
    is_retrograde,
    karp_flatt,
    karp_flatt_words,
    peak_workers,
    usl_throughput,
)

SERIAL = st.floats(1e-4, 1)
WORKERS = st.integers(2, 4096)


def test_the_formulas():
    assert amdahl(0.1, 10) == pytest.approx(1 / 0.19)  # 0.1 + 0.9/10
    assert gustafson(0.1, 10) == pytest.approx(9.1)  # 10 − 0.1 · 9
    # S = 13.0/6.7 = 1.940299: (1/S − 1/2)/(1/2) = (0.515385 − 0.5) · 2
    assert karp_flatt(13.0 / 6.7, 2) == pytest.approx(0.030769, abs=1e-6)
    assert usl_throughput(4, 100, 0.1, 0.01) == pytest.approx(100 * 4 / (1 + 0.3 + 0.12))
    assert peak_workers(0.1, 0.001) == pytest.approx(30)  # √(0.9/0.001)
    assert peak_workers(0.1, 0.0) == math.inf
    assert peak_workers(0.1, 10.0) == 1


@given(SERIAL, WORKERS)
def test_karp_flatt_of_amdahl_is_its_serial_part(serial, workers):
    assert karp_flatt(float(amdahl(serial, workers)), workers) == pytest.approx(serial, rel=1e-6, abs=1e-9)


@given(SERIAL, WORKERS)
def test_gustafson_is_never_below_amdahl(serial, workers):
    assert gustafson(serial, workers) >= amdahl(serial, workers) * (1 - 1e-9)


@given(st.floats(0, 0.9), st.floats(1e-8, 0.1))
def test_throughput_is_largest_at_the_peak(sigma, kappa):
    peak = peak_workers(sigma, kappa)
    most = usl_throughput(peak, 1.0, sigma, kappa)
    assert most >= usl_throughput(max(peak * 0.9, 1), 1.0, sigma, kappa) * (1 - 1e-12)
    assert most >= usl_throughput(peak * 1.1, 1.0, sigma, kappa) * (1 - 1e-12)


@given(st.floats(0.01, 1e6), st.floats(1e-3, 0.5))
def test_usl_without_kappa_is_amdahl(scale, sigma):
    sizes = np.array([1.0, 2, 8, 64])
    assert usl_throughput(sizes, scale, sigma, 0.0) == pytest.approx(scale * amdahl(sigma, sizes))


@pytest.mark.parametrize(("speed_up", "workers"), [(1.5, 1), (0.0, 2), (-1.0, 2), (math.nan, 2)])
def test_no_serial_part(speed_up, workers):
    with pytest.raises(ValueError, match="serial part"):
        karp_flatt(speed_up, workers)


def test_retrograde():
    assert is_retrograde({1: 1.0, 2: 0.96})
    assert not is_retrograde({1: 1.0, 2: 1.08})
    assert is_retrograde({1: 1.0, 2: 1.8, 4: 1.7})
    assert not is_retrograde({1: 1.0})


def test_words():
    assert karp_flatt_words({}) == ""
    assert "does not tell" in karp_flatt_words({2: 0.2})
    assert "above 1, slower than one worker" in karp_flatt_words({2: 1.667})
    assert "faster than the workers' number" in karp_flatt_words({2: -0.1})
    assert "a serial part" in karp_flatt_words({2: 0.1, 8: 0.1})
    # at 8 workers e moves by 0.05 · (0.3 + 1/7) when S moves by 5 %, at 2 by 0.05 · 1.1: 0.059 together
    assert "overhead that grows" in karp_flatt_words({2: 0.1, 8: 0.3})
    assert "a serial part" in karp_flatt_words({2: 0.1, 8: 0.15})
    assert "paid once" in karp_flatt_words({2: 0.5, 8: 0.1})


@settings(max_examples=20)
@given(st.floats(0.01, 0.6), st.floats(0.1, 1e5))
def test_serial_parts_are_found_again(serial, scale):
    sizes = (1, 2, 4, 8)
    for law, fitted in ((amdahl, fit_amdahl), (gustafson, fit_gustafson)):
        estimate = fitted(sizes, [scale * float(law(serial, size)) * np.array([0.99, 1, 1.01]) for size in sizes])
        assert estimate.value == pytest.approx(serial, rel=0.03)
        assert estimate.low <= serial <= estimate.high


@settings(max_examples=20)
@given(st.floats(0.02, 0.3), st.floats(1e-4, 1e-2), st.floats(0.1, 1e5))
def test_usl_is_found_again(sigma, kappa, scale):
    sizes = (1, 2, 4, 8, 16, 32)
    found = fit_usl(sizes, usl_throughput(sizes, scale, sigma, kappa))
    assert found.scale.value == pytest.approx(scale, rel=1e-3)
    assert found.sigma.value == pytest.approx(sigma, rel=1e-2)
    assert found.kappa.value == pytest.approx(kappa, rel=1e-2)
    assert found.throughput(64).value == pytest.approx(float(usl_throughput(64, scale, sigma, kappa)), rel=1e-2)


def test_fewer_sizes_than_constants_and_one_are_not_fitted():
    with pytest.raises(NoLawError, match="3 numbers of workers"):
        fit_usl((1, 2, 4), (1.0, 1.9, 3.5))
    with pytest.raises(NoLawError, match="2 numbers of workers"):
        fit_amdahl((1, 2), (1.0, 1.9))


def test_without_coherency_there_is_a_lower_limit_of_the_peak():
    sizes = (1, 2, 4, 8, 16)
    found = fit_usl(sizes, [100 * float(amdahl(0.05, size)) * np.array([0.98, 1.0, 1.02]) for size in sizes])
    assert found.kappa.low == 0
    assert found.peak.high is None
    assert not found.peak.identified
    assert found.peak.low == pytest.approx(peak_workers(found.sigma.value, found.kappa.high))
    assert "may go on rising" in found.peak.why
