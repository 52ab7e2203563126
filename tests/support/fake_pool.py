"""A pool that trains nothing: what a trial's epochs come to stands in its order. For tests of the sweep."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from scalestudy.experiments.plan.plan import TrialPlan
from scalestudy.orchestration.groups.events import (
    Ended,
    EpochDone,
    JournalEvent,
    Retried,
    Running,
    Status,
    TrialError,
)
from scalestudy.orchestration.groups.model import TrialOrder
from scalestudy.orchestration.groups.trial_record import TrialRecord
from scalestudy.training.config import TrainConfig
from scalestudy.training.records import EpochRecord
from tests.support.epochs import epoch_of

NO_ROOM = TrialError(kind="no_room", message="the room is gone")


class FakePool:
    """The actor that the sweep talks to, `GroupPoolActor` to the eye: each trial runs as its order says, at once.

    The curve of a trial's accuracies is in its order's `model_args`, as are the status that it ends with and the number
    of times that it is put off before.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """As if it were new: a process for each test would take half a second."""
        self._orders: dict[str, TrialOrder] = {}
        self.calls: list[tuple[str, str]] = []

    def request(self, order: TrialOrder) -> int:
        self.calls.append(("request", order.trial_id))
        self._orders[order.trial_id] = order
        return 1

    def events(self, trial_id: str, lease: int, after: int) -> list[JournalEvent]:
        records, arguments = self._records(trial_id), self._orders[trial_id].config.model_args
        hits = min(self._asked(trial_id), arguments["put_off"])
        lost: list[JournalEvent] = [Retried(attempt=number + 1, error=NO_ROOM) for number in range(hits)]
        if not self.follows(trial_id, lease):
            return lost[after:]
        told = [EpochDone(record=record) for record in records]
        return [*lost, Running(attempt=hits + 1), *told, ended(records, arguments["status"])][after:]

    def follows(self, trial_id: str, lease: int) -> bool:
        return self._asked(trial_id) > self._orders[trial_id].config.model_args["put_off"]

    def stop(self, trial_id: str, epoch: int) -> Ended:
        self.calls.append(("stop", trial_id))
        return ended([record for record in self._records(trial_id) if record.epoch <= epoch], "stopped")

    def release(self, trial_id: str) -> None:
        self.calls.append(("release", trial_id))

    def told(self) -> list[tuple[str, str]]:
        """Every call so far."""
        return self.calls

    def _asked(self, trial_id: str) -> int:
        return self.calls.count(("request", trial_id))

    def _records(self, trial_id: str) -> list[EpochRecord]:
        curve = self._orders[trial_id].config.model_args["curve"]
        return [epoch_of(number, value) for number, value in enumerate(curve, start=1)]


def ended(records: Sequence[EpochRecord], status: Status) -> Ended:
    """The end of a trial with these epochs."""
    record = TrialRecord(epochs={each.epoch: each for each in records})
    return record.end(status, attempts=1, error=None, at=100.0)


def order_by(
    curve: Callable[[TrialPlan], list[float]],
    status: Status = "finished",
    put_off: Callable[[TrialPlan], int] = lambda trial: 0,
) -> Callable[[TrialPlan], TrialOrder]:
    """An `order_of` for the sweep: a trial's test accuracies by epoch, one second each, as a function of the trial.

    put_off: how often a trial is put off before it trains.
    """

    def order_of(trial: TrialPlan) -> TrialOrder:
        config = TrainConfig(
            model="mlp",
            model_args={"curve": curve(trial), "status": status, "put_off": put_off(trial)},
            data="digits",
            batch_size=32,
            learning_rate=0.1,
            epochs=trial.train["epochs"],
        )
        return TrialOrder(trial_id=trial.trial_id, num_workers=trial.num_gpus, config=config)

    return order_of
