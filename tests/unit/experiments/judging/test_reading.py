"""A run of others, read by the columns that were taken."""

import math
from dataclasses import replace

import pytest

from scalestudy.experiments.judging.reading import read_runs, settings_apart
from tests.support.runs_of_others import USUAL, curve, run, taken


def read(recorded, *columns, given=()):
    """The runs, and why others are left out."""
    found, questions = taken(recorded, *columns, given=given)
    assert questions == []
    runs, left_out = read_runs(recorded, found)
    return runs, [each.why for each in left_out]


def test_a_run_has_what_its_columns_say():
    values = {**USUAL, "momentum": 0.9, "hostname": "one", "gpu": "A100", "state": "finished"}
    [found], _ = read([run(values, curve(0.5, 0.9), started=100.0, stopped=130.0)])
    assert (found.num_gpus, found.batch_size, found.learning_rate, found.seed) == (2, 64, 0.1, 0)
    assert (found.machine, found.accelerator, found.ended, found.started, found.seconds) == (
        *("one", "A100", "finished"),
        *(100.0, 30.0),
    )
    assert found.settings == {"momentum": 0.9}
    assert [(each.value, each.seconds, each.steps, each.epochs) for each in found.evaluations] == [
        (0.5, 5.0, 10, None),
        (0.9, 10.0, 20, None),
    ]
    assert not found.result_alone


def test_runs_of_one_name_are_named_by_their_places():
    recorded = [run(history=curve(0.5, 0.6)), run({**USUAL, "seed": 1}, curve(0.5, 0.6), "b")]
    assert [each.name for each in read(recorded)[0]] == ["a", "b"]
    same = [replace(each, name="sweep") for each in recorded]
    assert [each.name for each in read([*same, run(history=curve(0.5, 0.9), name="c")])[0]] == [
        *("runs.csv, a", "runs.csv, b", "c")
    ]


def test_the_batch_of_a_device_is_multiplied():
    values = {"nproc_per_node": 4, "num_nodes": 2, "per_device_batch_size": 8, "grad_accum": 3, "lr": 0.1}
    [found], _ = read([run(values, curve(0.5, 0.6))])
    assert (found.num_gpus, found.batch_size) == (8, 192)


def test_updates_follow_from_examples_and_from_epochs_of_a_known_set():
    by_samples = [
        {"samples_seen": 640 * place, "epoch": place, "train_time": 5 * place, "val_acc": 0.5} for place in (1, 2)
    ]
    by_epochs = [{"epoch": 1, "train_time": 5, "val_acc": 0.5}, {"epoch": 2, "train_time": 9, "val_acc": 0.6}]
    [found], _ = read([run(history=by_samples)])
    assert found.evaluations[0].steps == 10
    [found], _ = read([run(history=by_epochs)], given=["train_samples=6400"])
    assert [(each.steps, each.epochs) for each in found.evaluations] == [(100, 1), (200, 2)]


@pytest.mark.parametrize("started", [None, 95.0])
def test_a_time_of_day_counts_from_the_start(started):
    history = [{"global_step": 10 * place, "timestamp": 1e9 + 5 * place, "val_acc": 0.5} for place in (1, 2, 3)]
    [found], _ = read([run(history=history, started=started and 1e9 - 2)])
    # where no start is named, the first ten updates took as long as the others
    late = 0 if started is None else 2
    assert [each.seconds for each in found.evaluations] == [5 + late, 10 + late, 15 + late]


def test_seconds_of_periods_are_summed():
    history = [{"global_step": 10 * place, "epoch_time": 5.0, "val_acc": 0.5} for place in (1, 2, 3)]
    history.insert(1, {"epoch_time": 1.0})
    [found], _ = read([run(history=history)], given=["evaluation=included"])
    assert [each.seconds for each in found.evaluations] == [5.0, 11.0, 16.0]


