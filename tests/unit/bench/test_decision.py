"""What `make bench BENCH=decision` makes of its studies; the studies themselves are proved by its `--small`."""

import math

import numpy as np
import pytest

from scalestudy.experiments.plan.plan import make_plan
from scalestudy.orchestration.study.folders import read_spec
from tests.bench.decision import FRESH, SMALL, SPACE, Kept, kept, once_more, ratio
from tests.support.studies import write_spec
from tests.support.synthetic_studies import folder_of

ONE = {"num_gpus": 1, "batch_size": 64, "learning_rate": 0.05}
TWO = {"num_gpus": 2, "batch_size": 64, "learning_rate": 0.05}
FASTER = {"num_gpus": 2, "batch_size": 128, "learning_rate": 0.1}


def test_the_ratio_is_the_geometric_mean_with_a_t_interval_of_logarithms():
    value, low, high = ratio([2.0, 8.0], [1.0, 1.0])  # ln 2 and 3 ln 2: mean 2 ln 2, standard error ln 2
    assert value == pytest.approx(4.0)
    half = 6.313752 * math.log(2)  # t at 95 %, one degree of freedom
    assert (low, high) == pytest.approx((4 * math.exp(-half), 4 * math.exp(half)))


def test_a_cell_that_misses_the_target_counts_against_itself():
    assert ratio([math.inf] * 3 + [1.0] * 2, [1.0] * 5) == (math.inf, 1.0, math.inf)
    assert ratio([1.0] * 5, [math.inf] * 3 + [1.0] * 2) == (0.0, 0.0, 1.0)
    assert ratio([math.inf, 1.0, 4.0], [math.inf, 1.0, 1.0]) == ratio([1.0, 4.0], [1.0, 1.0])
    assert all(map(math.isnan, ratio([math.inf], [math.inf])))


def test_nine_in_ten_intervals_hold_the_true_ratio_of_15_seeds():
    generator = np.random.default_rng(16)
    seeds = generator.normal(0, 0.3, (2_000, len(FRESH)))  # shared by both cells
    times, base = (np.exp(seeds + generator.normal(0, 0.1, seeds.shape)) for _ in range(2))
    ends = [ratio(list(1.1 * one), list(other))[1:] for one, other in zip(times, base, strict=True)]
    assert 0.87 < np.mean([low <= 1.1 <= high for low, high in ends]) < 0.93
    assert np.median([high / low for low, high in ends]) < 1.15  # by 2 · 1.76 · 0.14 ÷ √15: the seeds cancel


@pytest.mark.parametrize("space", [SPACE, SMALL])
def test_a_seed_is_a_study_in_which_each_cell_comes_once_and_places_change(space, tmp_path):
    rows = [{"label": str(cell), "params": cell} for cell in (TWO, ONE, FASTER, TWO)]
    specs = [read_spec(write_spec(tmp_path, **once_more(space, rows, seed))) for seed in (100, 101)]
    orders = [[trial.cell for trial in make_plan(spec).trials] for spec in specs]
    assert orders == [[ONE, TWO, FASTER], [ONE, FASTER, TWO]]
    assert all(spec.stops_at_target and spec.resources.exclusive is True for spec in specs)


STUDY = """
    name: small
    sweep: {num_gpus: [1, 2], batch_size: [64, 128], learning_rate: [0.1, 0.2], seed: [0, 1, 2]}
    targets: {accuracy: [0.5], stop: true}
    """


def test_the_best_cell_of_a_grid_has_the_least_measured_median(tmp_path):
    study = Kept(folder_of(tmp_path / "grid", STUDY))
    study.folder.write_json(
        study.folder.summary_file,
        {
            "time_to_target": [
                {"label": "slow", "measured_seconds": 3.0, "seconds": 1.0},
                {"label": "missed", "measured_seconds": None, "seconds": None},
                {"label": "best", "measured_seconds": 2.0, "seconds": 2.5},
            ]
        },
    )
    assert (study.best["label"], study.best["seconds"]) == ("best", 2.0)
    assert [study.seconds("slow"), study.seconds("missed")] == [3.0, math.inf]


def test_a_folder_with_a_study_of_another_spec_is_refused(tmp_path):
    folder_of(tmp_path / "grid", STUDY)
    with pytest.raises(RuntimeError, match="another spec; remove"):
        kept(tmp_path, "grid", SMALL)
