"""Stage 5, training loop: a trial's data set on the worker's device, kept for the next trial that asks for the same."""

from __future__ import annotations

import json

import torch

from training.config import TrainConfig
from training.data import DataError, Splits
from training.registry import DATASETS, call_with, resolve

_last_used: dict[tuple[str, ...], Splits] = {}  # at most one entry: a worker's trials mostly share one data set


def load_splits(config: TrainConfig, device: torch.device) -> Splits:
    """The config's data set on the device; the one that was used last is not loaded again.

    Raises DataError (a ValueError) if files are missing or damaged, an argument is unknown, or a user's callable
    returns something else.
    """
    key = _key(config, device)
    if key not in _last_used:
        _last_used.clear()  # before loading: never hold two
        _last_used[key] = _load(config).to(device)
    return _last_used[key]


def _key(config: TrainConfig, device: torch.device) -> tuple[str, ...]:
    arguments = json.dumps(dict(config.data_args), sort_keys=True, default=repr)
    return config.data, arguments, str(config.data_root), str(device)


def _load(config: TrainConfig) -> Splits:
    loader = resolve(config.data, DATASETS)
    splits = call_with(loader, f"data {config.data!r}", config.data_root, **config.data_args)
    if not isinstance(splits, Splits):
        raise DataError(f"data: {config.data!r} gave a {type(splits).__name__}; return training.data.Splits")
    return splits
