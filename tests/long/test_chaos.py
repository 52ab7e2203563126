"""A study under faults ends as it does in peace; `make chaos` is the long form."""

from collections import Counter

import pytest

from scalestudy.orchestration.study.folders import read_spec
from scalestudy.orchestration.study.ready import check_data
from scalestudy.orchestration.study.trials import train_config
from scalestudy.training.loop.train import train
from tests.bench.chaos import EPOCHS, Place, put_to_the_test
from tests.support.chaos_outcome import COMPUTED, Outcome
from tests.support.faults import Strike
from tests.support.gloo import gloo_pool

SWEEP = {"num_gpus": [2], "batch_size": [256], "learning_rate": [0.05, 0.1, 0.2], "seed": [0]}
STRIKES = {"kill worker": 0.1, "stop driver": 0.2, "kill driver": 0.4, "tracking down": 0.5, "corrupt checkpoint": 0.7}


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
            config = train_config(trial, check_data(spec))
            quick = config.replace(model_args={**config.model_args, "seconds": 0.0})
            found[trial.trial_id] = ("finished", None, ranks.run(2, computed, quick)[0])
    return Outcome(found, Counter(found))


@pytest.mark.chaos
@pytest.mark.timeout(600)  # a minute on two quiet cores
def test_a_study_under_five_faults(tmp_path):
    strikes = [Strike(kind=kind, after=after, choice=0.6) for kind, after in STRIKES.items()]
    with Place.made(tmp_path / "place", sweep=SWEEP) as place:
        expected = in_peace(place)
        assert all(len(epochs) == EPOCHS for _, _, epochs in expected.trials.values())
        ordeal, problems = put_to_the_test(place, expected, strikes, "disturbed")
    said = (place.path / "disturbed.log").read_text("utf-8")
    assert not problems, f"{problems}\n{ordeal.told}\n{said}"
    assert len(ordeal.told) == len(strikes), ordeal.told
    assert ordeal.resumed == 1
    trials = ordeal.folder.read_trials()
    assert len(trials) == 3
    assert sum(trial["attempts"] for trial in trials) >= 3 + 2
