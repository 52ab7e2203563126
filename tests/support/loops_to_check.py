"""Ray Train loops, and functions of data sets, as users might name them. None is ever called."""

import functools
import threading

import ray.train
from ray.train import get_dataset_shard

LOCK = threading.Lock()


def plain(config):
    pass


def with_default(config, verbose=False):
    pass


def any_arguments(*arguments, **keywords):
    pass


def takes_nothing():
    pass


def takes_two(config, model):
    pass


def keyword_only(*, config):
    pass


async def coroutine(config):
    pass


def generator(config):
    yield config


class AClass:
    def __init__(self, config):
        pass


class Loop:
    def __init__(self, held=None):
        self.held = held

    def __call__(self, config):
        ray.train.get_dataset_shard("valid")


not_callable = {"config": 1}
part = functools.partial(takes_two, model="lenet")
locked = functools.partial(any_arguments, LOCK)
instance = Loop()
locked_instance = Loop(LOCK)


def asks(config):
    return get_dataset_shard("train")


def asks_for_the_usual(config):
    return ray.train.get_dataset_shard()


def asks_by_keyword(config):
    return ray.train.get_dataset_shard(dataset_name="valid")


def asks_for_what_config_says(config):
    return ray.train.get_dataset_shard(config["name"])


def _helper():
    return [_inner() for _ in range(2)]


def _inner():
    return ray.train.get_dataset_shard("train")


def asks_through_a_helper(config):
    return _helper()


part_that_asks = functools.partial(asks)


def data():
    pass


def data_of(name):
    pass
