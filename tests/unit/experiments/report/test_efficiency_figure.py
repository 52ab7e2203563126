"""Which laws the figure of efficiency draws, and over what; test_page.py has its words."""

import math

import numpy as np
import pytest

from scalestudy.experiments.report.efficiency_figure import efficiency_figure, law_of, step_times
from tests.support.rich_study import ALPHA_C, ALPHA_R, BETA_C, BETA_R, DATA, rich_summary, step_seconds


def timed(batch_size, workers, flags=(), **settings):
    """Rows of timings that differ in num_gpus alone."""
    usual = [{"num_gpus": count, "batch_size": batch_size} for count in workers]
    return [{"params": {**params, **settings}, "flags": list(flags)} for params in usual]


def test_the_curve_of_the_step_time_law_is_the_laws():
    summary = rich_summary()
    law = step_times(summary["throughput_model"]).constants
    for workers, batch in ((1, 128), (2, 128), (8, 2048)):
        assert law.step_seconds(workers, batch / workers) + DATA == pytest.approx(
            step_seconds(workers, batch / workers)
        )
    curve = law_of(rich_summary(("usl",)), timed(512, (1, 2, 4, 8)))
    assert curve.kind == "step time"
    assert list(curve.x) == [1, 2, 3, 4, 5, 6, 7, 8]  # whole workers: between one and two there is no such step
    for size, gain in zip(curve.x, curve.y, strict=True):
        assert gain == pytest.approx(step_seconds(1, 512) / step_seconds(int(size), 512 / size))


def test_the_curve_of_the_step_time_law_has_the_band_of_its_constants():
    """Without overlap T(1) = α_c + β_c B + T_data, T(4) = α_c + β_c B/4 + launch + 3 linear + T_data, and ln S has the
    slope 1/T(1) - 1/T(4) in α_c, -1/T(4) in launch.
    """
    summary = rich_summary(("usl",))
    model, rows = summary["throughput_model"], timed(512, (1, 2, 4))
    covariance = np.zeros((5, 5))  # of alpha_c, beta_c, launch, linear and gamma
    covariance[np.ix_([0, 2], [0, 2])] = [[4e-6, 1e-6], [1e-6, 9e-6]]
    constants = {**model["law"]["constants"], "gamma": 1.0}
    law = {**model["law"], "constants": constants, "covariance": covariance.tolist()}
    curve = law_of({**summary, "throughput_model": {**model, "law": law}}, rows)
    one, four = (ALPHA_C + BETA_C * 512 + DATA, ALPHA_C + BETA_C * 128 + ALPHA_R + 2 * BETA_R + DATA)
    by_alpha_c, by_launch = 1 / one - 1 / four, -1 / four
    variance = 4e-6 * by_alpha_c**2 + 2 * 1e-6 * by_alpha_c * by_launch + 9e-6 * by_launch**2
    assert curve.y[-1] == pytest.approx(one / four)
    assert curve.high[-1] == pytest.approx(one / four * math.exp(2 * math.sqrt(variance)))
    assert curve.low[-1] == pytest.approx(one / four / math.exp(2 * math.sqrt(variance)))
    assert (curve.low[0], curve.high[0]) == (1, 1)
    figure = efficiency_figure({**summary, "throughput_model": {**model, "law": law}})
    assert "its 90% band" in figure.svg
    wide = law_of({**summary, "throughput_model": model}, rows)  # any speed-up at all
    assert (wide.low, wide.high) == (None, None)


def test_the_step_time_law_needs_three_numbers_of_workers_and_one_node():
    model = rich_summary()["throughput_model"]
    two = {**model, "points": [point for point in model["points"] if point["num_gpus"] < 4]}
    assert step_times(two) is None
    assert step_times({**model, "alpha_n": {"value": 0.1, "low": None, "high": None}}) is None
    assert law_of(rich_summary(("usl",)), timed(512, (1, 8))) is None


def test_gunthers_law_is_drawn_over_one_worker_and_for_its_own_batch():
    summary = rich_summary()
    fit = summary["usl"]["fits"][0]
    curve = law_of(summary, timed(2048, (1, 2, 4, 8)))
    assert (curve.kind, curve.measured) == ("usl", 8)
    alone = fit["points"][0]["samples_per_second"]
    assert curve.y[-1] == pytest.approx(fit["curve"][-1]["samples_per_second"] / alone)
    assert law_of(summary, timed(2048, (1, 2, 4, 8), **{"train.gradient_sync": "naive"})) is None


@pytest.mark.parametrize("missing", [(), ("usl",)])
def test_a_law_through_flagged_timings_is_drawn_where_it_rests_on_them(missing):
    summary, rows = rich_summary(missing), timed(512, (1, 2, 4, 8), ["shared_node"])
    assert law_of(summary, rows) is None
    for key in ("usl", "throughput_model"):
        summary[key]["flagged"] = True
    assert law_of(summary, rows) == law_of(rich_summary(missing), timed(512, (1, 2, 4, 8)))
