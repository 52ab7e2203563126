"""Time to a target over seeds."""

import pytest

from scalestudy.experiments.analysis.measures.cells import gather
from scalestudy.experiments.analysis.measures.metric import ACCURACY
from scalestudy.experiments.analysis.measures.targets import target_row
from tests.support.batch_studies import BatchTruth
from tests.support.batch_summaries import study
from tests.support.trials import Law

NO_SCATTER = BatchTruth(noise=0.0)
ONE = {"batches": "[256]", "rates": "[0.4]"}


def row_of(*, factors, law=None, epochs=60, drop=()):
    """The row of one cell; factors: of each seed's epoch times; drop: seeds that stop before the target."""
    _, plan, trials = study(NO_SCATTER, seeds=list(range(len(factors))), epochs=epochs, law=law, **ONE)
    for trial, factor in zip(trials, factors, strict=True):
        for epoch in trial["epochs"]:
            epoch["train_seconds"] *= factor
        if trial["params"]["seed"] in drop:
            trial["epochs"] = trial["epochs"][:2]
    (cell,) = gather(plan, trials, ACCURACY)
    return target_row(cell, 0.8, 3600.0)


def seconds(steps):
    """Of so many steps of batch 256 on one worker."""
    return steps * sum(Law().phases(1, 256).values())


def test_below_five_seeds_median_and_range():
    row = row_of(factors=[1.0, 1.2, 4.0])
    whole = seconds(800)
    assert row["seconds"] == pytest.approx(1.2 * whole)
    assert row["interval"] == {"kind": "range", "low": pytest.approx(whole), "high": pytest.approx(4 * whole)}
    assert row["cost"] == pytest.approx(row["gpu_seconds"])  # 3,600 an hour
    assert not row["upper_bound"]


def test_from_five_seeds_the_mean_of_the_inner_ones_and_a_t_interval():
    row = row_of(factors=[1.0, 1.1, 1.2, 1.3, 1.4])
    assert row["seconds"] == pytest.approx(1.2 * seconds(800))  # of 1.1, 1.2 and 1.3
    assert row["interval"]["kind"] == "t"
    # logarithms of the factors: mean 0.1755, standard deviation 0.1328; 2.1318 · 0.1328 / √5 = 0.1266
    assert row["interval"]["low"] == pytest.approx(seconds(800) * 1.0501, rel=1e-3)
    assert row["interval"]["high"] == pytest.approx(seconds(800) * 1.3526, rel=1e-3)


def test_one_miss_is_dropped_as_the_slowest_and_two_make_the_cell_invalid():
    row = row_of(factors=[1.0, 1.1, 1.2, 1.3, 1.4], drop=(4,))
    assert row["seconds"] == pytest.approx(1.2 * seconds(800))
    assert (row["reached"], row["n_seeds"]) == (4, 5)
    assert row["interval"] == {"kind": "order", "low": pytest.approx(seconds(800)), "high": None}
    row = row_of(factors=[1.0, 1.1, 1.2, 1.3, 1.4], drop=(3, 4))
    assert (row["seconds"], row["cost"]) == (None, None)
    assert row["why"] == "2 of 5 seeds did not reach 0.8"


def test_the_interval_always_holds_the_typical_time():
    # logarithms of 1, 1, 1, 1, K, K have their t interval below (1 + 1 + 1 + K)/4 for a large K
    row = row_of(factors=[1.0, 1.0, 1.0, 1.0, 1e6, 1e6])
    assert row["interval"]["low"] <= row["seconds"] <= row["interval"]["high"]


def test_met_within_the_first_epoch_is_its_end_and_marked():
    law = Law(samples=256_000)  # 1,000 steps an epoch, of which the target takes 800
    row = row_of(factors=[1.0, 1.0], law=law, epochs=2)
    assert row["seconds"] == pytest.approx(seconds(1000))
    assert row["upper_bound"]


def test_nobody_came_so_far():
    row = row_of(factors=[1.0, 1.0], epochs=3)
    assert row["seconds"] is None
    assert row["interval"] == {"kind": "range", "low": None, "high": None}
    assert not row["upper_bound"]
