"""A trial's state as plain data, taken on one attempt and put back on another.

The shared part is the same on every rank and written once; a rank's own part holds what only this rank has. At the
same world size a trial goes on to the bit (on a CPU); at another one it goes on from the same parameters, the mean of
what the ranks held apart, and fresh generators.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from scalestudy.training.config import TrainConfig
from scalestudy.training.loop.probe import Picked
from scalestudy.training.loop.trial import Progress, Trial, new_tally
from scalestudy.training.records import EpochRecord
from scalestudy.training.seeding import seed_steps

State = dict[str, Any]


def shared_state(trial: Trial) -> State:
    """What all ranks hold alike."""
    progress = trial.progress
    return {
        "model": dict(trial.model.state_dict()),
        "optimizer": trial.optimizer.state_dict(),
        "rate": trial.rate.state(),
        "records": [record.to_dict() for record in progress.records],
        "picked": {
            "weights": list(trial.picked.weights),
            "channels_last": trial.picked.channels_last,
            "measured": dict(trial.picked.measured),
        },
    }


def own_state(trial: Trial) -> State:
    """What this rank holds apart from the others."""
    tally = trial.progress.tally
    return {
        "generators": generator_states(trial.worker.device),
        "buffers": {name: buffer.clone() for name, buffer in trial.model.named_buffers()},
        "optimizer": None if trial.sync.replicated else trial.optimizer.state_dict(),
        "sync": trial.sync.state(),
        "tally": {
            "loss_sum": tally.loss_sum.item(),
            "samples": tally.samples,
            "steps": tally.steps,
            "seconds": trial.seconds_in_epoch(),
            "sync_bytes": trial.bytes_in_epoch() if tally.steps else 0,
        },
    }


def picked_of(shared: Mapping[str, Any], config: TrainConfig, world_size: int) -> Picked:
    """What the trial had picked by itself; what the config says holds as it says it now."""
    saved = shared["picked"]
    return Picked(
        weights=tuple(saved["weights"]) if config.shards == "speed" else config.weights(world_size),
        channels_last=saved["channels_last"] if config.channels_last == "auto" else config.channels_last,
        measured=dict(saved["measured"]),
    )


def restore(trial: Trial, shared: Mapping[str, Any], parts: Sequence[Mapping[str, Any]], epoch: int) -> None:
    """Put the trial where it was, in `epoch`; `parts` are those of all ranks of the checkpoint, by rank.

    Raises ValueError if the parameters are those of another model.
    """
    same_world = len(parts) == trial.worker.world_size
    mine = parts[trial.worker.rank] if same_world else parts[0]
    if trial.sync.needs_rehearsal and trial.worker.world_size > 1:
        _rehearse(trial)
    _load_model(trial, shared["model"], mine["buffers"])
    _load_optimizer(trial, shared["optimizer"], [part["optimizer"] for part in parts])
    trial.rate.load_state(shared["rate"])
    trial.sync.load_state([part["sync"] for part in parts])
    records = [EpochRecord.from_dict(record, trial.metric.name) for record in shared["records"]]
    tallies = [part["tally"] for part in parts]
    trial.progress = Progress(_tally(trial, tallies), epoch, records, (epoch, tallies[0]["steps"]))
    if same_world:
        set_generator_states(mine["generators"], trial.worker.device)
    else:
        seed_steps(trial.config.seed, trial.worker.rank, epoch)


def _tally(trial: Trial, tallies: Sequence[Mapping[str, Any]]) -> Any:
    """This rank's own, or, at another world size, the sum of all on rank 0."""
    worker, tally = trial.worker, new_tally(trial.worker)
    same_world = len(tallies) == worker.world_size
    mine = [tallies[worker.rank]] if same_world else list(tallies) if worker.rank == 0 else []
    tally.loss_sum += sum(each["loss_sum"] for each in mine)
    tally.samples = sum(each["samples"] for each in mine)
    tally.steps = tallies[0]["steps"]
    tally.seconds_before = max(each["seconds"] for each in tallies)
    tally.bytes_before = mine[0]["sync_bytes"] if same_world else max(each["sync_bytes"] for each in tallies)
    return tally


def _rehearse(trial: Trial) -> None:
    """One backward on the training's first batch, its gradients thrown away.

    DistributedDataParallel puts its buckets into the order of its first backward; an uninterrupted training has had
    that, and the sums of four ranks round otherwise in other buckets.
    """
    inputs, targets = next(iter(trial.shards(epoch=1)))
    trial.sync.module(inputs, targets).backward()
    trial.optimizer.zero_grad(set_to_none=True)


def _load_model(trial: Trial, state: Mapping[str, Any], buffers: Mapping[str, torch.Tensor]) -> None:
    try:
        trial.model.load_state_dict(state)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"checkpoint: it is of another model ({reason}); resume with the model that wrote it, or give "
                         "an empty folder") from None  # fmt: skip
    with torch.no_grad():
        for name, buffer in trial.model.named_buffers():  # those that a state_dict leaves out as well
            buffer.copy_(buffers[name])


def _load_optimizer(trial: Trial, shared: Mapping[str, Any], own: Sequence[Mapping[str, Any] | None]) -> None:
    """The shared state, this rank's own, or the mean over the ranks of a checkpoint of another world size."""
    apart = [state for state in own if state is not None]
    if not apart:
        trial.optimizer.load_state_dict(dict(shared))
    elif len(apart) == trial.worker.world_size:
        trial.optimizer.load_state_dict(dict(apart[trial.worker.rank]))
    else:
        trial.optimizer.load_state_dict(_mean(apart))


def _mean(states: Sequence[Any]) -> Any:
    """One state like all of them, with the mean of each floating-point tensor."""
    first = states[0]
    if isinstance(first, torch.Tensor) and first.is_floating_point():
        return torch.stack(list(states)).mean(dim=0)
    if isinstance(first, Mapping):
        return {key: _mean([state[key] for state in states]) for key in first}
    if isinstance(first, list):
        return [_mean(values) for values in zip(*states, strict=True)]
    return first


def generator_states(device: torch.device) -> State:
    """Python's, NumPy's and PyTorch's global generators, the device's included, as data for `pack`."""
    name, words, position, has_gauss, gauss = np.random.get_state(legacy=True)
    version, internal, gauss_next = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        "numpy": [str(name), torch.from_numpy(np.asarray(words, dtype=np.int64)), int(position), int(has_gauss),
                  float(gauss)],
        "python": [version, torch.tensor(internal, dtype=torch.int64), gauss_next],
    }  # fmt: skip


def set_generator_states(states: Mapping[str, Any], device: torch.device) -> None:
    """Put the generators where `generator_states` found them."""
    torch.set_rng_state(states["torch"])
    if device.type == "cuda" and states["cuda"] is not None:
        torch.cuda.set_rng_state(states["cuda"], device)
    name, words, *rest = states["numpy"]
    np.random.set_state((name, words.numpy().astype(np.uint32), *rest))
    version, internal, gauss_next = states["python"]
    random.setstate((version, tuple(internal.tolist()), gauss_next))
