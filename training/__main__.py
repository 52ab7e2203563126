"""Stage 5, training loop: `torchrun … -m training` or `python -m training` trains one config, without Ray.

Rank 0 prints one JSON line an epoch, the record of DESIGN.md section 5, and a last line with the result.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from training.config import OPTIMIZERS, OptimizerConfig, TrainConfig
from training.data import require
from training.registry import DATASETS, GRADIENT_SYNCS, MODELS

if TYPE_CHECKING:
    from training.distributed import Worker
    from training.loop import TrainResult
    from training.records import EpochRecord

BAD_INPUT = 2  # exit code


def main(arguments: Sequence[str] | None = None) -> int:
    """Train as the arguments and torchrun's environment say; 0 if it finished or diverged, 2 for bad input."""
    options = make_parser().parse_args(arguments)
    try:
        config = make_config(options)
        require(config.data, config.data_root)
        _check_save_model(options.save_model)
        result = _train(config, options)
        _finish(result, options)
    except ValueError as error:
        return _refuse(error)
    return 0


def make_parser() -> argparse.ArgumentParser:
    """All options, with TrainConfig's defaults."""
    parser = argparse.ArgumentParser(prog="python -m training", description=__doc__.partition("\n\n")[2])
    add = parser.add_argument
    add("--model", required=True, help=f"{', '.join(MODELS)} or package.module:callable")
    add("--model-args", type=_mapping, default={}, metavar="JSON", help='such as \'{"init": "xavier"}\'')
    add("--data", required=True, help=f"{', '.join(DATASETS)} or package.module:callable")
    add("--data-args", type=_mapping, default={}, metavar="JSON", help="keywords of the data set's callable")
    add("--data-root", metavar="DIR", help="folder of data sets (default: SCALESTUDY_DATA, else the user's cache)")
    add("--batch-size", type=int, required=True, help="global: examples a step over all workers together")
    add("--learning-rate", type=float, required=True)
    add("--epochs", type=int, default=1)
    add("--seed", type=int, default=0)
    add("--optimizer", default="sgd", help=", ".join(OPTIMIZERS))
    add("--momentum", type=float, default=0.0)
    add("--weight-decay", type=float, default=0.0)
    add("--gradient-sync", default="ddp", help=f"{', '.join(GRADIENT_SYNCS)} or package.module:callable")
    add("--shards", type=_shards, default="even", help="even, or a weight a worker such as 0.7,0.3")
    add("--gradient-clip", type=float, help="largest L2 norm of the gradient (default: not clipped)")
    add("--warm-up-steps", type=int, default=5, help="first steps that samples_per_second leaves out")
    add("--device", default="auto", help="auto, cpu, cuda")
    add("--threads", type=int, help="threads a worker on the CPU (default: PyTorch's own)")
    add("--timeout-seconds", type=float, default=1800.0, help="longest wait for the other workers")
    add("--save-model", type=Path, metavar="FILE", help="write the trained parameters there")
    return parser


def make_config(options: argparse.Namespace) -> TrainConfig:
    """The checked config. Raises ValueError."""
    return TrainConfig(
        model=options.model,
        model_args=options.model_args,
        data=options.data,
        data_args=options.data_args,
        data_root=options.data_root,
        batch_size=options.batch_size,
        learning_rate=options.learning_rate,
        epochs=options.epochs,
        seed=options.seed,
        optimizer=OptimizerConfig(name=options.optimizer, momentum=options.momentum, weight_decay=options.weight_decay),
        gradient_sync=options.gradient_sync,
        shards=options.shards,
        gradient_clip=options.gradient_clip,
        warm_up_steps=options.warm_up_steps,
    )


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
    from training.distributed import start_process_group, stop_process_group  # torch: after the cheap checks
    from training.loop import train

    worker = _worker(options)
    backend = "nccl" if worker.device.type == "cuda" else "gloo"
    start_process_group(worker.rank, worker.world_size, backend=backend, timeout_seconds=options.timeout_seconds)
    try:
        return train(config, worker, on_epoch=_print_record)
    finally:
        stop_process_group()


def _worker(options: argparse.Namespace) -> Worker:
    """This process's place, from torchrun's environment; alone without it. Raises ValueError."""
    import torch

    from training.distributed import Worker

    if options.device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"device: {options.device!r} is not known; choose auto, cpu or cuda")
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cpu")
    if options.device == "cuda" or (options.device == "auto" and torch.cuda.is_available()):
        if local_rank >= torch.cuda.device_count():
            raise ValueError(f"device: no CUDA device {local_rank} among {torch.cuda.device_count()}; start fewer "
                             "workers, or choose --device cpu")  # fmt: skip
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
    return Worker(
        rank=int(os.environ.get("RANK", "0")),
        world_size=int(os.environ.get("WORLD_SIZE", "1")),
        device=device,
        threads=torch.get_num_threads() if options.threads is None else options.threads,
    )


def _finish(result: TrainResult, options: argparse.Namespace) -> None:
    """Rank 0 prints the last line, then saves the model: the result is not lost if that fails."""
    from training.state import save_state

    if not _is_first_rank():
        return
    best = max((record.test_accuracy for record in result.records), default=None)
    _print_line({"status": result.status, "best_test_accuracy": best, "train_seconds": result.train_seconds,
                 "message": result.message})  # fmt: skip
    if options.save_model is not None:
        save_state(result.model, options.save_model)


def _print_record(record: EpochRecord) -> None:
    _print_line(record.to_dict())


def _print_line(content: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(content, allow_nan=False) + "\n")
    sys.stdout.flush()


def _refuse(error: ValueError) -> int:
    """One message: from the rank that met the error, and from the first one if many met the same."""
    from training.distributed import is_first_to_say

    if is_first_to_say(str(error)):
        place = f" on rank {os.environ.get('RANK', '0')}" if os.environ.get("WORLD_SIZE", "1") != "1" else ""
        sys.stderr.write(f"python -m training: error{place}: {error}\n")
    return BAD_INPUT


def _is_first_rank() -> bool:
    return os.environ.get("RANK", "0") == "0"


def _mapping(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f'{text!r} is not a JSON object; write it like {{"init": "xavier"}}')
    return value


def _shards(text: str) -> Any:
    if text == "even":
        return text
    try:
        return tuple(float(weight) for weight in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither 'even' nor numbers with commas between") from None


def _run() -> NoReturn:
    sys.exit(main())


if __name__ == "__main__":
    _run()
