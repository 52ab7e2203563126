"""What figures are made of – axes of many values, squares, curves of laws."""

import math
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scalestudy.experiments.analysis.measures.cells import combination_of
from scalestudy.experiments.analysis.measures.metric import StudyMetric
from scalestudy.experiments.report.batch_figures import rate_map_figure
from scalestudy.experiments.report.curves import apart, share_limits
from scalestudy.experiments.report.maps import Bins, shades
from scalestudy.experiments.report.speedup_figures import law_of, speedup_figure, step_law
from scalestudy.experiments.report.styles import MOST_CELLS, Styles
from tests.support.rich_study import (
    ALPHA_C,
    ALPHA_R,
    BETA_C,
    BETA_R,
    DATA,
    rich_cells,
    rich_summary,
    step_seconds,
    unidentified,
)
from tests.support.synthetic_studies import summary_of
from tests.support.trials import Law


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=40), st.integers(1, 12))
@example([1.0000000000000002e-06, 1e-06], 2)
def test_every_value_has_a_column(values, most):
    bins = Bins.of(values, most)
    assert len(bins.names) == len(bins.starts) <= most
    for value in values:
        column = bins.place(value)
        assert 0 <= column < len(bins.names)
        assert bins.starts[column] <= value * (1 + 1e-9)
    if not bins.ranges:
        assert [bins.place(start) for start in bins.starts] == list(range(len(bins.starts)))


def test_few_values_stand_by_themselves_and_many_in_ranges():
    assert Bins.of([4, 1, 2, 2], 10).names == ["1", "2", "4"]
    many = Bins.of([2**power for power in range(9)], 4)
    assert (many.names, many.ranges) == (["1", "4", "16", "64"], True)
    assert (many.said(1), many.axis("learning rate")) == ("from 4", "learning rate, each a range from")


def test_the_best_is_the_strongest_and_equals_are_all_strong():
    assert shades([3.0, 1.0, 2.0]) == [1.0, 0.0, 0.5]
    assert shades([2.0, 2.0]) == [1.0, 1.0]


def timed(batch_size, workers, flags=(), **settings):
    """Rows of timings that differ in num_gpus alone."""
    usual = [{"num_gpus": count, "batch_size": batch_size} for count in workers]
    return [{"params": {**params, **settings}, "flags": list(flags)} for params in usual]


def test_the_curve_of_the_step_time_law_is_the_laws():
    summary = rich_summary()
    law = step_law(summary["throughput_model"])
    for workers, batch in ((1, 128), (2, 128), (8, 2048)):
        assert law(workers, batch / workers) == pytest.approx(step_seconds(workers, batch / workers))
    curve = law_of(rich_summary(("usl",)), timed(512, (1, 2, 4, 8)))
    assert curve.kind == "step time"
    assert list(curve.x) == [1, 2, 3, 4, 5, 6, 7, 8]  # whole workers: between one and two there is no such step
    for size, gain in zip(curve.x, curve.y, strict=True):
        assert gain == pytest.approx(step_seconds(1, 512) / step_seconds(int(size), 512 / size))


def test_the_curve_of_the_step_time_law_has_the_band_of_its_constants():
    """Without overlap T(1) = α_c + β_c B + T_data, T(4) = α_c + β_c B/4 + α_r + 2 β_r + T_data, and ln S has the slope
    1/T(1) - 1/T(4) in α_c, -1/T(4) in α_r.
    """
    summary = rich_summary(("usl",))
    model, rows = {**summary["throughput_model"], "gamma": unidentified(1.0, "x")}, timed(512, (1, 2, 4))
    errors = {"names": ["alpha_c", "alpha_r"], "matrix": [[4e-6, 1e-6], [1e-6, 9e-6]], "t": 2.0}
    curve = law_of({**summary, "throughput_model": {**model, "covariance": errors}}, rows)
    one, four = (ALPHA_C + BETA_C * 512 + DATA, ALPHA_C + BETA_C * 128 + ALPHA_R + 2 * BETA_R + DATA)
    by_alpha_c, by_alpha_r = 1 / one - 1 / four, -1 / four
    variance = 4e-6 * by_alpha_c**2 + 2 * 1e-6 * by_alpha_c * by_alpha_r + 9e-6 * by_alpha_r**2
    assert curve.y[-1] == pytest.approx(one / four)
    assert curve.high[-1] == pytest.approx(one / four * math.exp(2 * math.sqrt(variance)))
    assert curve.low[-1] == pytest.approx(one / four / math.exp(2 * math.sqrt(variance)))
    assert (curve.low[0], curve.high[0]) == (1, 1)
    figure = speedup_figure({**summary, "throughput_model": {**model, "covariance": errors}})
    assert "its 90% band" in figure.svg
    wide = {**errors, "matrix": [[1.0, 0.0], [0.0, 1.0]]}  # seconds squared: any speed-up at all
    for unknown in (None, {**errors, "t": None}, wide):
        curve = law_of({**summary, "throughput_model": {**model, "covariance": unknown}}, rows)
        assert (curve.low, curve.high) == (None, None)


