"""Reduction over ranks and the table of metrics."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from typing import Any

import pytest

from scalestudy.training.config import PHASES
from scalestudy.training.records import (
    METRICS,
    EpochFacts,
    EpochRecord,
    RankMeasurements,
    epoch_metrics,
    find_metric,
    noise_scale_of,
    reduce_over_ranks,
    utc_text,
)

FAST = RankMeasurements(
    train_loss_sum=30.0,
    train_weight_sum=20.0,
    samples=20,
    train_seconds=2.0,
    timed_samples=10,
    timed_seconds=0.9,
    data_seconds=0.1,
    forward_backward_seconds=1.0,
    gradient_sync_seconds=0.8,
    optimizer_seconds=0.1,
    eval_seconds=0.5,
    peak_memory_bytes=100,
    replica_difference=0.0,
    sync_bytes=40,
)
SLOW = dataclasses.replace(
    FAST,
    train_loss_sum=10.0,
    train_weight_sum=5.0,
    samples=5,
    timed_samples=2,
    timed_seconds=1.0,
    forward_backward_seconds=1.7,
    gradient_sync_seconds=0.1,
    eval_seconds=0.4,
    peak_memory_bytes=200,
    train_seconds=2.1,
)

FACTS = EpochFacts(
    epoch=3,
    steps=7,
    metric="accuracy",
    test_loss=1.0,
    tested={"accuracy": 0.75},
    learning_rate=0.1,
    measured={},
)


def reduce(*ranks: RankMeasurements) -> Any:
    return reduce_over_ranks([rank.to_row() for rank in ranks], FACTS)


def test_reduction_by_the_tables_rules() -> None:
    record = reduce(FAST, SLOW)
    assert (record.epoch, record.steps, record.samples) == (3, 7, 25)
    assert record.train_loss == 1.6  # (30 + 10) / (20 + 5)
    assert (record.test_loss, record.test_metric, record.more) == (1.0, 0.75, {})
    assert (record.train_seconds, record.eval_seconds) == (2.1, 0.5)
    assert record.samples_per_second == 12.0  # (10 + 2) / max(0.9, 1.0)
    assert (record.peak_memory_bytes, record.sync_bytes, record.learning_rate) == (200, 40, 0.1)
    assert record.phases == {"data": 0.1, "forward_backward": 1.7, "gradient_sync": 0.1, "optimizer": 0.1}
    assert record.straggler_ratio == pytest.approx(1.9 / 1.55)  # data + compute 1.2 and 1.9, their median 1.55


def test_the_train_loss_is_a_mean_over_weights() -> None:
    """A task's weights, such as tokens, in place of examples: (30 + 10) / (60 + 20)."""
    ranks = dataclasses.replace(FAST, train_weight_sum=60.0), dataclasses.replace(SLOW, train_weight_sum=20.0)
    assert reduce(*ranks).train_loss == 0.5


def test_all_metrics_of_a_task_are_in_its_record() -> None:
    facts = dataclasses.replace(FACTS, metric="f1", tested={"recall": 0.5, "f1": 0.25, "precision": math.nan})
    record = reduce_over_ranks([FAST.to_row()], facts)
    assert (record.test_metric, record.more["recall"]) == (0.25, 0.5)
    plain = json.loads(json.dumps(record.to_dict(), allow_nan=False))
    assert (plain["test_f1"], plain["test_recall"], plain["test_precision"]) == (0.25, 0.5, None)
    again = EpochRecord.from_dict(plain)
    assert (again.metric, again.test_metric, again.more["recall"]) == ("f1", 0.25, 0.5)
    assert math.isnan(again.more["precision"])
    assert list(epoch_metrics(record))[:2] == ["test_f1", "test_recall"]


def test_a_rate_in_tokens_stands_beside_the_rate_in_samples() -> None:
    """12 examples a second of 60 / 25 tokens each."""
    record = reduce(dataclasses.replace(FAST, tokens=40.0), dataclasses.replace(SLOW, tokens=20.0))
    assert (record.tokens, record.tokens_per_second) == (60, pytest.approx(28.8))
    assert (record.to_dict()["tokens_per_second"], epoch_metrics(record)["tokens_per_second"]) == (28.8, 28.8)
    assert EpochRecord.from_dict(record.to_dict()) == record
    without = reduce(FAST, SLOW)
    assert without.tokens_per_second is None
    assert "tokens_per_second" not in {**without.to_dict(), **epoch_metrics(without)}


