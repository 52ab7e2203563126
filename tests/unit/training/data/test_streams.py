"""Iterable data sets: every rank, every loader process and every resumed training sees the same stream."""

from __future__ import annotations

import itertools
import random
import re
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

from scalestudy.training.config import LoaderConfig, OptimizerConfig
from scalestudy.training.data.readers import StreamReader
from scalestudy.training.data.streams import Passes, Place, Stream
from scalestudy.training.distributed import Worker
from scalestudy.training.loop.exactness import why_inexact
from scalestudy.training.loop.memory_fit import find_max_batch
from scalestudy.training.loop.noise_scale import NoiseScale
from scalestudy.training.loop.train import train
from scalestudy.training.loop.trial import start_trial
from scalestudy.training.own_code import own_place
from scalestudy.training.task import make_task
from tests.support.gloo import GlooPool
from tests.support.training.helpers import (
    ALONE,
    largest_difference,
    refusal,
    run_training,
    same_bits,
    smallest_movement,
    state_of,
)
from tests.support.training.streams import (
    Counting,
    Drawing,
    Sharded,
    SplitByLoader,
    Unread,
)
from tests.support.training.tasks import STREAMS, counted_config, stream_config

CPU = torch.device("cpu")


def stream(dataset: Any, place: Place | None = None, *, endless: bool = True) -> Stream:
    return Stream(Passes(dataset, "the train set"), 4, place, endless=endless)


def bits(examples: list[Any]) -> list[bytes]:
    return [inputs.numpy().tobytes() + bytes([target]) for inputs, target in examples]


def numbers(batch: Any) -> list[tuple[int, int]]:
    """Pass and number of each example of a Counting."""
    return [(int(epoch), int(number)) for epoch, number in batch[0].tolist()]


def reader(dataset: Any, worker: Worker | None = None, *, endless: bool = True, **loader: Any) -> StreamReader:
    """A worker's reader of the data set."""
    worker = worker or Worker(0, 1, CPU)
    passes = Passes(dataset, "the train set")
    return StreamReader("train", passes, None, worker, 4, loader=LoaderConfig(**loader), endless=endless)


# --- one stream -------------------------------------------------------------------------------------------------------


def test_a_stream_is_pass_after_pass_and_tells_each_its_number() -> None:
    read = [(int(epoch), int(number)) for (epoch, number), _ in (each for each in stream(Counting(3)).take(7))]
    assert read == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (2, 0)]


def test_one_for_an_evaluation_ends_with_its_pass() -> None:
    once = stream(Counting(3), endless=False)
    assert (len(once.take(2)), len(once.take(2)), len(once.take(2))) == (2, 1, 0)


def test_passes_differ_in_what_they_draw_and_streams_of_one_seed_do_not() -> None:
    one, other = bits(stream(Drawing(10)).take(30)), bits(stream(Drawing(10)).take(30))
    assert one == other
    assert one[:10] != one[10:20]


@pytest.mark.parametrize(("read", "epoch"), [(0, 0), (1, 0), (9, 0), (10, 0), (11, 1), (25, 2)])
def test_a_stream_goes_on_from_any_place(read: int, epoch: int) -> None:
    """It reads the pass up to there again, and none before it."""
    whole = bits(stream(Drawing(10)).take(40))
    first = stream(Drawing(10))
    first.take(read)
    assert first.place == Place(epoch=epoch, first=10 * epoch)
    again = stream(Drawing(10), first.place)
    again.skip_to(read)
    assert bits(again.take(40 - read)) == whole[read:]


def test_what_was_read_before_does_not_matter() -> None:
    """A trial that was broken off has left the data set of the process in its middle."""
    passes = Passes(Drawing(10), "the train set")
    one = bits(Stream(passes, 4, endless=True).take(7))
    assert bits(Stream(passes, 4, endless=True).take(7)) == one


