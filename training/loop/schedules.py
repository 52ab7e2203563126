"""The schedules of a learning rate: the built-in ones, PyTorch's, and a function of the user's.

A schedule is a function of the steps since the warm-up, or of the epochs, and gives a rate. So every rate is known
before the training, and one that resumes goes on with the rates that it would have had.
"""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from scalestudy.training.config import ScheduleConfig, is_number
from scalestudy.training.exceptions import InputError
from scalestudy.training.registry import NO_SCHEDULES, SCHEDULES, TORCH_SCHEDULERS, check_call, resolve_field

Schedule = Callable[[float, int], float]
"""(steps since the warm-up, steps after it) -> rate. What it counts may also be epochs."""

ONE_CYCLE_RISE = 0.3  # share of the steps in which the rate rises; like the next two, PyTorch's default
ONE_CYCLE_START = 25.0  # peak / first rate
ONE_CYCLE_END = 1e4  # first / last rate
FORMS = "write factor(progress), a share of the training from 0 to 1, or factor(step, steps); its own arguments after"


def constant(step: float, steps: float) -> float:
    """Return 1."""
    return 1.0


def linear(step: float, steps: float, floor: float = 0.0) -> float:
    """Follow a straight line: 1 at step 0, the floor from `steps` on."""
    return floor + (1 - floor) * (1 - min(step / steps, 1.0))


def cosine(step: float, steps: float, floor: float = 0.0) -> float:
    """Follow half a cosine wave: 1 at step 0, the floor from `steps` on."""
    return floor + (1 - floor) * (1 + math.cos(math.pi * min(step / steps, 1.0))) / 2


def one_cycle(step: float, steps: float) -> float:
    """Follow cosine waves from 1/25 of the peak up to 1, then down to 1/250,000.

    Smith and Topin 2018 (arXiv 1708.07120), in the form of torch.optim.lr_scheduler.OneCycleLR with its defaults:
    the peak is reached at 0.3 · steps - 1, the end at steps - 1. The momentum stays as it is.
    """
    first, last = 1 / ONE_CYCLE_START, 1 / (ONE_CYCLE_START * ONE_CYCLE_END)
    end = steps - 1
    peak = ONE_CYCLE_RISE * steps - 1
    if step <= peak:
        return 1 + (first - 1) * cosine(step, peak)
    return last + (1 - last) * cosine(step - peak, end - peak)


def make_schedule(config: ScheduleConfig, peak: float) -> Schedule:
    """Make the schedule of that name, which begins at or falls from `peak`.

    Raises InputError for what can't be called as a schedule is.
    """
    found = resolve_field("schedule", config.name, {**SCHEDULES, **TORCH_SCHEDULERS})
    if config.name in SCHEDULES:
        return lambda step, steps: peak * found(step, steps, **config.args)
    if isinstance(found, type) and issubclass(found, LRScheduler):
        return TorchSchedule(found, config, peak)
    return _own(found, config, peak)


class TorchSchedule:
    """One of PyTorch's schedulers, on an optimizer that updates nothing.

    It is never saved: at an earlier step it starts anew, and it reaches a later one by as many steps, which gives the
    rates of an uninterrupted training to the bit.
    """

    _optimizer: torch.optim.Optimizer
    _scheduler: LRScheduler
    _step: int  # at which the scheduler is

    def __init__(self, kind: type[LRScheduler], config: ScheduleConfig, peak: float) -> None:
        """Make the scheduler. Raises InputError for one that asks for a metric, or does not take the arguments."""
        self._kind, self._config, self._peak = kind, config, peak
        if issubclass(kind, ReduceLROnPlateau) or _needed(kind.step):
            why, remedy = NO_SCHEDULES[ReduceLROnPlateau.__name__]
            raise InputError(f"schedule: {config.name!r} {why}", remedy)
        if kind.__name__ in NO_SCHEDULES and kind.__module__ == LRScheduler.__module__:
            why, remedy = NO_SCHEDULES[kind.__name__]
            raise InputError(f"schedule: {config.name!r} {why}", remedy)
        self._start()

    def __call__(self, step: float, steps: int) -> float:
        """Return the rate of a step, counted from 0."""
        if step < self._step:
            self._start()
        try:
            for _ in range(self._step, int(step)):
                self._scheduler.step()
        except ValueError as error:  # OneCycleLR has an end
            name = self._config.name
            raise InputError(f"schedule: {name!r}: {error}", f"correct schedule.args: it has {steps} steps") from error
        self._step = int(step)
        return _rate(self._optimizer.param_groups[0]["lr"], self._config.name, step)

    def _start(self) -> None:
        self._step = 0
        self._optimizer = torch.optim.Adagrad([torch.zeros(())], lr=self._peak)  # it has no momentum to change
        arguments = self._config.args
        check_call(self._kind, f"schedule.args: {self._config.name!r}", self._optimizer, **arguments)
        try:
            self._scheduler = self._kind(self._optimizer, **arguments)
        except (TypeError, ValueError, KeyError) as error:
            raise InputError(
                f"schedule: {self._config.name!r} does not take schedule.args {dict(arguments)} "
                f"({type(error).__name__}: {error})",
                "correct them; the rate alone can be scheduled, not the momentum",
            ) from error
        self._optimizer.step()  # or PyTorch warns that it comes after the scheduler's


def _own(function: Callable[..., Any], config: ScheduleConfig, peak: float) -> Schedule:
    """Return the schedule of a user's function, by the names of its first parameters."""
    what = f"schedule: {config.name!r}"
    try:
        names = [*inspect.signature(function).parameters]
    except (TypeError, ValueError):
        raise InputError(f"{what} has no signature", FORMS) from None
    if names[:1] == ["progress"] and names[1:2] != ["steps"]:
        check_call(function, f"schedule.args: {config.name!r}", 0.0, **config.args)

        def of_progress(step: float, steps: int) -> float:
            return peak * _rate(function(step / steps, **config.args), config.name, step)

        return of_progress
    if names[:2] == ["step", "steps"]:
        check_call(function, f"schedule.args: {config.name!r}", 0, 1, **config.args)

        def of_steps(step: float, steps: int) -> float:
            return peak * _rate(function(min(int(step), steps - 1), steps, **config.args), config.name, step)

        return of_steps
    raise InputError(f"{what} takes ({', '.join(names)}), which is no form of a schedule", FORMS)


def _needed(function: Callable[..., Any]) -> list[str]:
    """Return the parameters that a method has to be called with."""
    _, *parameters = inspect.signature(function).parameters.values()
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [each.name for each in parameters if each.default is each.empty and each.kind not in kinds]


def _rate(value: Any, name: str, step: float) -> float:
    """Return what a schedule gave as a float. Raises InputError for what is no rate, or no share of one."""
    number = value
    if hasattr(value, "item"):  # of NumPy or PyTorch
        with contextlib.suppress(ValueError, RuntimeError):
            number = value.item()
    if not is_number(number) or number < 0:
        shown = repr(value) if isinstance(value, int | float | str) else f"a {type(value).__name__}"
        raise InputError(f"schedule: {name!r} gave {shown[:80]} at step {step:g}", "return a finite number, 0 or above")
    return float(number)