def test_the_slowest_rank_is_held_against_the_median() -> None:
    assert reduce(FAST).straggler_ratio == 1
    assert reduce(FAST, FAST, SLOW).straggler_ratio == pytest.approx(1.9 / 1.2)
    idle = dataclasses.replace(FAST, data_seconds=0.0, forward_backward_seconds=0.0, optimizer_seconds=0.0)
    assert reduce(idle).straggler_ratio is None
    assert reduce(dataclasses.replace(FAST, data_seconds=math.nan)).straggler_ratio is None


def test_order_of_ranks_does_not_matter_for_sums() -> None:
    assert dataclasses.replace(reduce(FAST, SLOW), at="") == dataclasses.replace(reduce(SLOW, FAST), at="")


def test_too_few_timed_steps_of_a_rank_give_no_rate() -> None:
    hasty = dataclasses.replace(SLOW, enough_timed=0.0)
    assert reduce(FAST, SLOW).samples_per_second == 12.0
    assert reduce(FAST, hasty).samples_per_second is None


def test_what_a_loop_does_not_measure_is_null_and_comes_back() -> None:
    record = EpochRecord(
        epoch=1,
        at="2026-01-01T00:00:00.000Z",
        steps=0,
        train_loss=math.nan,
        test_loss=math.nan,
        metric="perplexity",
        test_metric=9.5,
        train_seconds=2.0,
        eval_seconds=math.nan,
        samples=0,
        samples_per_second=None,
        phases={},
        peak_memory_bytes=None,
        replica_max_diff=math.nan,
        sync_bytes=None,
        learning_rate=0.1,
        more={"bleu": 0.25},
    )
    plain = json.loads(json.dumps(record.to_dict(), allow_nan=False))
    unknown = ("peak_memory_bytes", "sync_bytes", "replica_max_diff", "eval_seconds", "train_loss", "test_loss")
    assert [plain[name] for name in unknown] == [None] * len(unknown)
    again = EpochRecord.from_dict(plain)
    assert (again.peak_memory_bytes, again.sync_bytes, again.steps, again.samples) == (None, None, 0, 0)
    assert again.to_dict() == plain
    known = {"test_perplexity": 9.5, "test_bleu": 0.25, "learning_rate": 0.1, "epoch_seconds": 2.0}
    assert epoch_metrics(again) == known


def test_a_loops_own_loss_is_its_test_loss() -> None:
    record = dataclasses.replace(reduce(FAST), metric="loss", test_metric=0.5, test_loss=math.nan)
    assert record.to_dict()["test_loss"] == 0.5
    assert epoch_metrics(record)["test_loss"] == 0.5


@pytest.mark.parametrize("ranks", [(math.nan, 0.0), (0.0, math.nan)])
def test_a_replica_with_nan_is_never_hidden(ranks: tuple[float, float]) -> None:
    record = reduce(*(dataclasses.replace(FAST, replica_difference=value) for value in ranks))
    assert math.isnan(record.replica_max_diff)
    assert record.to_dict()["replica_max_diff"] is None


def test_a_record_is_json_with_the_designs_keys() -> None:
    facts = dataclasses.replace(FACTS, test_loss=math.inf)
    record = reduce_over_ranks([FAST.to_row()], facts)
    plain = json.loads(json.dumps(record.to_dict(), allow_nan=False))
    assert set(plain) == {
        "epoch",
        "at",
        "steps",
        "train_loss",
        "test_loss",
        "metric",
        "test_accuracy",
        "train_seconds",
        "eval_seconds",
        "samples",
        "samples_per_second",
        "phases",
        "grad_sq_norm",
        "grad_trace_cov",
        "peak_memory_bytes",
        "replica_max_diff",
        "sync_bytes",
        "learning_rate",
        "straggler_ratio",
        "cpu_cores",
        "resident_bytes",
        "gpu_share",
    }
    assert plain["test_loss"] is None
    assert tuple(plain["phases"]) == PHASES
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", plain["at"])


