"""Searches through real Tune, with a pool that trains nothing; and in which order an event is delivered."""

import pytest

from scalestudy.experiments.plan.plan import make_plan
from scalestudy.orchestration.base.errors import RequestError
from scalestudy.orchestration.groups.events import (
    Ended,
    EpochDone,
    JournalEvent,
    Lost,
    Retried,
    Running,
    Suggested,
    TrialError,
)
from scalestudy.orchestration.groups.trial_record import TrialRecord
from scalestudy.orchestration.sweep.methods import search_for
from scalestudy.orchestration.sweep.sweep import Sweep
from tests.support.epochs import epoch_of
from tests.support.fake_pool import FakePool, ended, order_by
from tests.support.searches import at_once, curve_of, suggestions
from tests.support.synthetic_studies import spec_of

GRID = "name: x\ntrain: {epochs: 2}\nsweep: {num_gpus: [1, 2], learning_rate: [0.1, 0.2]}"
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


@pytest.fixture(scope="module")
def actor(ray_session):
    import ray

    return ray.remote(FakePool).options(num_cpus=0).remote()


@pytest.fixture
def pool(actor):
    import ray

    ray.get(actor.forget.remote())
    return actor


class Run:
    """One sweep of a spec on a fake pool, and its journal."""

    def __init__(self, pool, folder, text, *, past=(), order_of=None, concurrency=1, ends=None):
        spec = spec_of(text)
        self.journal = []
        self._records = {}
        self.search = search_for(spec, make_plan(spec), past)
        Sweep(self.search, pool=pool, order_of=order_of or order_by(curve_of), record=self.write).run(
            concurrency=concurrency,
            folder=folder,
            should_stop=lambda: ends is not None and len(self.ended) >= ends,
        )

    def write(self, trial_id, event):
        """Writes what is news, as a recorder does."""
        record = self._records.setdefault(trial_id, TrialRecord())
        if not record.is_news(event):
            return None
        record.apply(event, 0.0)
        self.journal.append((trial_id, event))
        return event

    def of(self, kind):
        """The trials that were told events of a kind, in that order."""
        return [trial_id for trial_id, event in self.journal if isinstance(event, kind)]

    @property
    def ended(self):
        """Status by trial, in the order of their ends."""
        return {trial_id: event.status for trial_id, event in self.journal if isinstance(event, Ended)}

    def epochs_of(self, trial_id):
        return [e.record.epoch for each, e in self.journal if each == trial_id and isinstance(e, EpochDone)]


def test_a_grid_runs_in_the_plan_s_order_one_at_a_time(pool, tmp_path):
    import ray

    run = Run(pool, tmp_path, GRID)
    planned = [trial.trial_id for trial in make_plan(spec_of(GRID)).trials]
    assert list(run.ended) == planned
    kinds = [(trial_id, type(event).__name__) for trial_id, event in run.journal]
    assert kinds == [(each, kind) for each in planned for kind in ("Running", "EpochDone", "EpochDone", "Ended")]
    calls = ray.get(pool.told.remote())
    assert [trial_id for call, trial_id in calls if call == "request"] == planned
    assert {trial_id for call, trial_id in calls if call == "release"} == set(planned)
    assert not [call for call in calls if call[0] == "stop"]


def test_what_has_ended_is_not_run_again_and_several_run_at_a_time(pool, tmp_path):
    first = Run(pool, tmp_path / "1", GRID, ends=2)
    assert 2 <= len(first.ended) < 4
    rest = Run(pool, tmp_path / "2", GRID, past=first.journal, concurrency=2)
    assert not first.ended.keys() & rest.ended.keys()
    assert len(first.ended) + len(rest.ended) == 4
    assert not Run(pool, tmp_path / "3", GRID, past=first.journal + rest.journal).journal


def test_a_trial_that_has_no_order_fails_alone(pool, tmp_path):
    inner = order_by(curve_of)

    def order_of(trial):
        if trial.learning_rate == 0.2:
            raise RequestError("batch_size: 1", "use more") if trial.num_gpus == 2 else ValueError("no such rate")
        return inner(trial)

    run = Run(pool, tmp_path, GRID, order_of=order_of)
    assert sorted(run.ended.values()) == ["failed"] * 2 + ["finished"] * 2
    errors = [event.error for _, event in run.journal if isinstance(event, Ended) and event.error]
    assert [each.kind for each in errors] == ["config", "config"]
    assert [each.message for each in errors] == ["no such rate", "batch_size: 1; use more"]


def put_off(times):
    """Orders of trials that are put off so often, by their learning rate and number of workers."""
    return order_by(curve_of, put_off=lambda trial: times.get((trial.learning_rate, trial.num_gpus), 0))


@pytest.mark.parametrize("concurrency", [1, 3])
def test_trials_that_are_put_off_come_after_the_others(pool, tmp_path, concurrency):
    import ray

    run = Run(pool, tmp_path, GRID, order_of=put_off({(0.1, 1): 2, (0.2, 2): 1}), concurrency=concurrency)
    planned = {(trial.learning_rate, trial.num_gpus): trial.trial_id for trial in make_plan(spec_of(GRID)).trials}
    late = [planned[0.1, 1], planned[0.2, 2]]
    assert set(run.ended.values()) == {"finished"}
    assert set(list(run.ended)[-2:]) == set(late), "they went to the back of the queue"
    assert sorted(run.of(Retried)) == sorted([late[0], late[0], late[1]])
    assert [len(run.epochs_of(trial_id)) for trial_id in planned.values()] == [2] * 4
    released = [trial_id for call, trial_id in ray.get(pool.told.remote()) if call == "release"]
    assert sorted(released) == sorted(planned.values()), "each once, at its end"
    assert run.search.gave_up is None