def test_reading_leaves_the_generators_alone_and_drawing_leaves_the_stream() -> None:
    def drawn(read: Stream | None) -> tuple[list[float], list[bytes]]:
        torch.manual_seed(0), np.random.seed(0), random.seed(0)
        values, parts = [], []
        for _ in range(4):
            parts += bits(read.take(3)) if read else []
            values += [torch.rand(1).item(), np.random.rand(), random.random()]
        return values, parts

    values, parts = drawn(stream(Drawing(10)))
    assert values == drawn(None)[0]
    assert parts == bits(stream(Drawing(10)).take(12))


def test_training_and_evaluation_draw_different_numbers() -> None:
    assert bits(stream(Drawing(10)).take(10)) != bits(stream(Drawing(10), endless=False).take(10))


# --- a rank's shards --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "workers"), [(Counting, 0), (Drawing, 0), (Drawing, 2), (SplitByLoader, 1), (SplitByLoader, 2)]
)
def test_shards_are_slices_of_the_stream_with_every_number_of_loaders(make: Any, workers: int) -> None:
    whole = stream(make(10)).take(30)
    steps = range(1, 5)
    found = list(reader(make(10), workers=workers).shards(2, 3, 6, steps))
    expected = [whole[step * 6 + 2 : step * 6 + 5] for step in steps]
    assert [batch[0].tolist() for batch in found] == [
        [inputs.tolist() for inputs, _ in examples] for examples in expected
    ]


@pytest.mark.parametrize(("make", "workers"), [(Counting, 0), (Drawing, 2)])
def test_the_place_is_that_of_what_was_taken_whatever_was_read_ahead(make: Any, workers: int) -> None:
    first = reader(make(10), workers=workers)
    batches = first.shards(0, 4, 4, range(9))
    taken = [bits(list(zip(*next(batches), strict=True))) for _ in range(4)]
    batches.close()
    assert first.place == Place(epoch=1, first=10)
    second = reader(make(10), workers=workers)
    second.go_on([first.place])
    rest = [bits(list(zip(*batch, strict=True))) for batch in second.shards(0, 4, 4, range(4, 9))]
    whole = [bits(list(zip(*batch, strict=True))) for batch in reader(make(10)).shards(0, 4, 4, range(9))]
    assert taken + rest == whole


def test_a_stream_that_fails_as_a_loader_process_unpickles_it_is_told() -> None:
    reader = StreamReader("train", Passes(Unread(40), "x"), 3, ALONE, 4, loader=LoaderConfig(workers=1), endless=True)
    with pytest.raises(OSError, match=r"^the archive is gone\n") as caught:
        next(reader.shards(0, 8, 8, range(2)))
    assert re.fullmatch(r"streams\.py:\d+, in __setstate__", own_place(caught.value))


def test_an_empty_shard_reads_nothing() -> None:
    dataset = Counting(10)
    empty = reader(dataset)
    dataset.epoch = -1
    assert [len(inputs) for inputs, _ in empty.shards(3, 0, 6, range(3))] == [0, 0, 0]
    assert dataset.epoch == -1, "no pass was begun"


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_part_of_a_test_set_is_the_same_for_any_number_of_ranks(ranks: int) -> None:
    found = [list(reader(Counting(50), Worker(rank, ranks, CPU), endless=False).dealt(4, 5)) for rank in range(ranks)]
    assert sorted(number for batches in found for batch in batches for _, number in numbers(batch)) == list(range(20))


@pytest.mark.parametrize(
    ("count", "ranks", "workers"),
    [*((count, ranks, 0) for count in (1, 7, 24) for ranks in (1, 2, 3)), (7, 2, 2)],
)
def test_a_test_set_is_dealt_out_once(count: int, ranks: int, workers: int) -> None:
    found = [
        list(reader(Counting(count), Worker(rank, ranks, CPU), endless=False, workers=workers).dealt(4))
        for rank in range(ranks)
    ]
    read = [number for batches in found for batch in batches for _, number in numbers(batch)]
    assert sorted(read) == list(range(count))
    assert all(len(batch[0]) <= 4 for batches in found for batch in batches)


# --- data sets that shard themselves ----------------------------------------------------------------------------------


