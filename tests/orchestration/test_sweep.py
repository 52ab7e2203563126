"""Stage 3: searches through real Tune, with worker groups that train nothing."""

import pytest

from scalestudy.experiments.plan.plan import make_plan
from scalestudy.orchestration.base.errors import RequestError
from scalestudy.orchestration.sweep.search import search_for
from scalestudy.orchestration.sweep.sweep import run_sweep
from tests.support.fake_groups import FakeGroups, order_by
from tests.support.searches import at_once, curve_of
from tests.support.synthetic_studies import spec_of

GRID = "name: x\ntrain: {epochs: 2}\nsweep: {num_gpus: [1, 2], learning_rate: [0.1, 0.2, 0.3]}"
TPE = """
name: x
train: {epochs: 2}
sweep: {num_gpus: [1, 2], learning_rate: {log_uniform: [0.001, 1]}}
search: {method: tpe, samples: 13}
"""
ASHA = """
name: x
train: {epochs: 9}
sweep: {learning_rate: [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]}
search: {scheduler: asha, reduction: 3}
"""


@pytest.fixture
def groups(ray_session):
    import ray

    actor = ray.remote(FakeGroups).options(num_cpus=0).remote()
    yield actor
    ray.kill(actor)


class Run:
    """One sweep of a spec on fake groups, and what the study was told."""

    def __init__(self, groups, folder, text, *, past=(), order_of=None, concurrency=1, ends=None):
        spec = spec_of(text)
        self.journal = []
        run_sweep(
            search_for(spec, make_plan(spec), past),
            groups=groups,
            order_of=order_of or order_by(curve_of),
            concurrency=concurrency,
            folder=folder,
            on_event=lambda trial_id, event: self.journal.append((trial_id, event)),
            should_stop=lambda: ends is not None and len(self.ended) >= ends,
        )

    def of(self, kind):
        """The trials that were told events of a kind, in that order."""
        return [trial_id for trial_id, event in self.journal if event["type"] == kind]

    @property
    def ended(self):
        """Status by trial, in the order of their ends."""
        return {trial_id: event["status"] for trial_id, event in self.journal if event["type"] == "ended"}

    def epochs_of(self, trial_id):
        return [e["epoch"]["epoch"] for each, e in self.journal if each == trial_id and e["type"] == "epoch"]


def test_a_grid_runs_in_the_plan_s_order_one_at_a_time(groups, tmp_path):
    import ray

    run = Run(groups, tmp_path, GRID)
    planned = [trial.trial_id for trial in make_plan(spec_of(GRID)).trials]
    assert list(run.ended) == planned
    kinds = [(trial_id, event["type"]) for trial_id, event in run.journal]
    assert kinds == [(each, kind) for each in planned for kind in ("running", "epoch", "epoch", "ended")]
    calls = ray.get(groups.told.remote())
    assert [trial_id for call, trial_id in calls if call == "lease"] == planned
    assert {trial_id for call, trial_id in calls if call == "release"} == set(planned)
    assert not [call for call in calls if call[0] == "stop"]


def test_what_has_ended_is_not_run_again_and_several_run_at_a_time(groups, tmp_path):
    first = Run(groups, tmp_path / "1", GRID, ends=2)
    assert 2 <= len(first.ended) < 6
    rest = Run(groups, tmp_path / "2", GRID, past=first.journal, concurrency=3)
    assert not first.ended.keys() & rest.ended.keys()
    assert len(first.ended) + len(rest.ended) == 6
    assert not Run(groups, tmp_path / "3", GRID, past=first.journal + rest.journal).journal


def test_a_trial_that_has_no_order_fails_alone(groups, tmp_path):
    inner = order_by(curve_of)

    def order_of(trial):
        if trial.learning_rate == 0.2:
            raise RequestError("batch_size: 1", "use more") if trial.num_gpus == 2 else ValueError("no such rate")
        return inner(trial)

    run = Run(groups, tmp_path, GRID, order_of=order_of)
    assert sorted(run.ended.values()) == ["failed"] * 2 + ["finished"] * 4
    errors = [event["error"] for _, event in run.journal if event["type"] == "ended" and event["error"]]
    assert [each["kind"] for each in errors] == ["config", "config"]
    assert [each["message"] for each in errors] == ["no such rate", "batch_size: 1; use more"]