def test_epoch_metrics_leave_out_what_was_not_measured() -> None:
    metrics = epoch_metrics(dataclasses.replace(reduce(FAST), test_loss=math.nan))
    assert "test_loss" not in metrics
    assert "grad_sq_norm" not in metrics
    whole = epoch_metrics(reduce(FAST))
    assert (list(whole)[:3], whole["test_loss"]) == (["test_accuracy", "test_loss", "train_loss"], 1.0)
    assert metrics["epoch_seconds"] == 2.0
    assert next(iter(metrics)) == "test_accuracy"
    assert metrics["phase_gradient_sync_seconds"] == 0.8
    assert all(isinstance(value, float) for value in metrics.values())


def test_what_the_workers_take_of_their_machines() -> None:
    """Cores and memory of all together, the GPUs' mean; what one rank has not measured is not there."""
    busy = dataclasses.replace(FAST, cpu_cores=0.75, starved_share=0.1, resident_bytes=3e8, gpu_share=0.5)
    record = reduce(busy, dataclasses.replace(busy, cpu_cores=0.5, starved_share=0.4, gpu_share=1.0))
    assert record.starved_share == 0.4, "a step waits for the worker that has its core the least"
    assert EpochRecord.from_dict(record.to_dict()).starved_share == 0.4
    assert reduce(busy, FAST).starved_share is None
    assert (record.cpu_cores, record.resident_bytes, record.gpu_share) == (1.25, 6e8, 0.75)
    assert epoch_metrics(record)["system/resident_bytes"] == 6e8
    assert not any(name.startswith("system/") for name in epoch_metrics(reduce(busy, FAST)))


def test_every_name_that_is_written_is_in_the_table() -> None:
    record = dataclasses.replace(reduce(FAST), grad_sq_norm=1.0, grad_trace_cov=1.0)
    for name in epoch_metrics(record):
        assert find_metric(name).name == name.removeprefix("system/"), name
    with pytest.raises(KeyError):
        find_metric("system/steps")
    for name in set(record.to_dict()) - {"epoch", "at", "metric", "phases"}:
        find_metric(name)
    for name in ("best_test_accuracy", "wall_seconds", "startup_seconds", "train_seconds"):
        find_metric(name)


def test_the_noise_scale_is_a_ratio_of_means() -> None:
    """(6 + 2) / 2 ÷ (0.5 + 1.5) / 2 = 4; the mean of the ratios would be 6.7. Epochs without it are left out."""
    epochs = [
        {"grad_sq_norm": 0.5, "grad_trace_cov": 6.0},
        {"grad_sq_norm": None, "grad_trace_cov": None},
        {"grad_sq_norm": 1.5, "grad_trace_cov": 2.0},
    ]
    assert noise_scale_of(epochs) == pytest.approx(4.0)
    for no_gradient in (0.0, -0.1):
        assert noise_scale_of([{"grad_sq_norm": no_gradient, "grad_trace_cov": 2.0}]) is None
    assert noise_scale_of([{"train_loss": 1.0}]) is None


def test_a_pattern_stands_for_any_metric_and_target() -> None:
    assert find_metric("time_to_accuracy_0.85").name == "time_to_<metric>_<target>"
    assert find_metric("test_mse").name == "test_<metric>"
    assert find_metric("best_test_mse").name == "best_test_<metric>"


def test_a_record_comes_back_from_its_data_whatever_the_order_of_its_keys() -> None:
    facts = dataclasses.replace(
        FACTS,
        metric="f1",
        tested={"recall": 0.5, "f1": 0.25},
        measured={"grad_sq_norm": 0.5, "grad_trace_cov": None},
    )
    record = reduce_over_ranks([FAST.to_row()], facts)
    plain = json.loads(json.dumps(record.to_dict()))
    for keys in (plain, sorted(plain), sorted(plain, reverse=True)):
        assert EpochRecord.from_dict({key: plain[key] for key in keys}) == record


@pytest.mark.parametrize("name", ["accuracy", "time_to_", "tset_accuracy", ""])
def test_a_name_that_is_not_in_the_table_is_refused(name: str) -> None:
    with pytest.raises(KeyError, match="add it there"):
        find_metric(name)


def test_the_table_is_complete_and_without_doubles() -> None:
    names = [metric.name for metric in METRICS]
    assert len(names) == len(set(names))
    assert all(metric.unit and metric.reduction and metric.meaning for metric in METRICS)


def test_a_moment_is_utc_with_milliseconds() -> None:
    assert utc_text(0) == "1970-01-01T00:00:00.000Z"
    assert utc_text(1_700_000_000.1234) == "2023-11-14T22:13:20.123Z"