def test_a_set_that_shards_itself_is_asked_for_its_part() -> None:
    parts = [
        [
            number
            for batch in reader(Sharded(8), Worker(rank, 2, CPU)).shards(0, 2, 4, range(3))
            for number in numbers(batch)
        ]
        for rank in range(2)
    ]
    assert parts[0] == [(0, 0), (0, 2), (0, 4), (0, 6), (1, 0), (1, 2)]
    assert parts[1] == [(0, 1), (0, 3), (0, 5), (0, 7), (1, 1), (1, 3)]
    tested = [list(reader(Sharded(8), Worker(rank, 2, CPU), endless=False).dealt(3)) for rank in range(2)]
    read = itertools.chain.from_iterable(numbers(batch) for batches in tested for batch in batches)
    assert sorted(number for _, number in read) == list(range(8))


def test_parts_go_on_with_as_many_ranks_alone() -> None:
    part = reader(Sharded(8), Worker(1, 2, CPU))
    list(part.shards(0, 2, 4, range(1)))
    again = reader(Sharded(8), Worker(1, 2, CPU))
    again.go_on([Place(), part.place])
    assert [numbers(batch) for batch in again.shards(0, 2, 4, range(1, 2))] == [[(0, 5), (0, 7)]]
    with pytest.raises(ValueError, match=r"checkpoint: its 2 workers had parts .* there are 1 workers; resume with 2"):
        reader(Sharded(8)).go_on([Place(), part.place])


def test_a_part_of_the_test_set_may_be_empty() -> None:
    assert list(reader(Sharded(1), Worker(1, 2, CPU), endless=False).dealt(4)) == []


# --- trainings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("world_size", "changes"),
    [
        (2, {}),
        (2, {"shards": (5.0, 1.0), "accumulation": 3}),
        (2, {"shards": (1.0, 0.0)}),
        (4, {"accumulation": 2}),
        (4, {"shards": (3.0, 1.0, 0.0, 2.0), "batch_size": 7}),
        (4, {"batch_size": 3}),
    ],
    ids=["even", "uneven and accumulated", "one empty", "four", "four uneven", "more ranks than examples"],
)
@pytest.mark.parametrize("kind", ["drawing", "texts"])
def test_many_workers_train_as_one(ranks: GlooPool, kind: str, world_size: int, changes: dict[str, Any]) -> None:
    """Batches span passes; the test set is a stream too, and its metrics are those of all workers' sums."""
    momentum = {"optimizer": OptimizerConfig(momentum=0.9), "gradient_clip": 0.5}
    batch = {name: value for name, value in changes.items() if name == "batch_size"}
    alone = run_training(ALONE, stream_config(kind, **momentum, **batch))
    assert len(alone["curve"]) == 3
    assert smallest_movement(alone["state"], alone["first_state"]) > 1e-4
    for each in ranks.run(world_size, run_training, stream_config(kind, **momentum, **changes)):
        assert largest_difference(each["state"], alone["state"]) < 1e-11
        assert each["replica_max_diff"] == [0.0, 0.0, 0.0]
        for mine, expected in zip(each["curve"], alone["curve"], strict=True):
            assert mine == pytest.approx(expected, rel=1e-9)


def test_one_worker_trains_as_a_plain_loop() -> None:
    """On the stream's examples in their order, sixteen a step."""
    config = stream_config()
    trial = start_trial(config, ALONE)
    task = make_task(config.task, config.loss, config.metric, None)
    optimizer = torch.optim.SGD(trial.model.parameters(), config.learning_rate)
    examples = Stream(Passes(Drawing(50), ""), config.seed, endless=True)
    for _ in range(11):
        batch = default_collate(examples.take(16))
        total, weight = task.loss(task.forward(trial.model, batch), batch)
        optimizer.zero_grad()
        (total / weight).backward()
        optimizer.step()
    assert largest_difference(run_training(ALONE, config)["state"], state_of(trial.model)) < 1e-11


def test_loader_processes_train_to_the_bit_as_none() -> None:
    """Five steps, and evaluations after the third and the fifth; two processes read each of the four parts."""
    config = stream_config(steps=5, eval_every={"steps": 3})
    alone, other = (run_training(ALONE, config.replace(loader=LoaderConfig(workers=workers))) for workers in (0, 2))
    assert other["curve"] == alone["curve"]
    assert same_bits(other["state"], alone["state"])