def test_a_result_alone_has_its_time_or_that_from_start_to_end():
    alone = {**USUAL, "val_acc": 0.9}
    [found], _ = read([run({**alone, "train_time": 50})], given=["stop=end"])
    assert (found.result_alone, [each.seconds for each in found.evaluations]) == (True, [50])
    [found], _ = read([run(USUAL, curve(0.9))], given=["stop=end"])
    assert (found.result_alone, [each.seconds for each in found.evaluations]) == (True, [5])
    [found], _ = read([run(alone, started=100.0, stopped=160.0)], given=["stop=end"])
    assert [each.seconds for each in found.evaluations] == [60.0]


def test_an_evaluation_before_the_training_is_none():
    history = [{"global_step": 0, "train_time": 0.0, "val_acc": 0.1}, *curve(0.5, 0.6)]
    [found], _ = read([run(history=history)])
    assert [each.value for each in found.evaluations] == [0.5, 0.6]


def test_a_metric_that_is_no_number_any_more_stays():
    [found], _ = read([run(history=curve(0.5, math.nan))])
    assert [math.isnan(each.value) for each in found.evaluations] == [False, True]


@pytest.mark.parametrize(
    ("values", "history", "why"),
    [
        ({"num_gpus": "two"}, curve(0.5), "num_gpus: two: is no whole number above 0"),
        ({"num_gpus": None}, curve(0.5), "it has no num_gpus, or several"),
        ({"global_batch_size": 64.5}, curve(0.5), "global_batch_size: 64.5: is no whole number above 0"),
        ({"global_batch_size": 1}, curve(0.5), "its batch of 1 is smaller than its 2 workers"),
        ({"lr": 0}, curve(0.5), "lr: 0: is no number above 0"),
        ({"lr": math.inf}, curve(0.5), "lr: inf: is no number above 0"),
        ({}, [{"global_step": 1, "train_time": 1.0}], "it has no val_acc that is a number"),
        ({}, [{"global_step": 1, "val_acc": 0.5}], "no evaluation has a time after the run's start"),
    ],
)
def test_a_run_that_lacks_something_is_left_out(values, history, why):
    good = run(history=curve(0.5, 0.6))
    runs, left_out = read([good, run({**USUAL, **values}, history, "b")])
    assert ([each.name for each in runs], left_out) == (["a"], [why])


@pytest.mark.parametrize(
    ("word", "ended"),
    [("finished", "finished"), ("crashed", "failed"), ("Killed", "cut"), ("running", "running"), ("ok", "finished")],
)
def test_the_word_for_the_end(word, ended):
    [found], _ = read([run({**USUAL, "State": word}, curve(0.5, 0.6))])
    assert found.ended == ended


def test_seeds_that_are_words_get_numbers():
    runs, _ = read([run({**USUAL, "seed": word}, curve(0.5, 0.6), word) for word in ("x", "y", "x")])
    assert [each.seed for each in runs] == [0, 1, 0]


def apart(*settings, columns=()):
    """Which settings part the runs, of two runs each."""
    recorded = [
        run({**USUAL, "seed": seed, **each}, curve(0.5, 0.6 + seed / 100), f"{place} {seed}")
        for place, each in enumerate(settings)
        for seed in (0, 1)
    ]
    found, _ = taken(recorded, *columns)
    return settings_apart(read_runs(recorded, found)[0], found)


def test_runs_of_a_cell_are_compared_apart_by_a_setting_that_they_share():
    assert apart({"optimizer": "sgd"}, {"optimizer": "adam"}) == (["optimizer"], [])
    assert apart({"optimizer": "sgd"}, {"optimizer": "sgd"}) == ([], [])
    # it follows from the batch size: laws go over it
    assert apart({"warmup": 5}, {"warmup": 10, "global_batch_size": 128}) == ([], ["warmup"])
    # a result, and the user's word
    assert apart({"best_epoch": 5}, {"best_epoch": 6}) == ([], [])
    assert apart({"best_epoch": 5}, {"best_epoch": 6}, columns=["setting=best_epoch"]) == (["best_epoch"], [])
    assert apart({"optimizer": "sgd"}, {"optimizer": "adam"}, columns=["ignored=optimizer"]) == ([], [])
