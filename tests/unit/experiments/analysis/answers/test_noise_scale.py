"""The gradient noise scale, from what trainings recorded."""

import pytest

from scalestudy.experiments.analysis.answers.efficiency import noise_scale
from scalestudy.experiments.analysis.measures.trainings import Training


def training(squared, trace, *, batch_size=64, rate=0.1, seed=0, num_gpus=1, steps=10):
    noise = None if squared is None else (squared, trace)
    return Training(
        num_gpus=num_gpus,
        batch_size=batch_size,
        rate=rate,
        seed=seed,
        curve=(),
        final=None,
        examples_per_step=float(batch_size),
        noise=noise,
        noise_steps=steps if noise else 0,
    )


def test_means_apart_then_their_ratio():
    # mean tr Σ (200 + 400)/2 = 300 over mean |G|² (0.5 + 1.5)/2 = 1, where the mean of ratios is 333
    found = noise_scale([training(0.5, 200, seed=0), training(1.5, 400, seed=1)], {64: 0.1}, "sgd")
    assert found["value"] == pytest.approx(300)
    assert (found["optimizer"], found["steps"]) == ("sgd", 20)
    assert found["by_batch"] == [{"batch_size": 64, "value": pytest.approx(300)}]


def test_more_workers_are_no_more_trainings():
    # the pair (1, 2) of squares is one training of mean 1.5, beside one of 0.5: mean 1
    trainings = [training(1, 300, num_gpus=1), training(2, 300, num_gpus=2), training(0.5, 300, seed=1)]
    found = noise_scale(trainings, {}, "sgd")
    assert found["value"] == pytest.approx(300)


def test_only_the_best_rate_of_a_batch_size_counts():
    trainings = [training(1, 300), training(1, 900, rate=0.8), training(1, 500, batch_size=128, rate=0.8)]
    found = noise_scale(trainings, {64: 0.1}, "sgd")
    assert found["by_batch"] == [{"batch_size": 64, "value": 300}, {"batch_size": 128, "value": 500}]


def test_negative_estimates_average_out_or_leave_nothing():
    assert noise_scale([training(-0.5, 300, seed=0), training(2.5, 300, seed=1)], {}, "sgd")["value"] == 300
    found = noise_scale([training(-0.5, 300, seed=0), training(0.25, 300, seed=1)], {}, "sgd")
    assert (found["value"], found["low"]) == (None, None)
    assert "not above zero" in found["why"]
    assert found["by_batch"] == [{"batch_size": 64, "value": None}]


def test_one_training_has_no_interval():
    found = noise_scale([training(1, 300)], {}, "adam")
    assert (found["value"], found["low"], found["high"]) == (300, None, None)
    assert "no scatter" in found["why"]


def test_nothing_was_measured():
    for trainings in ([], [training(None, None)]):
        found = noise_scale(trainings, {}, "sgd")
        assert (found["value"], found["steps"], found["by_batch"]) == (None, 0, [])
        assert "has recorded" in found["why"]


def test_where_the_denominator_may_be_zero_it_is_not_identified():
    found = noise_scale([training(-0.5, 300, seed=0), training(2.5, 300, seed=1)], {}, "sgd")
    assert (found["low"], found["high"], found["identified"]) == (None, None, False)
    assert "open whether" in found["why"]
    assert "measure more" in found["why"]
    known = noise_scale([training(1, 300, seed=0), training(1.01, 301, seed=1)], {}, "sgd")
    assert (known["identified"], known["why"]) == (True, None)
