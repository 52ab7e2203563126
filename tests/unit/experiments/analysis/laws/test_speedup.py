"""Serial parts and the Universal Scalability Law.

Published measurements give their published laws, and the book's own tables what they show.

Sources of the scaling measurements and of the fits printed for them:

- *SPEC SDM91*: a Sun SPARCcenter 2000 with 16 CPUs, scripts an hour by simulated users, October 1994 (SPEC; Gunther,
  Guerrilla Capacity Planning, 2007). The table is `fixtures/specsdm91.csv` of github.com/mookerji/sca_tools; the fit is
  printed in the README and the tests (`summary.Rout.save`, `residuals.Rout.save`) of the R package usl,
  github.com/smoeding/usl, versions 2 and 3, where sigma is alpha, kappa beta and the scale gamma.
- *Ray tracer*: BRL-CAD on an SGI Origin 2000 with 64 processors, from the same book. The table is
  `fixtures/raytracer.csv` of sca_tools; the fit is printed in usl's `tests/confint.Rout.save`.
- *Cisco*: queries a second by threads, in B. Schwartz, Practical Scalability Analysis with the Universal Scalability
  Law, VividCortex 2015; table and fit as listed in `ModelTest.java` of github.com/codahale/usl4j.

These fits take residuals between throughputs (`relative=False`); ours take them between logarithms.
"""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalestudy.experiments.analysis.answers.summary import summarise
from scalestudy.experiments.analysis.laws.least_squares import NoLawError
from scalestudy.experiments.analysis.laws.speedup import (
    FURTHEST,
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
from tests.support.synthetic_studies import study_of
from tests.support.trials import Law

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


def test_a_peak_far_beyond_the_workers_timed_has_a_lower_limit_at_most():
    sizes = (1, 2, 4, 8, 16)
    rates = [float(usl_throughput(size, 100, 0.02, 0.98 / 114**2)) * np.array([0.999, 1, 1.001]) for size in sizes]
    peak = fit_usl(sizes, rates).peak
    assert peak.value == pytest.approx(114, rel=0.1)
    assert (peak.identified, peak.high) == (False, None)
    assert peak.low == FURTHEST * 16
    assert "more than 4 times the 16 timed; time 29 workers or more" in peak.why
    with_32 = fit_usl((*sizes, 32), [*rates, float(usl_throughput(32, 100, 0.02, 0.98 / 114**2))]).peak
    assert with_32.identified
    assert with_32.low < 114 < with_32.high


def test_a_law_that_the_throughputs_reject_has_no_peak():
    sizes = (1, 2, 4, 8, 16, 32)
    rates = usl_throughput(sizes, 100, 0.02, 0.001) * np.array([1, 1, 1.5, 1, 1, 1])
    found = fit_usl(sizes, [rate * np.array([0.99, 1.0, 1.01]) for rate in rates])
    assert found.fit.misfit
    assert (found.peak.identified, found.peak.low, found.peak.high) == (False, None, None)
    assert "which repeats do not explain; time 4 workers again" in found.peak.why


# --- published measurements, and the book's own tables ----------------------------------------------------------------


SPEC_SDM91 = {1: 64.9, 18: 995.9, 36: 1652.4, 72: 1853.2, 108: 1828.9, 144: 1775.0, 216: 1702.2}
RAY_TRACER = {1: 20, 4: 78, 8: 130, 12: 170, 16: 190, 20: 200, 24: 210, 28: 230, 32: 260, 48: 280, 64: 310}
CISCO_RATES = """
    955.16 1878.91 2688.01 3548.68 4315.54 5130.43 5931.37 6531.08 7219.80 7867.61 8278.71 8646.70
    9047.84 9426.55 9645.37 9897.24 10097.60 10240.50 10532.39 10798.52 11151.43 11518.63 11806.00
    12089.37 12075.41 12177.29 12211.41 12158.93 12155.27 12118.04 12140.40 12074.39
"""
CISCO = dict(enumerate(map(float, CISCO_RATES.split()), start=1))


def published(rates):
    """The fit as the packages make it."""
    return fit_usl(list(rates), list(rates.values()), relative=False)


def test_spec_sdm91_to_its_printed_digits():
    found = published(SPEC_SDM91)
    scale, sigma, kappa = found.fit.values
    errors = found.fit.covariance.diagonal() ** 0.5
    # README: alpha 0.0277285 ± 0.0091217, beta 0.0001044 ± 0.0000199, gamma 89.995… ± 14.213…, error 82.8 on 4 degrees
    assert [f"{sigma:.7f}", f"{kappa:.7f}", f"{scale:.3f}"] == ["0.0277285", "0.0001044", "89.995"]
    assert [f"{errors[1]:.7f}", f"{errors[2]:.7f}", f"{errors[0]:.3f}"] == ["0.0091217", "0.0000199", "14.213"]
    assert (f"{found.fit.noise:.2f}", found.fit.spare) == ("82.85", 4)  # summary.Rout.save
    # the README's scalability bounds: peak 1884 at load 96.52; Amdahl's asymptote, scale/sigma, 3246
    assert f"{found.peak.value:.2f}" == "96.52"
    assert f"{found.throughput(found.peak.value).value:.0f}" == "1884"
    assert f"{scale / sigma:.0f}" == "3246"
    # residuals.Rout.save
    printed = ["-25.10", "-81.66", "111.09", "3.05", "-49.99", "-46.60", "56.00"]
    fitted = usl_throughput(list(SPEC_SDM91), scale, sigma, kappa)
    assert [f"{rate - law:.2f}" for rate, law in zip(SPEC_SDM91.values(), fitted, strict=True)] == printed


def test_the_ray_tracer_to_its_printed_digits():
    found = published(RAY_TRACER)
    assert [f"{value:.4f}" for value in found.fit.values] == ["21.8488", "0.0578", "0.0000"]
    assert found.kappa.low == 0  # the package's interval reaches below it
    assert found.peak.high is None


def test_cisco_to_six_digits():
    found = published(CISCO)
    # printed: lambda 995.6486, sigma 0.02671591, kappa 7.690945e-4; R's nls stops when a step changes fewer digits
    assert found.fit.values == pytest.approx([995.6486, 0.02671591, 7.690945e-4], rel=2e-6)
    assert int(found.peak.value) == 35  # printed: 35, 12341
    assert int(found.throughput(35).value) == 12341


@pytest.mark.parametrize("rates", [SPEC_SDM91, RAY_TRACER, CISCO])
def test_our_own_residuals_tell_much_the_same(rates):
    ours, theirs = fit_usl(list(rates), list(rates.values())), published(rates)
    assert ours.sigma.low < theirs.sigma.value < 3 * ours.sigma.high
    for count, rate in rates.items():
        assert ours.throughput(count).value == pytest.approx(rate, rel=0.2)


class Book(Law):
    """Seconds an epoch as a notebook prints them, by number of GPUs."""

    def phases(self, num_gpus, batch_size):
        seconds = {1: self.fixed, 2: self.sync}[num_gpus] / self.steps(batch_size)
        return {"data": 0.0, "forward_backward": seconds, "gradient_sync": 0.0, "optimizer": 0.0}


def book_row(one, two, batches, rates):
    """The 2-GPU row of the summary of one of the book's tables. batches, rates: of 1 and of 2 GPUs."""
    points = ", ".join(
        f"{{num_gpus: {count}, batch_size: {batch}, learning_rate: {rate}}}"
        for count, batch, rate in zip((1, 2), batches, rates, strict=True)
    )
    law = Book(samples=60_000, fixed=one, sync=two)
    spec, plan, trials = study_of(f"name: x\ntrain: {{epochs: 10}}\nsweep: {{points: [{points}]}}", law)
    row = summarise(spec, plan, trials)["cells"][1]
    assert row["epoch_seconds"]["value"] == pytest.approx(two)
    return row


@pytest.mark.parametrize(
    ("one", "two", "serial"),
    # e = (1/S − 1/2)/(1/2) = 2 · two/one − 1
    [(12.2, 7.4, 0.213), (14.1, 9.2, 0.305)],
    ids=["zh 2023", "en 2022"],
)
def test_the_books_resnet_is_neither_strong_nor_weak(one, two, serial):
    row = book_row(one, two, (256, 512), (0.1, 0.2))
    assert row["scaling"] == "neither"
    assert row["karp_flatt"] == pytest.approx(serial, abs=5e-4)
    assert row["karp_flatt"] == pytest.approx(karp_flatt(one / two, 2))
    assert not row["retrograde"]


@pytest.mark.parametrize(
    ("one", "two", "batches", "rates", "retrograde"),
    [
        (2.4, 2.5, (256, 256), (0.2, 0.2), True),  # LeNet, en 2022
        (2.7, 3.6, (256, 256), (0.2, 0.2), True),  # LeNet, zh 2023
        (5.8, 8.7, (256, 512), (0.1, 0.2), True),  # ResNet-18, 2026
        (2.6, 2.4, (256, 512), (0.2, 0.3), False),  # LeNet with 512 on two
    ],
)
def test_the_book_is_retrograde_where_it_was(one, two, batches, rates, retrograde):
    row = book_row(one, two, batches, rates)
    assert row["retrograde"] is retrograde
    assert (row["karp_flatt"] > 1) is retrograde
    assert ("slower than one worker" in karp_flatt_words({2: row["karp_flatt"]})) is retrograde