def test_tpe_through_tune_is_the_search_itself(groups, tmp_path):
    run = Run(groups, tmp_path, TPE)
    assert run.of("suggested") == [trial for trial, event in at_once(spec_of(TPE)) if event["type"] == "suggested"]
    assert list(run.ended) == run.of("suggested")
    for trial_id in run.ended:
        kinds = [event["type"] for each, event in run.journal if each == trial_id]
        assert kinds == ["suggested", "running", "epoch", "epoch", "ended"]


@pytest.mark.parametrize("ends", [3, 11])
def test_tpe_that_was_cut_off_goes_on_with_its_sequence(groups, tmp_path, ends):
    undisturbed = [trial for trial, event in at_once(spec_of(TPE)) if event["type"] == "suggested"]
    first = Run(groups, tmp_path / "1", TPE, ends=ends)
    assert ends <= len(first.ended) <= ends + 1
    rest = Run(groups, tmp_path / "2", TPE, past=first.journal)
    assert first.of("suggested") + rest.of("suggested") == undisturbed
    assert list(first.ended) + list(rest.ended) == undisturbed


def test_tpe_with_several_trials_at_a_time_runs_each_point_once(groups, tmp_path):
    run = Run(groups, tmp_path, TPE, concurrency=2)
    assert len(run.ended) == len(run.of("suggested")) == len(set(run.of("suggested"))) == 13


def rising(trial):
    """The accuracy of a trial rises over its epochs, and with its learning rate the faster."""
    return [trial.learning_rate * (1 + epoch / 10) for epoch in range(9)]


def falling(trial):
    """The first trials are the best: all later ones stop at the first rung where there are enough."""
    return [(1 - trial.learning_rate) * (1 + epoch / 10) for epoch in range(9)]


def test_asha_stops_trials_at_their_rung_and_nothing_of_them_is_told_after_it(groups, tmp_path):
    import ray

    run = Run(groups, tmp_path, ASHA, order_of=order_by(falling))
    planned = [trial.trial_id for trial in make_plan(spec_of(ASHA)).trials]
    # rates 0.1 … 0.8: at epoch 1 each later trial is below the 2/3 quantile of those before it
    assert run.ended == {planned[0]: "finished", **dict.fromkeys(planned[1:], "stopped")}
    assert run.epochs_of(planned[0]) == list(range(1, 10))
    for trial_id in planned[1:]:
        assert run.epochs_of(trial_id) == [1]
        last = [event for each, event in run.journal if each == trial_id][-1]
        assert (last["type"], [each["epoch"] for each in last["epochs"]]) == ("ended", [1])
    stops = [trial_id for call, trial_id in ray.get(groups.told.remote()) if call == "stop"]
    assert stops == planned[1:]


def test_asha_lets_trials_that_improve_finish_in_their_last_epoch(groups, tmp_path):
    run = Run(groups, tmp_path, ASHA, order_of=order_by(rising))
    assert set(run.ended.values()) == {"finished"}
    assert all(run.epochs_of(trial_id) == list(range(1, 10)) for trial_id in run.ended)


def test_asha_s_rungs_outlive_the_run(groups, tmp_path):
    """Cut off and gone on with: the same trials stop at the same rungs as undisturbed, by rates in no order."""
    order = {0.1: 0.5, 0.2: 0.3, 0.3: 0.7, 0.4: 0.1, 0.5: 0.4, 0.6: 0.9, 0.7: 0.65, 0.8: 0.95}

    def curve(trial):
        return [order[trial.learning_rate] * (1 + epoch / 10) for epoch in range(9)]

    whole = Run(groups, tmp_path / "0", ASHA, order_of=order_by(curve))
    assert set(whole.ended.values()) == {"finished", "stopped"}
    first = Run(groups, tmp_path / "1", ASHA, order_of=order_by(curve), ends=4)
    rest = Run(groups, tmp_path / "2", ASHA, past=first.journal, order_of=order_by(curve))
    assert {**first.ended, **rest.ended} == whole.ended
    forgotten = Run(groups, tmp_path / "3", ASHA, order_of=order_by(curve), past=ends_of(first.journal))
    assert {**first.ended, **forgotten.ended} != whole.ended, "without its past a later rung decides otherwise"


def ends_of(journal):
    return [(trial_id, event) for trial_id, event in journal if event["type"] == "ended"]