def test_the_step_time_law_needs_three_numbers_of_workers_and_one_node():
    model = rich_summary()["throughput_model"]
    two = {**model, "points": [point for point in model["points"] if point["num_gpus"] < 4]}
    assert step_law(two) is None
    assert step_law({**model, "alpha_n": {"value": 0.1, "low": None, "high": None}}) is None
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


def test_a_combination_is_named_as_in_the_summary():
    params = {"num_gpus": 1, "batch_size": 2, "learning_rate": 0.1, "train.gradient_sync": "naive"}
    assert combination_of(params) == "gradient_sync=naive"
    assert combination_of({"num_gpus": 1, "batch_size": 2}) == ""


def test_of_many_cells_the_recommended_have_colours_and_are_drawn():
    summary, cells = rich_summary(), rich_cells()
    styles = Styles.of(summary)
    assert styles.by_cell
    drawn = styles.most_important(cells)
    assert len(drawn) == MOST_CELLS < len(cells)
    labels = {cell.label for cell in drawn}
    for role in ("fastest", "cheapest", "knee", "best_accuracy"):
        choice = summary["recommendation"][role]
        assert choice["label"] in labels
        assert not styles.is_grey(choice["params"])
    assert len({styles.colour(params) for params in (cell.params for cell in drawn)}) <= 7


def test_an_error_that_spans_decades_is_coloured_by_its_logarithm():
    text = "name: x\nworkload: {metric: mse, metric_mode: min}\nsweep: {learning_rate: [0.01, 0.1, 1]}"
    summary = summary_of(text, Law(noise=0, ceiling=1.0, learning=200.0))
    metric = StudyMetric(**summary["study"]["metric"])
    values = [row[metric.key]["value"] for row in summary["cells"]]
    assert max(values) / min(values) > 30
    figure = rate_map_figure(summary)
    worst, middle, best = values
    share = math.log(worst / middle) / math.log(worst / best)  # 0.0909; of the values themselves it would be 0.505
    assert re.findall(r"fill-opacity: ([\d.]+)", figure.svg) == ["0.1", f"{0.1 + 0.9 * share:.6f}"]
    assert "The best rate of each batch (outlined) is 1 at batch" in figure.caption


@pytest.mark.parametrize(
    ("values", "limits"),
    [
        ([0.2, 0.9], (0.0, 1.0)),
        ([0.76, 0.889], (0.7, 0.9)),
        ([0.985, 0.99], (0.9, 1.0)),
        ([1.0, 1.0], (0.9, 1.0)),
        ([0.5], (0.5, 0.6)),
    ],
)
def test_the_axis_of_a_share(values, limits):
    assert share_limits(values) == pytest.approx(limits)


def test_labels_keep_apart():
    assert apart([0.1, 0.5], 0.06) == [0.1, 0.5]
    assert apart([0.5, 0.51, 0.9], 0.06) == pytest.approx([0.5, 0.56, 0.9])
    assert apart([0.5, 0.5, 0.5], 0.06) == pytest.approx([0.5, 0.56, 0.62])
    assert apart([], 0.06) == []
