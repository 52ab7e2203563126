"""A study under faults ends as it does in peace; `make chaos` is the long form."""

import pytest

from tests.bench.chaos import EPOCHS, Place, put_to_the_test
from tests.bench.faults import Strike
from tests.support.chaos_outcome import in_peace

SWEEP = {"num_gpus": [2], "batch_size": [256], "learning_rate": [0.05, 0.1, 0.2], "seed": [0]}
STRIKES = {"kill worker": 0.1, "stop driver": 0.2, "kill driver": 0.4, "tracking down": 0.5, "corrupt checkpoint": 0.7}


@pytest.mark.chaos
@pytest.mark.timeout(600)  # a minute on two quiet cores
def test_a_study_under_five_faults(tmp_path):
    strikes = [Strike(kind=kind, after=after, choice=0.6) for kind, after in STRIKES.items()]
    with Place.made(tmp_path / "place", sweep=SWEEP) as place:
        expected = in_peace(place.spec)
        assert all(len(epochs) == EPOCHS for _, _, epochs in expected.trials.values())
        ordeal, problems = put_to_the_test(place, expected, strikes, "disturbed")
    said = (place.path / "disturbed.log").read_text("utf-8")
    assert not problems, f"{problems}\n{ordeal.told}\n{said}"
    assert len(ordeal.told) == len(strikes), ordeal.told
    assert ordeal.resumed == 1
    trials = ordeal.folder.read_trials()
    assert len(trials) == 3
    assert sum(trial["attempts"] for trial in trials) >= 3 + 2
