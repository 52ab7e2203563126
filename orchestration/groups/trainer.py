"""Ray Train's trainer, without two helpers of each group that a study has no use for."""

from __future__ import annotations

from typing import Any

from ray.train.v2._internal.callbacks.datasets import DatasetsCallback
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

HELPERS = (DatasetsCallback, PlacementGroupCleanerCallback)
"""A process each, of some seconds to start. The first shares out Ray's data sets: a trial reads its own. The second
gives a dead controller's room back, for which it asks Ray's dashboard every second: the pool does so itself."""


class GroupTrainer(DataParallelTrainer):
    """As Ray's, but for `HELPERS`."""

    def _create_default_callbacks(self) -> list[Any]:
        return [each for each in super()._create_default_callbacks() if not isinstance(each, HELPERS)]
