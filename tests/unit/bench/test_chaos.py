"""The faults of `make chaos`, and what counts as a difference; tests/long has a study under them."""

from collections import Counter

import pytest
import torch

from scalestudy.experiments.study.folder import StudyFolder
from tests.bench.faults import FAULTS, flip_byte, pick, plan_strikes
from tests.support.chaos_outcome import Outcome, differences, model_differences


def test_the_faults_of_a_seed_are_always_the_same_and_of_every_kind():
    strikes = plan_strikes(3, 20, list(FAULTS))
    assert strikes == plan_strikes(3, 20, list(FAULTS))
    assert strikes != plan_strikes(4, 20, list(FAULTS))
    assert set(Counter(strike.kind for strike in strikes).values()) == {2, 3}
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


@pytest.mark.parametrize(("trial_id", "bias", "equal"), [("a", 1.0, True), ("a", 1.0000001, False), ("b", 2.0, True)])
def test_kept_models_of_one_trial_are_compared_by_their_parameters(tmp_path, trial_id, bias, equal):
    folders = []
    for name, trial, value in [("peace", "a", 1.0), ("chaos", trial_id, bias)]:
        (tmp_path / name / "checkpoints" / trial).mkdir(parents=True)
        torch.save({"bias": torch.tensor([value])}, tmp_path / name / "checkpoints" / trial / "model.pt")
        folders.append(StudyFolder(tmp_path / name))
    assert (model_differences(*folders) == []) is equal


def test_lost_and_unknown_trials_are_differences():
    assert differences(PEACE, Outcome({}, Counter()), 0) == ["a was lost"]
    more = Outcome({**PEACE.trials, "b": ("finished", None, [])}, Counter("ab"))
    assert differences(PEACE, more, 0) == ["b is no trial of the study"]
