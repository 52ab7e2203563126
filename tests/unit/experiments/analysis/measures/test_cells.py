"""How combinations of parameters are named, and what cells tell of the flags of their trials."""

import pytest

from scalestudy.experiments.analysis.measures.cells import cell_row, combination_of, flag_caveats, gather
from scalestudy.experiments.analysis.measures.metric import ACCURACY
from scalestudy.experiments.plan.timing_flags import TimingFlag
from scalestudy.experiments.plan.timing_runs import timing_trials
from tests.support.synthetic_studies import study_of
from tests.support.trials import Law, make_timings


def test_a_combination_is_named_as_in_the_summary():
    params = {"num_gpus": 1, "batch_size": 2, "learning_rate": 0.1, "train.gradient_sync": "naive"}
    assert combination_of(params) == "gradient_sync=naive"
    assert combination_of({"num_gpus": 1, "batch_size": 2}) == ""


SIZES = "name: x\ntrain: {epochs: 3}\nsweep: {num_gpus: [1, 2], batch_size: [32], seed: [0, 1]}"


def rows_of(shares, flags=("starved",), timed=False):
    """The cells' rows. shares: of the epochs of the cell with one worker, by seed; timed: timing runs follow."""

    def change(trial):
        if trial["params"]["num_gpus"] == 1:
            trial["flags"] = list(flags)
            for epoch, share in zip(trial["epochs"], shares[trial["params"]["seed"]], strict=True):
                epoch["starved_share"] = share

    spec, plan, trials = study_of(SIZES, change=change)
    timings = timing_trials(spec, plan.trials, {trial["trial_id"]: trial for trial in trials}) if timed else []
    return [cell_row(cell) for cell in gather(plan, [*trials, *make_timings(timings, Law())], ACCURACY)]


def test_a_caveat_says_how_starved_the_workers_were():
    alone, two = rows_of([[0.9, 0.3, 0.25], [0.1, 0.45, 0.5]])
    assert alone["starved_share"] == pytest.approx(0.45)  # medians over the epochs 0.3 and 0.45
    assert "starved_share" not in two
    assert flag_caveats([alone, two]) == {
        "starved": "Marked starved (other work, or a limit on CPUs, took cores from its workers, up to 45% of their "
        "computing time): 1 cell of 2."
    }


def test_a_starved_cell_without_the_share_is_told_too():
    alone, _ = rows_of([[None] * 3] * 2)
    assert "took cores from its workers): 1 cell of 1." in flag_caveats([alone])["starved"]


def test_undisturbed_timing_runs_clear_every_doubt():
    """Those too of trials that resumed: their times are not the cell's."""
    shares = [[0.5] * 3] * 2
    alone, _ = rows_of(shares, flags=(*TimingFlag, "of_tomorrow"), timed=True)
    assert (alone["flags"], "starved_share" in alone) == (["of_tomorrow"], False)
    alone, _ = rows_of(shares, flags=("shared_node", "starved"))
    assert alone["flags"] == ["shared_node", "starved"]
