"""A study under faults ends as it does in peace; `make chaos` is the long form."""

from collections import Counter
from dataclasses import replace

import pytest

from scalestudy.orchestration.study.folders import read_spec
from scalestudy.orchestration.study.ready import check_data
from scalestudy.orchestration.study.trials import train_config
from scalestudy.training.config import TrainConfig
from scalestudy.training.loop.train import train
from tests.bench.chaos import EPOCHS, Place, put_to_the_test
from tests.support.chaos_outcome import COMPUTED, Outcome, differences
from tests.support.faults import FAULTS, Strike, flip_byte, pick, plan_strikes
from tests.support.gloo import gloo_pool

SWEEP = {"num_gpus": [2], "batch_size": [256], "learning_rate": [0.05, 0.1, 0.2], "seed": [0]}
STRIKES = {"kill worker": 0.1, "kill driver": 0.35, "tracking down": 0.5, "corrupt checkpoint": 0.7}


def test_the_faults_of_a_seed_are_always_the_same_and_of_every_kind():
    strikes = plan_strikes(3, 20, list(FAULTS))
    assert strikes == plan_strikes(3, 20, list(FAULTS))
    assert strikes != plan_strikes(4, 20, list(FAULTS))
    assert set(Counter(strike.kind for strike in strikes).values()) == {3, 4}
    assert [strike.after for strike in strikes] == sorted(strike.after for strike in strikes)
    assert plan_strikes(0, 0, list(FAULTS)) == []


def test_a_byte_is_flipped(tmp_path):
    file = tmp_path / "part"
    file.write_bytes(bytes(range(10)))
    flip_byte(file, 0.55)
    assert file.read_bytes() == bytes([0, 1, 2, 3, 4, 0xFF ^ 5, 6, 7, 8, 9])
    file.write_bytes(b"")
    with pytest.raises(ValueError, match="empty"):
        flip_byte(file, 0.5)
    assert [pick([7, 8, 9], choice) for choice in (0.0, 0.5, 0.99)] == [7, 8, 9]


PEACE = Outcome({"a": ("finished", None, [(1, 0.5), (2, 0.25)])}, Counter("a"))


@pytest.mark.parametrize(
    ("status", "kind", "epochs", "times", "raised", "problem"),
    [
        ("finished", None, [(1, 0.5), (2, 0.25)], 1, 0, None),
        ("failed", "exception", [(1, 0.5)], 1, 1, None),
        ("failed", "exception", [(1, 0.5)], 1, 0, "1 trials failed by an exception, and 0 were raised by order"),
        ("failed", "exception", [(1, 0.6)], 1, 1, "other epochs"),
        ("failed", "worker_lost", [(1, 0.5), (2, 0.25)], 1, 1, "a is failed"),
        ("finished", None, [(1, 0.5), (2, 0.25)], 2, 0, "2 times"),
        ("finished", None, [(1, 0.5), (2, 0.25), (2, 0.25)], 1, 0, "other epochs"),
        ("finished", None, [(1, 0.5)], 1, 0, "other epochs"),
    ],
)
def test_what_counts_as_a_difference(status, kind, epochs, times, raised, problem):
    found = differences(PEACE, Outcome({"a": (status, kind, epochs)}, Counter({"a": times})), raised)
    assert (problem in found[0]) if problem else not found


def test_lost_and_unknown_trials_are_differences():
    assert differences(PEACE, Outcome({}, Counter()), 0) == ["a was lost"]
    more = Outcome({**PEACE.trials, "b": ("finished", None, [])}, Counter("ab"))
    assert differences(PEACE, more, 0) == ["b is no trial of the study"]


def computed(worker, config):
    """What the training loop alone computes of a trial."""
    records = [record.to_dict() for record in train(config, worker).records]
    return [tuple(record[key] for key in COMPUTED) for record in records]


def in_peace(place):
    """The outcome by the training loop alone: no engine, no Ray, no pauses."""
    from scalestudy.experiments.plan.plan import make_plan

    spec = read_spec(place.spec)
    found = {}
    with gloo_pool(2) as ranks:
        for trial in make_plan(spec).trials:
            config = TrainConfig.from_dict(train_config(trial, check_data(spec)))
            quick = replace(config, model_args={**config.model_args, "seconds": 0.0})
            found[trial.trial_id] = ("finished", None, ranks.run(2, computed, quick)[0])
    return Outcome(found, Counter(found))


@pytest.mark.timeout(600)  # a minute on two quiet cores
def test_a_study_under_four_faults(tmp_path):
    place = Place.make(tmp_path / "place", sweep=SWEEP)
    strikes = [Strike(kind=kind, after=after, choice=0.6) for kind, after in STRIKES.items()]
    place.server.start()
    try:
        expected = in_peace(place)
        assert all(len(epochs) == EPOCHS for _, _, epochs in expected.trials.values())
        ordeal, problems = put_to_the_test(place, expected, strikes, "disturbed")
    finally:
        place.server.stop()
    said = (place.path / "disturbed.log").read_text("utf-8")
    assert not problems, f"{problems}\n{ordeal.told}\n{said}"
    assert len(ordeal.told) == len(strikes), ordeal.told
    assert ordeal.resumed == 1
    trials = ordeal.folder.read_trials()
    assert len(trials) == 3
    assert sum(trial["attempts"] for trial in trials) >= 3 + 2
