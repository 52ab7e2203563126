"""An exception met while a training is tried, as one line that names the part to blame."""

from __future__ import annotations

from scalestudy.orchestration.base.errors import RequestError, request_error
from scalestudy.orchestration.groups.failures import describe
from scalestudy.training.config import TrainConfig
from scalestudy.training.exceptions import InputError
from scalestudy.training.fault import Part, fault_of


def blamed(error: BaseException, config: TrainConfig, remedy: str) -> RequestError:
    """The exception with the key and the name of the part that raised it, its place and the remedy.

    A mistake that this package has found names its own, and has its own remedy.
    """
    if isinstance(error, InputError):
        return request_error(error, "correct the spec")
    fault = fault_of(error)
    said = " ".join(describe(error).split())
    if fault.place:
        said = f"{said} ({fault.place})"
    return RequestError(f"{fault.part}: {_name(fault.part, config)}: {said}" if fault.part else said, remedy)


def _name(part: Part, config: TrainConfig) -> str:
    """What the config names as that part; of the whole workload, what it was doing."""
    names: dict[Part, str | None] = {
        "workload": "backward",
        "workload.data": config.data,
        "workload.model": config.model,
        "workload.task": config.task,
        "workload.loss": config.loss,
        "workload.metric": config.metric,
        "train.optimizer.name": config.optimizer.name,
        "train.schedule": config.schedule,
    }
    return str(names[part])
