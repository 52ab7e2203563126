"""What a worker says of a training that has ended."""

import math
from types import SimpleNamespace

import pytest

from scalestudy.orchestration.groups.worker import last_post
from scalestudy.training.exceptions import InputError

GIVEN = SimpleNamespace(order=SimpleNamespace(metric_mode="max"))


def result(**details):
    return SimpleNamespace(status="finished", records=[], train_seconds=1.5, message=None, details=details)


def test_the_last_word_has_what_training_chose():
    post = last_post(GIVEN, result(shards=[0.5, 0.5]))
    assert (post.status, post.lost_seconds, post.details) == ("finished", 1.5, {"shards": [0.5, 0.5]})


@pytest.mark.parametrize("value", [math.nan, {1, 2}, object()], ids=["nan", "set", "object"])
def test_a_detail_that_no_journal_can_hold_is_an_error_that_names_it(value):
    with pytest.raises(InputError, match=r"^details: rank: .* can't be written as JSON"):
        last_post(GIVEN, result(shards=[1.0], rank=value))
