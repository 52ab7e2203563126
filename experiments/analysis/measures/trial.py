"""A trial and its epochs, as a line of `trials.jsonl` says (docs/concepts.md: Words).

Here alone a line is read: a value that is absent or damaged becomes None, "not measured", and keys that no figure needs
are passed over. A duration, a number of steps or a rate of zero or less was not measured either.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple, Self

from scalestudy.experiments.analysis.measures.parts import finite, positive
from scalestudy.experiments.plan.look import Look
from scalestudy.experiments.plan.plan import WithParams
from scalestudy.training.config import PHASES

Line = Mapping[str, Any]
"""A line of `trials.jsonl`."""
NONE: Mapping[str, Any] = MappingProxyType({})
EPOCHS_WITHOUT_FIRST = 3
"""From this many epochs on, a trial's timings leave out the first, which warms up caches, buffers and threads."""


class Epoch(NamedTuple):
    """What was measured from one evaluation to the next. None: not measured.

    A large study has a million, and a tuple is made several times as fast as a frozen dataclass.
    """

    number: int  # of the evaluation, from 1
    train_seconds: float | None
    steps: float | None  # a whole number
    samples: float | None  # examples of all workers, a whole number
    samples_per_second: float | None  # over all workers: as recorded, else samples over train_seconds
    tokens_per_second: float | None  # as recorded, else the rate in samples times tokens over samples
    phases: Mapping[str, float] | None  # seconds a step of each of PHASES, in the order of a step
    straggler_ratio: float | None
    starved_share: float | None
    peak_memory_bytes: float | None
    grad_sq_norm: float | None
    grad_trace_cov: float | None
    train_loss: float | None  # mean over the examples trained on, each before its update
    learning_rate: float | None  # of the last update
    tested: Mapping[str, float]  # what was measured over the test set, by the name of the record's key

    @classmethod
    def of(cls, record: Line, place: int) -> "Epoch":
        """Read an entry of a line's `epochs`. place: its number, if it does not say."""
        get = record.get
        steps, samples, seconds = positive(get("steps")), positive(get("samples")), positive(get("train_seconds"))
        rate = positive(get("samples_per_second")) or (samples / seconds if samples and seconds else None)
        tokens = positive(get("tokens"))
        return cls(
            int(positive(get("epoch")) or place),
            seconds,
            steps,
            samples,
            rate,
            positive(get("tokens_per_second")) or (rate * tokens / samples if rate and tokens and samples else None),
            _phases(get("phases"), steps),
            positive(get("straggler_ratio")),
            finite(get("starved_share")),
            positive(get("peak_memory_bytes")),
            finite(get("grad_sq_norm")),
            finite(get("grad_trace_cov")),
            finite(get("train_loss")),
            finite(get("learning_rate")),
            {key: value for key in _tested(tuple(record)) if (value := finite(record[key])) is not None},
        )

    def steps_at(self, batch_size: int) -> float | None:
        """Return the steps: as recorded, else from the examples. None if neither is known."""
        if self.steps is not None and self.steps >= 1:
            return self.steps
        return None if self.samples is None else float(math.ceil(self.samples / batch_size))


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What a trial's workers ran on. None: the line does not say, or no worker started."""

    device: str | None = None
    accelerator: str | None = None  # type of the GPUs
    nodes: int = 1
    threads: int | None = None  # of the worker with the most

    @classmethod
    def of(cls, record: Any) -> Self:
        """Read a line's `world`."""
        record = _mapping(record)
        workers = [worker for worker in _list(record.get("workers")) if isinstance(worker, Mapping)]
        threads = [int(count) for worker in workers if (count := positive(worker.get("threads")))]
        device, accelerator = record.get("device"), record.get("accelerator")
        return cls(
            device=str(device) if device else None,
            accelerator=str(accelerator) if accelerator else None,
            nodes=int(positive(record.get("nodes")) or 1),
            threads=max(threads, default=None),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a trial did not finish."""

    kind: str | None = None
    message: str | None = None
    rank: int | None = None  # that failed first

    @classmethod
    def of(cls, record: Any) -> Self:
        """Read a line's `error`."""
        record = _mapping(record)
        kind, message, rank = record.get("kind"), record.get("message"), record.get("rank")
        return cls(
            kind=None if kind is None else str(kind),
            message=None if message is None else str(message),
            rank=rank if isinstance(rank, int) else None,
        )


@dataclass(frozen=True, kw_only=True)
class Trial(WithParams):
    """One trial that has ended."""

    trial_id: str
    kind: str  # training or timing
    status: str
    params: Mapping[str, Any]
    epochs: tuple[Epoch, ...]  # in order, each once
    flags: frozenset[str]
    train_seconds: float  # in training steps: as recorded, else the sum over its epochs; 0 if no step ran
    world: World
    failure: Failure
    details: Mapping[str, Any]  # what training picked by itself
    fingerprint: Mapping[str, tuple[str, ...]]  # of the user's code and data, by what it is of
    span: tuple[float, float] | None  # start and end as POSIX seconds; None: one is missing, or the end comes first
    wall_seconds: float = 0.0  # from its start to its end, start-up and evaluation included
    look: Look | None = None  # why an adaptive search asked for it; None: another search made it
    result_alone: bool = False
    """Whether its one evaluation is its result, as good as confirmed: others made it, and say no more of it."""
    stopped_at: float | None = None
    """Of such a trial: the target at which it ended, if it met it; None: it went on to an end of its own."""
    whole_periods: bool = False
    """Whether its periods are timed whole, with evaluation: a Ray Train loop of the user's reports no other time."""
    without_first: bool = False
    """Whether it was cut and its timings leave out the first epoch, however few epochs it has (`usable`)."""
    on_more_nodes: bool = False
    """Whether its workers were on more nodes than another trial's of its kind (`usable`).

    The network between them slows such a trial, so that it gives no timings.
    """

    @classmethod
    def of(cls, line: Line) -> Self:
        """Read a line. The first record of an epoch wins. One that does not name its epoch has the number of its
        place.
        """
        first: dict[int, Epoch] = {}
        for place, record in enumerate(_list(line.get("epochs")), start=1):
            if isinstance(record, Mapping):
                epoch = Epoch.of(record, place)
                first.setdefault(epoch.number, epoch)
        epochs = tuple(first[number] for number in sorted(first))
        recorded = finite(line.get("train_seconds"))
        if recorded is None or recorded < 0:
            recorded = sum(epoch.train_seconds or 0.0 for epoch in epochs)
        digests, result, look = _mapping(line.get("fingerprint")), line.get("result"), _mapping(line.get("look"))
        return cls(
            trial_id=str(line.get("trial_id")),
            kind=str(line.get("kind") or "training"),
            status=str(line.get("status")),
            params=_mapping(line.get("params")),
            epochs=epochs,
            flags=frozenset(map(str, _list(line.get("flags")))),
            train_seconds=recorded,
            world=World.of(line.get("world")),
            failure=Failure.of(line.get("error")),
            details=_mapping(line.get("details")),
            fingerprint={str(name): tuple(map(str, _list(found))) for name, found in digests.items()},
            span=_span(line),
            wall_seconds=max(finite(line.get("wall_seconds")) or 0.0, recorded),
            look=Look.from_dict(look) if look else None,
            result_alone=isinstance(result, Mapping),
            stopped_at=finite(_mapping(result).get("stopped_at")),
        )

    @property
    def limited(self) -> bool:
        """Whether it was stopped at the limit that an adaptive search set before it began."""
        return self.status == "stopped" and self.look is not None

    @property
    def is_timing(self) -> bool:
        """Whether it is a timing run."""
        return self.kind == "timing"

    @property
    def nodes(self) -> int:
        """On how many nodes its workers were; 1 if the line does not say."""
        return min(self.world.nodes, self.num_gpus)

    def seconds_of(self, epoch: Epoch) -> float | None:
        """Return the seconds of an epoch's steps at the rate after the warm-up; if it is timed whole, all of them.

        None: there is no such rate, or no examples are known.
        """
        if self.whole_periods:
            return epoch.train_seconds
        return epoch.samples / epoch.samples_per_second if epoch.samples and epoch.samples_per_second else None

    @cached_property
    def with_time(self) -> tuple[Epoch, ...]:
        """The epochs that have a time."""
        return tuple(epoch for epoch in self.epochs if epoch.train_seconds)

    @cached_property
    def timed(self) -> tuple[Epoch, ...]:
        """The epochs that timings are taken from: epochs with a time, from the second on if there are enough."""
        if self.on_more_nodes:
            return ()
        if len(self.with_time) >= EPOCHS_WITHOUT_FIRST:
            return self.with_time[1:]
        return tuple(epoch for epoch in self.with_time if not self.without_first or epoch is not self.epochs[0])


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else NONE


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


@lru_cache
def _tested(keys: tuple[str, ...]) -> tuple[str, ...]:
    """Return the keys of what was measured over the test set, of a record with these keys: most have the same."""
    return tuple(key for key in keys if key.startswith("test_"))


def _phases(phases: Any, steps: float | None) -> dict[str, float] | None:
    """Return the seconds a step of each phase, in the order of a step. None if a phase was not measured."""
    if not isinstance(phases, Mapping) or steps is None:
        return None
    found = {}
    for name in PHASES:
        seconds = finite(phases.get(name))
        if seconds is None or seconds < 0:
            return None
        found[name] = seconds / steps
    return found


def _span(line: Line) -> tuple[float, float] | None:
    start, end = posix_seconds(line.get("started_at")), posix_seconds(line.get("ended_at"))
    return None if start is None or end is None or end < start else (start, end)


def posix_seconds(stamp: Any) -> float | None:
    """Return the moment of a record's time stamp; None: it is none."""
    try:
        return datetime.fromisoformat(str(stamp)).timestamp()
    except ValueError:
        return None
