"""Ray Train's trainer, without parts that slow each start of a group's workers and serve no study."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, ClassVar

from ray.train.v2._internal.callbacks.datasets import DatasetsCallback
from ray.train.v2._internal.callbacks.metrics import WorkerMetricsCallback
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
from ray.train.v2._internal.constants import get_env_vars_to_propagate
from ray.train.v2._internal.execution.controller import TrainController
from ray.train.v2._internal.execution.worker_group import WorkerGroup
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from ray.train.v2.api.result import Result

UNUSED = (DatasetsCallback, PlacementGroupCleanerCallback, WorkerMetricsCallback)
"""The first two start a process each. One distributes Ray's data sets: a trial reads its data without them. The other
gives a dead controller's room back and asks Ray's dashboard every second for that: the pool does so itself. The third
times `ray.train.report`, which nobody calls; each worker imports its modules for a quarter of a second."""
FOR_THE_CONTROLLER = {
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S",
    "RAY_WARN_BLOCKING_GET_INSIDE_ASYNC",
}
"""Variables that Ray Train also gives the workers, which never read them. A process with extra variables is started by
another one that imports Ray as well, and can't be one that Ray has started in advance."""


class GroupWorkers(WorkerGroup):
    """Ray's worker group, without the variables that are `FOR_THE_CONTROLLER`."""

    @staticmethod
    def _get_worker_runtime_env(custom_runtime_env: Any) -> dict[str, Any]:
        runtime_env = dict(WorkerGroup._get_worker_runtime_env(custom_runtime_env))
        variables = runtime_env["env_vars"]
        return {**runtime_env, "env_vars": {name: variables[name] for name in variables.keys() - FOR_THE_CONTROLLER}}


class GroupTrainController(TrainController):
    """Ray's controller, with `GroupWorkers`."""

    worker_group_cls = GroupWorkers

    def __init__(self, variables: Mapping[str, str], **arguments: Any) -> None:
        """Set the variables for this process alone. If Ray set them, its workers and helpers would inherit them."""
        os.environ.update(variables)
        super().__init__(**arguments)


class GroupTrainer(DataParallelTrainer):
    """Ray's trainer, without what is `unused`, and with a `GroupTrainController`."""

    variables: ClassVar[Mapping[str, str]] = {}
    """Variables of the controller, beside those of this process that Ray Train hands on."""

    @property
    def unused(self) -> tuple[type, ...]:
        """Ray's callbacks that this trainer leaves out."""
        return UNUSED

    def _create_default_callbacks(self) -> list[Any]:
        return [each for each in super()._create_default_callbacks() if not isinstance(each, self.unused)]

    def _initialize_and_run_controller(self, **arguments: Any) -> Result:
        """Run the controller as Ray does, but for a handler of Ctrl-C: `fit` runs in a thread of the study's driver."""
        import ray

        here = {"ray.io/node-id": ray.get_runtime_context().get_node_id()}
        variables = {"RAY_WARN_BLOCKING_GET_INSIDE_ASYNC": "0", **get_env_vars_to_propagate(), **self.variables}
        controller = ray.remote(num_cpus=0, label_selector=here)(GroupTrainController).remote(variables, **arguments)
        ray.get(controller.run.remote())
        result: Result = ray.get(controller.get_result.remote())
        return result
