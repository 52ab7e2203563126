"""`torchrun … -m scalestudy.training` or `python -m scalestudy.training` trains one config, without Ray.

Rank 0 prints a JSON line for each epoch, its record as in trials.jsonl, and a last line with the result.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalestudy.training.arguments import become_many, has_to_become_many, make_config, make_parser
from scalestudy.training.backend import backend_of, machine, shared_gpu
from scalestudy.training.config import TrainConfig
from scalestudy.training.data import require
from scalestudy.training.exceptions import InputError, is_device_lost, is_lost_peer, is_out_of_memory
from scalestudy.training.process import run

if TYPE_CHECKING:
    from scalestudy.training.distributed import Worker

# exit codes
BAD_INPUT = 2
LOST_PEER = 1
DEVICE_LOST = 1
OUT_OF_MEMORY = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Train as the arguments and the environment of torchrun say.

    Returns 0 if the training finished, diverged or, alone, ran out of memory; 2 for bad input; 1 if another worker or
    this one's GPU was lost; 3 if this one of several workers ran out of memory, so that torchrun ends the others.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = make_parser(__doc__.partition("\n\n")[2]).parse_args(given)
    rank, is_alone = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1") == "1"
    try:
        config = make_config(options)
        require(config.data, config.data_root)
        if options.save_model is not None and rank == "0":
            _check_save_model(options.save_model)
        if has_to_become_many(options.devices):
            return become_many(len(options.devices), given)
        _train(config, options)
    except ValueError as error:
        from scalestudy.training.distributed import is_first_to_say

        if is_first_to_say(str(error)):  # all ranks may meet the same error, but one message is enough
            place = "" if is_alone else f" on rank {rank}"
            sys.stderr.write(f"python -m scalestudy.training: error{place}: {error}\n")
        return BAD_INPUT
    except SystemExit as error:  # of the user's code: its exit status 0 would look like a training's end
        raise RuntimeError(f"SystemExit: {error}") from error
    except Exception as error:
        if is_out_of_memory(error):  # a result, not a failure
            _print_line({"status": "out_of_memory", "message": str(error).partition("\n")[0]})
            return 0 if is_alone else OUT_OF_MEMORY
        if is_device_lost(error):
            _warn(f"rank {rank} ends because its GPU failed: {str(error).partition(chr(10))[0]}")
            return DEVICE_LOST
        if not is_alone and is_lost_peer(error):  # the lost worker says why it ended
            _warn(f"rank {rank} ends because another worker ended first")
            return LOST_PEER
        raise
    return 0


def _check_save_model(path: Path) -> None:
    """Raise InputError if the model could not be written to this file after the training."""
    if not path.parent.is_dir():
        raise InputError(f"save_model: {path}: there is no folder {path.parent}", "make it, or choose another file")
    if path.is_dir():
        raise InputError(f"save_model: {path}: it is a folder", "name a file in it")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise InputError(f"save_model: {path}: folder {path.parent} can't be written", "choose another file")


def _train(config: TrainConfig, options: argparse.Namespace) -> None:
    """Train. Rank 0 prints each epoch, then the result, and saves the model."""
    import torch  # after the cheap checks

    from scalestudy.training.checkpoint.byte_store import LocalByteStore
    from scalestudy.training.checkpoint.hook import Checkpoints
    from scalestudy.training.device import choose_device
    from scalestudy.training.distributed import Worker, stop_process_group
    from scalestudy.training.loop.gpu_watch import GpuWatch
    from scalestudy.training.loop.noise_scale import NoiseScale
    from scalestudy.training.loop.train import train
    from scalestudy.training.records import noise_scale_of
    from scalestudy.training.state import save_state

    device = choose_device(options.device, options.devices)
    workers_here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    threads = max(1, torch.get_num_threads() // workers_here) if options.threads is None else options.threads
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    worker = Worker(rank=rank, world_size=world_size, device=device, threads=threads)
    on_gpus = _join(worker, options)
    try:
        checkpoints = None
        if options.checkpoints is not None:
            checkpoints = Checkpoints(
                LocalByteStore(options.checkpoints),
                every_epochs=config.checkpoint_every,
                every_steps=options.checkpoint_every_steps,
                say=_warn,
            )
        # checkpoints come first, so that the other hooks start from the restored state
        watch = GpuWatch()
        noise = [NoiseScale()] if options.noise_scale else []
        hooks = [*([checkpoints] if checkpoints else []), *noise, *([watch] if on_gpus else [])]
        choices = checkpoints.find(config, worker) if checkpoints else None
        result = train(
            config, worker, hooks=hooks, on_epoch=lambda record: _print_line(record.to_dict()), choices=choices
        )
    except BaseException:
        stop_process_group(abort=True)
        raise
    stop_process_group()
    if rank != 0:
        return
    metric = f"test_{config.metric.rpartition(':')[2]}"
    _print_line(
        {
            "status": result.status,
            f"last_{metric}": result.records[-1].to_dict()[metric] if result.records else None,
            "train_seconds": result.train_seconds,
            "message": result.message,
            "noise_scale": noise_scale_of(record.to_dict() for record in result.records),
            "details": dict(result.details),
            **({"gpus": [state.to_plain() for state in watch.states]} if watch.states else {}),
        }
    )
    if options.save_model is not None:  # after the last line, so that a failure here does not lose the result
        save_state(result.model, options.save_model)


def _join(worker: Worker, options: argparse.Namespace) -> bool:
    """Start the process group: NCCL if no two workers share a GPU and all have one, else gloo.

    Return whether some have GPUs. Workers exchange beforehand which GPU they have, since NCCL refuses two on one.
    Raises InputError for two workers on one GPU, unless `--devices` asks for it.
    """
    from scalestudy.training.device import gpu_of
    from scalestudy.training.distributed import gather_by_store, start_process_group, store_of_environment

    rank, world_size, seconds = worker.rank, worker.world_size, options.timeout_seconds
    on_gpu = worker.device.type == "cuda"
    if world_size == 1:
        start_process_group(rank, world_size, timeout_seconds=seconds)
        return on_gpu
    store = store_of_environment(rank, world_size, seconds)
    mine = sorted(gpu_of(worker.device).names(machine())) if on_gpu else []
    gpus = [json.loads(told) for told in gather_by_store(json.dumps(mine), store, rank, world_size)]
    if options.devices is None and (shared := shared_gpu(gpus)):
        what = f"device: ranks {shared[0]} and {shared[1]} have the same GPU"
        raise InputError(what, "start fewer workers, or name each one's device by --devices, and they share it")
    backend = backend_of(gpus)
    if rank == 0 and any(gpus) and backend == "gloo":
        _warn("gloo sums the gradients, since not every worker has a GPU of its own")
    start_process_group(rank, world_size, store=store, backend=backend, device=worker.device, timeout_seconds=seconds)
    return any(gpus)


def _print_line(content: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(content, allow_nan=False) + "\n")
    sys.stdout.flush()


def _warn(message: str) -> None:
    sys.stderr.write(f"python -m scalestudy.training: {message}\n")


if __name__ == "__main__":
    run(main)
