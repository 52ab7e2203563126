"""Stage 5, training loop: `torchrun … -m scalestudy.training` or `python -m scalestudy.training` trains one config, without Ray.

Rank 0 prints one JSON line an epoch, the record that trials.jsonl has of it, and a last line with the result.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from scalestudy.training.arguments import become_many, has_to_become_many, make_config, make_parser
from scalestudy.training.config import TrainConfig
from scalestudy.training.data import require
from scalestudy.training.device import choose_device
from scalestudy.training.exceptions import is_lost_peer, is_out_of_memory

if TYPE_CHECKING:
    from scalestudy.training.checkpoint.hook import Checkpoints
    from scalestudy.training.distributed import Worker
    from scalestudy.training.loop.hooks import Hook
    from scalestudy.training.loop.train import TrainResult
    from scalestudy.training.records import EpochRecord


BAD_INPUT = 2  # exit codes
LOST_PEER = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Train as the arguments and torchrun's environment say.

    Returns 0 if it finished or diverged, or memory ran out; 2 for bad input; 1 if another worker was lost.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = make_parser(__doc__.partition("\n\n")[2]).parse_args(given)
    try:
        config = make_config(options)
        require(config.data, config.data_root)
        _check_save_model(options.save_model)
        if has_to_become_many(options.devices):
            return become_many(len(options.devices), given)
        result = _train(config, options)
        _finish(result, options)
    except ValueError as error:
        return _refuse(error)
    except Exception as error:
        return _end_early(error)
    return 0


def _check_save_model(path: Path | None) -> None:
    """Raise ValueError if rank 0, which alone writes there, could not: before the training, not after it."""
    if path is None or not _is_first_rank():
        return
    if not path.parent.is_dir():
        raise ValueError(f"save_model: {path}: there is no folder {path.parent}; make it, or choose another file")
    if path.is_dir():
        raise ValueError(f"save_model: {path}: it is a folder; name a file in it")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise ValueError(f"save_model: {path}: folder {path.parent} can't be written; choose another file")


def _train(config: TrainConfig, options: argparse.Namespace) -> TrainResult:
    from scalestudy.training.distributed import start_process_group, stop_process_group
    from scalestudy.training.loop.train import train

    worker, backend = _worker(options)
    start_process_group(worker.rank, worker.world_size, backend=backend, timeout_seconds=options.timeout_seconds)
    try:
        checkpoints = _checkpoints(options)
        hooks = _hooks(options, checkpoints)
        choices = checkpoints.find(config, worker) if checkpoints else None
        return train(config, worker, hooks=hooks, on_epoch=_print_record, choices=choices)
    finally:
        stop_process_group()


def _worker(options: argparse.Namespace) -> tuple[Worker, str]:
    """This process's place, from torchrun's environment (alone without it), and its backend. Raises ValueError."""
    import torch

    from scalestudy.training.distributed import Worker

    device, backend = choose_device(options.device, options.devices)
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    threads = max(1, torch.get_num_threads() // here) if options.threads is None else options.threads
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    return Worker(rank=rank, world_size=world_size, device=device, threads=threads), backend


def _checkpoints(options: argparse.Namespace) -> Checkpoints | None:
    from scalestudy.training.checkpoint.byte_store import LocalByteStore
    from scalestudy.training.checkpoint.hook import Checkpoints

    if options.checkpoints is None:
        return None
    for name in ("checkpoint_every", "checkpoint_every_steps"):
        if getattr(options, name) < 0:
            raise ValueError(f"{name}: {getattr(options, name)} is not valid; choose at least 0")
    return Checkpoints(
        LocalByteStore(options.checkpoints),
        every_epochs=options.checkpoint_every,
        every_steps=options.checkpoint_every_steps,
        say=_warn,
    )


def _hooks(options: argparse.Namespace, checkpoints: Checkpoints | None) -> list[Hook]:
    """Checkpoints come first, so that the others start from what was restored."""
    from scalestudy.training.loop.noise_scale import NoiseScale

    return [*([checkpoints] if checkpoints else []), *([NoiseScale()] if options.noise_scale else [])]


def _finish(result: TrainResult, options: argparse.Namespace) -> None:
    """Rank 0 prints the last line, then saves the model: the result is not lost if that fails."""
    from scalestudy.training.records import noise_scale_of
    from scalestudy.training.state import save_state

    if not _is_first_rank():
        return
    name = options.metric.rpartition(":")[2]
    last = result.records[-1].to_dict()[f"test_{name}"] if result.records else None
    noise = noise_scale_of(record.to_dict() for record in result.records)
    _print_line({"status": result.status, f"last_test_{name}": last, "train_seconds": result.train_seconds,
                 "message": result.message, "noise_scale": noise, "details": dict(result.details)})  # fmt: skip
    if options.save_model is not None:
        save_state(result.model, options.save_model)


def _print_record(record: EpochRecord) -> None:
    _print_line(record.to_dict())


def _print_line(content: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(content, allow_nan=False) + "\n")
    sys.stdout.flush()


def _warn(message: str) -> None:
    sys.stderr.write(f"python -m scalestudy.training: {message}\n")


def _refuse(error: ValueError) -> int:
    """One message: from the rank that met the error, and from the first one if many met the same."""
    from scalestudy.training.distributed import is_first_to_say

    if is_first_to_say(str(error)):
        place = f" on rank {os.environ.get('RANK', '0')}" if os.environ.get("WORLD_SIZE", "1") != "1" else ""
        sys.stderr.write(f"python -m scalestudy.training: error{place}: {error}\n")
    return BAD_INPUT


def _end_early(error: Exception) -> int:
    """Out of memory is a result; a lost worker says itself why; anything else is the user's code, and passes."""
    if is_out_of_memory(error):
        _print_line({"status": "out_of_memory", "message": str(error).partition("\n")[0]})
        return 0
    if os.environ.get("WORLD_SIZE", "1") != "1" and is_lost_peer(error):
        _warn(f"rank {os.environ.get('RANK', '0')} ends: another worker has ended before it")
        return LOST_PEER
    raise error


def _is_first_rank() -> bool:
    return os.environ.get("RANK", "0") == "0"


def _run() -> NoReturn:
    sys.exit(main())


if __name__ == "__main__":
    _run()