def test_pictures_of_bytes_are_scaled_and_augmented_alike_on_every_number_of_workers(ranks: GlooPool) -> None:
    changes = {
        "data": f"{STREAMS}:pictures",
        "model": "mlp",
        "model_args": {"hidden": [8], "image_size": 8},
        "batch_size": 12,
    }
    config = counted_config(**changes, augment="crop_flip", steps=5)
    alone = run_training(ALONE, config)
    for each in ranks.run(2, run_training, config.replace(shards=(2.0, 1.0))):
        assert largest_difference(each["state"], alone["state"]) < 1e-5
    plain = run_training(ALONE, config.replace(augment="none"))
    assert largest_difference(plain["state"], alone["state"]) > 1e-3


def test_parts_of_their_own_train_and_are_tested_once(ranks: GlooPool) -> None:
    """The metrics over a test set in parts are those of one worker on the same parameters, here the first ones."""
    config = counted_config(data_args={"kind": "Sharded"}, learning_rate=1e-12, steps=2, eval_every={"steps": 1})
    alone = run_training(ALONE, config)
    for each in ranks.run(4, run_training, config):
        assert each["curve"][0][1:] == pytest.approx(alone["curve"][0][1:], abs=1e-6)
        assert each["replica_max_diff"] == [0.0, 0.0]


@pytest.mark.parametrize(
    ("world_size", "changes", "found"),
    [
        (1, {"epochs": 3, "steps": None}, "epochs: '.*' is an iterable data set, .*; give train.steps in its place"),
        (1, {"warmup_epochs": 0.5}, "warmup_epochs: .* no known length; give train.warmup_steps in its place"),
        (1, {"data_args": {"count": 0}}, "the train set has no examples; give it examples"),
        (1, {"data_args": {"tests": 0}}, "the test set has no examples; give it examples"),
        (1, {"data_args": {"kind": "Once", "tests_kind": "Counting"}}, "the train set has no examples in pass 2; let"),
        (
            2,
            {"data_args": {"kind": "Sharded", "count": 1}},
            "rank 1's part of the train set, one of 2, has no ex",
        ),
        (
            2,
            {"data_args": {"kind": "FewFiles"}},
            "rank 1's part of the train set, one of 2, can't be had .*; give more",
        ),
        (
            2,
            {"data_args": {"kind": "Sharded"}, "shards": (2.0, 1.0)},
            "shards: .* parts are even; set train.shards",
        ),
        (2, {"data_args": {"kind": "Sharded"}, "shards": "speed"}, "shards: .* parts are even; set train.shards"),
    ],
)
def test_what_a_stream_can_not_be_is_one_line_on_every_rank(
    ranks: GlooPool, world_size: int, changes: dict[str, Any], found: str
) -> None:
    for said in ranks.run(world_size, refusal, counted_config(**changes)):
        assert re.match(f"^(data: )?{found}", said), said
        assert "\n" not in said


def test_a_stream_that_diverges_tells_its_step() -> None:
    result = train(counted_config(learning_rate=1e38, steps=9), ALONE)
    assert re.fullmatch(r"loss or gradient is not finite in step \d of 9", result.message or "")


def test_speeds_memory_order_noise_and_the_largest_batch_are_measured_on_a_stream(ranks: GlooPool) -> None:
    config = counted_config(shards="speed", channels_last="auto", lr_rule="adascale", base_batch_size=3, steps=8)
    first, second = ranks.run(2, run_training, config)
    assert (first["status"], first["curve"]) == ("finished", second["curve"])
    noise = train(counted_config(steps=32, eval_every={"steps": 8}), ALONE, hooks=[NoiseScale()]).records
    assert [record.to_dict()["grad_trace_cov"] is None for record in noise] == [False] * 4
    assert why_inexact(counted_config()) is None
    found = find_max_batch(counted_config(), ALONE, limit_bytes=2**31, most=2)
    assert (found.batch, found.at_least) == (2, True)
