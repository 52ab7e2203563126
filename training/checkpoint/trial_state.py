"""A trial's state as plain data, saved in one attempt and restored in another.

The shared part is equal on every rank and written once. A rank's own part holds what only this rank has. At the same
world size a trial resumes to the bit (on a CPU). At another one it resumes from the same parameters, the mean of what
the ranks held separately, and fresh generators.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from typing import Any

import torch
from torch import nn

from scalestudy.training.config import TrainConfig
from scalestudy.training.exceptions import InputError
from scalestudy.training.loop.probe import Choices
from scalestudy.training.loop.trial import Progress, Tally, Trial, new_tally
from scalestudy.training.records import EpochRecord
from scalestudy.training.seeding import (
    cpu_generators,
    generators_from,
    plain_generators,
    seed_steps,
    set_cpu_generators,
)

State = dict[str, Any]


def shared_state(trial: Trial) -> State:
    """Return the state that is equal on all ranks."""
    progress = trial.progress
    return {
        "model": dict(trial.model.state_dict()),
        "optimizer": trial.optimizer.state_dict(),
        "rate": trial.rate.state(),
        "records": [record.to_dict() for record in progress.records],
        "picked": {  # the format's name for the choices
            "weights": list(trial.choices.weights),
            "channels_last": trial.choices.channels_last,
            "measured": dict(trial.choices.measured),
        },
    }


def own_state(trial: Trial) -> State:
    """Return the state that only this rank has."""
    tally = trial.progress.tally
    return {
        "generators": generator_states(trial.worker.device),
        "buffers": {name: buffer.clone() for name, buffer in trial.model.named_buffers()},
        "optimizer": None if trial.sync.replicated else trial.optimizer.state_dict(),
        "sync": trial.sync.state(),
        "stream": trial.data.place,
        "tally": {
            "loss_sum": tally.loss_sum.item(),
            "weight_sum": float(tally.weight_sum),
            "samples": tally.samples,
            "tokens": float(tally.tokens),
            "steps": tally.steps,
            "seconds": trial.seconds_in_period(),
            "sync_bytes": trial.bytes_in_period() if tally.steps else 0,
        },
    }


def choices_of(shared: Mapping[str, Any], config: TrainConfig, world_size: int) -> Choices:
    """Return the trial's earlier choices, for settings that the config leaves open now."""
    saved = shared["picked"]
    return Choices(
        weights=tuple(saved["weights"]) if config.shards == "speed" else config.weights(world_size),
        channels_last=saved["channels_last"] if config.channels_last == "auto" else config.channels_last,
        measured=dict(saved["measured"]),
    )


def restore(trial: Trial, shared: Mapping[str, Any], parts: Sequence[Mapping[str, Any]], period: int) -> None:
    """Put the trial where it was, in `period`. `parts`: of all ranks of the checkpoint, by rank.

    Raises ValueError if the parameters belong to another model.
    """
    same_world = len(parts) == trial.worker.world_size
    mine = parts[trial.worker.rank] if same_world else parts[0]
    if trial.sync.needs_rehearsal and trial.worker.world_size > 1:
        # DistributedDataParallel orders its buckets by its first backward. An uninterrupted training has had one; in
        # other buckets the sums of four ranks round differently.
        with closing(trial.shards()) as batches:
            loss_sum, _ = trial.sync.module(next(batches))
        loss_sum.backward()
        trial.optimizer.zero_grad(set_to_none=True)
    _put_buffers(trial.model, parts[0]["buffers"], kept=shared["model"])  # rank 0 wrote `shared`, so the shapes fit
    try:
        trial.model.load_state_dict(shared["model"])
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"checkpoint: it is of another model ({reason})",
            "resume with the model that wrote it, or give an empty folder",
        ) from None
    _put_buffers(trial.model, mine["buffers"], kept=shared["model"])  # also those that a state_dict leaves out
    _load_optimizer(trial, shared["optimizer"], [part["optimizer"] for part in parts])
    trial.rate.load_state(shared["rate"])
    trial.sync.load_state([part["sync"] for part in parts])
    records = [EpochRecord.from_dict(record) for record in shared["records"]]
    tallies = [part["tally"] for part in parts]
    trial.progress = Progress(_tally(trial, tallies), period, records)
    trial.progress.began_at = trial.made
    trial.data.go_on([part["stream"] for part in parts])
    if same_world:
        set_generator_states(mine["generators"], trial.worker.device)
    else:
        seed_steps(trial.config.seed, trial.worker.rank, period)