def test_a_sweep_ends_when_all_that_is_left_is_put_off_again_and_again(pool, tmp_path):
    run = Run(pool, tmp_path, GRID, order_of=put_off({(0.1, 1): 9, (0.1, 2): 9}))
    assert len(run.ended) == 2
    assert len(run.of(Retried)) == 8, "once each before the others ended, and three times after"
    assert "each of 2 trials left was put off 3 times" in run.search.gave_up
    assert run.search.gave_up.endswith("no_room: the room is gone")
    rest = Run(pool, tmp_path / "later", GRID, past=run.journal)
    assert set(rest.ended) == set(run.of(Retried)), "a later run takes them up"


def test_tpe_through_tune_is_the_search_itself(pool, tmp_path):
    run = Run(pool, tmp_path, TPE)
    assert run.of(Suggested) == [event.trial.trial_id for event in suggestions(at_once(spec_of(TPE)))]
    assert list(run.ended) == run.of(Suggested)
    for trial_id in run.ended:
        kinds = [type(event).__name__ for each, event in run.journal if each == trial_id]
        assert kinds == ["Suggested", "Running", "EpochDone", "EpochDone", "Ended"]


def test_tpe_with_several_trials_at_a_time_runs_each_point_once(pool, tmp_path):
    run = Run(pool, tmp_path, TPE.replace("samples: 13", "samples: 3"), concurrency=2)
    assert len(run.ended) == len(run.of(Suggested)) == len(set(run.of(Suggested))) == 3


def falling(trial):
    """The first trials are the best: all later ones stop at the first rung where there are enough."""
    return [(1 - trial.learning_rate) * (1 + epoch / 10) for epoch in range(9)]


def test_asha_stops_trials_at_their_rung_and_nothing_of_them_is_told_after_it(pool, tmp_path):
    import ray

    run = Run(pool, tmp_path, ASHA, order_of=order_by(falling))
    planned = [trial.trial_id for trial in make_plan(spec_of(ASHA)).trials]
    # rates 0.1 … 0.8: at epoch 1 each later trial is below the 2/3 quantile of those before it
    assert run.ended == {planned[0]: "finished", **dict.fromkeys(planned[1:], "stopped")}
    assert run.epochs_of(planned[0]) == list(range(1, 10))
    for trial_id in planned[1:]:
        assert run.epochs_of(trial_id) == [1]
        last = [event for each, event in run.journal if each == trial_id][-1]
        assert isinstance(last, Ended)
        assert [record.epoch for record in last.epochs] == [1]
    stops = [trial_id for call, trial_id in ray.get(pool.told.remote()) if call == "stop"]
    assert stops == planned[1:]


# --- in which order an event is delivered ---------------------------------------------------------------------------


class Noted:
    """Recorder, search and ASHA in one, which note who was asked, in which order."""

    def __init__(self, *, writes=True, stops=False):
        self.calls: list[tuple[str, str]] = []
        self._writes, self._stops = writes, stops

    def record(self, _trial_id, event) -> JournalEvent | None:
        self.calls.append(("journal", type(event).__name__))
        if isinstance(event, Lost):
            event = TrialRecord().end_of_lost(event, 1.0)
        return event if self._writes else None

    def take(self, _trial_id, event):
        self.calls.append(("search", type(event).__name__))

    def stops(self, _trial_id, event):
        self.calls.append(("asha", f"epoch {event.record.epoch}"))
        return self._stops

    def cut_short(self):
        return {"t": 1}

    def deliver(self, event, pool=None):
        return Sweep(self, pool=pool, order_of=None, record=self.record).deliver("t", event)


EPOCH = EpochDone(record=epoch_of(1))
GONE = TrialError(kind="tune_trial", message="gone")


@pytest.mark.parametrize(
    ("event", "facts", "calls"),
    [
        *(
            (event, {}, [("journal", type(event).__name__), ("search", type(event).__name__)])
            for event in (
                Suggested(trial=None, point=1),
                Running(attempt=1),
                Retried(attempt=1, error=GONE),
                ended([], "finished"),
            )
        ),
        (EPOCH, {}, [("journal", "EpochDone"), ("search", "EpochDone"), ("asha", "epoch 1")]),
        (EPOCH, {"writes": False, "stops": True}, [("journal", "EpochDone")]),  # it is no news
        (Lost(error=GONE), {}, [("journal", "Lost"), ("search", "Ended")]),  # what the journal says of it
    ],
)
def test_the_journal_comes_first_then_the_search_then_asha(event, facts, calls):
    noted = Noted(**facts)
    assert not noted.deliver(event)
    assert noted.calls == calls


class Stopped:
    """A pool whose trial is stopped, or was released before."""

    def __init__(self, *, released):
        self.stop = self
        self._released = released

    def remote(self, _trial_id, epoch):
        import ray

        return ray.put(None if self._released else ended([epoch_of(epoch)], "stopped"))


@pytest.mark.parametrize("released", [False, True])
def test_a_trial_that_asha_stops_ends_at_once(ray_session, released):
    noted = Noted(stops=True)
    assert noted.deliver(EPOCH, Stopped(released=released))
    assert noted.calls == [
        ("journal", "EpochDone"),
        ("search", "EpochDone"),
        ("asha", "epoch 1"),
        ("journal", "Lost" if released else "Ended"),
        ("search", "Ended"),
    ]


def test_a_pool_that_is_gone_leaves_the_end_to_the_next_sweep(actor):
    """The last test here: it ends the pool of the others."""
    import ray

    ray.kill(actor)
    noted = Noted(stops=True)
    assert noted.deliver(EPOCH, actor), "the trial stops"
    assert [who for who, _ in noted.calls] == ["journal", "search", "asha"]
