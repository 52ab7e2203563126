"""Which trials ASHA stops, and that it decides the same after it was told its past again."""

import math
import random

import pytest

from scalestudy.orchestration.sweep.asha import Asha
from tests.support.epochs import epoch_of as epoch
from tests.support.synthetic_studies import spec_of


def asha(mode="max", epochs=9, grace_epochs=1, reduction=3):
    return Asha(mode, epochs=epochs, grace_epochs=grace_epochs, reduction=reduction)


@pytest.mark.parametrize("mode", ["max", "min"])
def test_a_trial_worse_than_the_best_third_so_far_stops_at_the_rung(mode):
    better = (0.1, 0.2, 0.3) if mode == "max" else (0.3, 0.2, 0.1)
    found = asha(mode)
    assert not any(found.stops(f"trial-{value}", epoch(1, value)) for value in better)
    # of 0.1, 0.2, 0.3 the upper third begins at 0.1 + 2/3 · 0.2 = 0.233; of the losses at 0.166
    assert found.stops("worse", epoch(1, 0.23 if mode == "max" else 0.17))
    assert not found.stops("better", epoch(1, 0.9 if mode == "max" else 0.01))
    assert found.stopped == {"worse": 1}


def test_rungs_are_the_grace_epochs_and_their_multiples_below_the_last_epoch():
    def stopped_at(number, **settings):
        found = asha(**settings)
        found.stops("best", epoch(number, 0.9))
        return found.stops("worst", epoch(number, 0.1))

    assert [stopped_at(number) for number in (1, 2, 3, 8)] == [True, True, True, True]
    assert not stopped_at(9), "the last epoch: both end by themselves, with their models"
    assert not stopped_at(1, grace_epochs=2)
    assert stopped_at(2, grace_epochs=2)
    found = asha()  # at 1 the worse one was the first, and nobody to compare with; between rungs nothing is decided
    assert not found.stops("worst", epoch(1, 0.1))
    assert not found.stops("best", epoch(1, 0.9))
    assert not found.stops("best", epoch(2, 0.9))
    assert not found.stops("worst", epoch(2, 0.1))
    assert not found.stops("best", epoch(3, 0.9))
    assert found.stops("worst", epoch(3, 0.1))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None])
def test_an_epoch_without_a_number_is_not_judged_and_does_not_spoil_the_rung(value):
    found = asha()
    assert not found.stops("odd", epoch(1, value))
    assert not found.stops("best", epoch(1, 0.9))
    assert found.stops("worst", epoch(1, 0.1))
    assert found.stops("odd", epoch(2, 0.2)), "judged as soon as it has a number"


def test_an_epoch_told_again_after_a_crash_is_not_judged_again():
    found = asha()
    found.stops("first", epoch(1, 0.1))
    for value in (0.5, 0.6, 0.7):
        found.stops(f"trial-{value}", epoch(1, value))
    assert not found.stops("first", epoch(1, 0.1))
    assert not found.stops("first", epoch(2, 0.1))


def test_a_stopped_trial_stays_stopped():
    found = asha()
    found.stops("best", epoch(1, 0.9))
    assert found.stops("worst", epoch(1, 0.1))
    assert found.stops("worst", epoch(2, 0.99))
    assert found.stopped == {"worst": 1}


def test_rungs_that_are_told_their_past_decide_as_they_would_have():
    generator = random.Random(3)
    story = [(f"trial-{generator.randrange(30)}", generator.random()) for _ in range(400)]
    epochs = {}
    told = []
    for trial_id, value in story:
        epochs[trial_id] = epochs.get(trial_id, 0) + 1
        if epochs[trial_id] <= 27:
            told.append((trial_id, epoch(epochs[trial_id], value)))
    whole = asha(epochs=27)
    decisions = [whole.stops(*each) for each in told]
    assert 5 < len(whole.stopped) < 30
    for cut in range(0, len(told), 7):
        again = asha(epochs=27)
        for each in told[:cut]:
            again.stops(*each)
        assert [again.stops(*each) for each in told[cut:]] == decisions[cut:]


def test_a_spec_s_epochs_may_stand_in_its_sweep():
    spec = spec_of("name: x\nsweep: {train.epochs: [2]}\nsearch: {scheduler: asha}")
    found = Asha.of(spec)
    found.stops("best", epoch(2, 0.9))
    assert not found.stops("worst", epoch(2, 0.1)), "the second epoch is the last"
