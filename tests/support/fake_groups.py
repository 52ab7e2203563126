"""Worker groups that train nothing: what a trial's epochs come to stands in its order. For tests of the sweep."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from scalestudy.experiments.plan.plan import TrialPlan

LASTING = {"attempts": 1, "train_seconds": 0.0, "wall_seconds": 0.0, "startup_seconds": 0.0, "flags": [], "error": None}


class FakeGroups:
    """The actor that the sweep talks to, `WorkerGroups` to the eye: each trial runs as its order says, at once."""

    def __init__(self) -> None:
        self._orders: dict[str, dict[str, Any]] = {}
        self.calls: list[tuple[str, str]] = []

    def lease(self, order: dict[str, Any]) -> None:
        self.calls.append(("lease", order["trial_id"]))
        self._orders[order["trial_id"]] = order

    def events(self, trial_id: str, after: int) -> list[dict[str, Any]]:
        order = self._orders[trial_id]
        told = [{"type": "epoch", "epoch": epoch} for epoch in order["epochs"]]
        return [{"type": "running", "attempt": 1}, *told, ended(order["epochs"], order["status"])][after:]

    def stop(self, trial_id: str, epoch: int) -> dict[str, Any]:
        self.calls.append(("stop", trial_id))
        return ended([each for each in self._orders[trial_id]["epochs"] if each["epoch"] <= epoch], "stopped")

    def release(self, trial_id: str) -> None:
        self.calls.append(("release", trial_id))

    def told(self) -> list[tuple[str, str]]:
        """Every call so far."""
        return self.calls


def ended(epochs: list[dict[str, Any]], status: str) -> dict[str, Any]:
    """The `ended` event of a trial."""
    return {"type": "ended", "status": status, "epochs": epochs, **LASTING}


def order_by(curve: Callable[[TrialPlan], list[float]], status: str = "finished") -> Callable[[TrialPlan], Any]:
    """An `order_of` for the sweep: a trial's test accuracies by epoch, one second each, as a function of the trial."""

    def order_of(trial: TrialPlan) -> dict[str, Any]:
        epochs = [
            {"epoch": number, "test_accuracy": value, "train_seconds": 1.0}
            for number, value in enumerate(curve(trial), start=1)
        ]
        return {"trial_id": trial.trial_id, "epochs": epochs, "status": status}

    return order_of
