"""How far a user's loop is: its reports as epoch records, and the checkpoint from which another attempt goes on.

A report with the study's metric is an epoch; its time is that since the one before. An attempt that goes on from a
checkpoint counts from the epoch that the checkpoint belongs to, so the pool passes over what it repeats. One that
begins anew counts from the first.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from scalestudy.orchestration.groups.events import LoopCheckpoint, LoopReport
from scalestudy.training.config import TrainConfig
from scalestudy.training.records import EpochRecord, utc_now

LOSS, TRAIN_LOSS = "loss", "train_loss"
"""Names there of the mean loss over the test set, and over the examples trained on."""


def wanted_keys(config: TrainConfig) -> dict[str, str]:
    """Return what a loop's reports call the study's metric and the others, by the study's names."""
    return {config.metric: config.metric, **config.metrics}


@dataclass
class LoopProgress:
    """One attempt of a user's loop."""

    config: TrainConfig
    past: Sequence[EpochRecord] = ()  # the trial's records so far, in order
    checkpoint: LoopCheckpoint | None = None  # the last one, of this attempt or an earlier one
    keys: set[str] = field(default_factory=set)  # that reports of this attempt had
    _epoch: int | None = None  # the last one; None: there was no report yet
    _from: float = 0.0  # seconds of this attempt when its last epoch ended
    _seen: float = 0.0  # examples by then, as the loop counts them
    _waiting: list[LoopReport] = field(default_factory=list)  # since then

    def take(self, report: LoopReport) -> EpochRecord | None:
        """Take a report; return the record of the epoch that it ends. None: it does not have the study's metric."""
        if self._epoch is None:
            self._begin(report)
        self.keys.update(report.keys)
        self._waiting.append(report)
        untrained = report.seen == 0 and self._seen == 0  # an evaluation before the first step
        record = self._record(report) if self.config.metric in report.values and not untrained else None
        if report.checkpoint is not None:
            self.checkpoint = LoopCheckpoint(
                address=report.checkpoint,
                epoch=self._epoch or 0,
                seconds=max(report.seconds - self._from, 0.0),
                steps=sum(each.steps for each in self._waiting),
                samples=math.fsum(each.samples for each in self._waiting),
            )
        return record

    def _begin(self, report: LoopReport) -> None:
        start = self.checkpoint if report.resumed else None
        self._epoch = start.epoch if start else 0
        self._from = -start.seconds if start else 0.0
        if start and start.steps:
            self._waiting = [LoopReport(seconds=0.0, keys=(), values={}, steps=start.steps, samples=start.samples)]
        before = math.fsum(record.samples for record in self.past if record.epoch <= self._epoch)
        self._seen = before if report.seen is not None and report.seen > before else 0.0

    def _record(self, report: LoopReport) -> EpochRecord:
        """Return the record of the reports that wait, of which this is the last."""
        counted, self._waiting = self._waiting, []
        self._epoch = (self._epoch or 0) + 1
        seconds, self._from = report.seconds - self._from, report.seconds
        samples = math.fsum(each.samples for each in counted)
        if report.seen is not None:
            samples, self._seen = report.seen - self._seen, report.seen
        steps = sum(each.steps for each in counted) or math.ceil(max(samples, 0.0) / self.config.batch_size)
        timed = math.fsum(each.timed_seconds for each in counted)
        values = dict(report.values)
        return EpochRecord(
            epoch=self._epoch,
            at=utc_now(),
            steps=steps,
            metric=self.config.metric,
            test_metric=values.pop(self.config.metric),
            train_loss=values.pop(TRAIN_LOSS, math.nan),
            test_loss=values.pop(LOSS, math.nan),
            train_seconds=seconds,
            eval_seconds=math.nan,
            samples=max(int(samples), 0),
            samples_per_second=math.fsum(each.timed_samples for each in counted) / timed if timed else None,
            phases={},
            peak_memory_bytes=None,
            replica_max_diff=math.nan,
            sync_bytes=None,
            learning_rate=self.config.learning_rate,
            more=values,
        )


def no_metric(config: TrainConfig, keys: Collection[str]) -> str:
    """Return the message for a loop that has ended, on every rank, without a report of the study's metric."""
    key = wanted_keys(config)[config.metric]
    if not keys:
        return f"{config.loop} has ended without a report; call ray.train.report with {key!r}, on every rank"
    told = ", ".join(sorted(keys))
    return f"no report of {config.loop} has {key!r}: they have {told}; name one of them in workload.metrics"