def _put_buffers(model: nn.Module, saved: Mapping[str, torch.Tensor], kept: Collection[str]) -> None:
    """Give the model the saved buffers, by name; it may have others, or other shapes, before it was trained.

    kept: the names in its state_dict; a buffer of another name that is new here stays out of it.
    """
    here = dict(model.named_buffers())
    device = next((each.device for each in (*model.parameters(), *here.values())), None)
    for name, value in saved.items():
        buffer = here.get(name)
        if buffer is not None and (buffer.shape, buffer.dtype) == (value.shape, value.dtype):
            with torch.no_grad():
                buffer.copy_(value)
            continue
        path, _, leaf = name.rpartition(".")
        module = model.get_submodule(path)
        if leaf in module._buffers:
            setattr(module, leaf, value.to(device, copy=True))
        else:
            module.__dict__.pop(leaf, None)  # a plain attribute that stood for it
            module.register_buffer(leaf, value.to(device, copy=True), persistent=name in kept)


def _tally(trial: Trial, tallies: Sequence[Mapping[str, Any]]) -> Tally:
    """Return this rank's own tally; at another world size, the sum of all on rank 0."""
    worker, tally = trial.worker, new_tally(trial.worker)
    same_world = len(tallies) == worker.world_size
    mine = [tallies[worker.rank]] if same_world else list(tallies) if worker.rank == 0 else []
    tally.loss_sum += sum(each["loss_sum"] for each in mine)
    tally.weight_sum = sum(each["weight_sum"] for each in mine)
    tally.samples = sum(each["samples"] for each in mine)
    tally.tokens = sum(each["tokens"] for each in mine)
    tally.steps = tallies[0]["steps"]
    tally.seconds_before = max(each["seconds"] for each in tallies)
    tally.bytes_before = mine[0]["sync_bytes"] if same_world else max(each["sync_bytes"] for each in tallies)
    return tally


def _load_optimizer(trial: Trial, shared: Mapping[str, Any], own: Sequence[Mapping[str, Any] | None]) -> None:
    """Load the shared state, this rank's own, or at another world size the mean over the checkpoint's ranks."""
    apart = [state for state in own if state is not None]
    if not apart:
        trial.optimizer.load_state_dict(dict(shared))
    elif len(apart) == trial.worker.world_size:
        trial.optimizer.load_state_dict(dict(apart[trial.worker.rank]))
    else:
        trial.optimizer.load_state_dict(_mean(apart))
    # Fused optimizers take numbers by their place in memory, so a state must lie there as its parameter does: maybe
    # channels-last. A mean over ranks does not.
    for parameter, state in trial.optimizer.state.items():
        for name, value in state.items():
            is_alike = isinstance(value, torch.Tensor) and value.shape == parameter.shape
            if is_alike and value.stride() != parameter.stride():
                state[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def _mean(states: Sequence[Any]) -> Any:
    """Return one state of the same form, with the mean of each floating-point tensor."""
    first = states[0]
    if isinstance(first, torch.Tensor) and first.is_floating_point():
        return torch.stack(list(states)).mean(dim=0)
    if isinstance(first, Mapping):
        return {key: _mean([state[key] for state in states]) for key in first}
    if isinstance(first, list):
        return [_mean(values) for values in zip(*states, strict=True)]
    return first


def generator_states(device: torch.device) -> State:
    """Return Python's, NumPy's and PyTorch's global generators, the device's included, as data for `pack`."""
    cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    return {**plain_generators(cpu_generators()), "cuda": cuda}


def set_generator_states(states: Mapping[str, Any], device: torch.device) -> None:
    """Restore the generators to what `generator_states` gave."""
    set_cpu_generators(generators_from(states))
    if device.type == "cuda" and states["cuda"] is not None:
        torch.cuda.set_rng_state(states["cuda"], device)
