"""Options of `python -m scalestudy.training`, made from config."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalestudy.training.config import (
    AUGMENTATIONS,
    LR_RULES,
    OPTIMIZERS,
    PRECISIONS,
    SCHEDULES,
    OptimizerConfig,
    TrainConfig,
)
from scalestudy.training.registry import DATASETS, GRADIENT_SYNCS, LOSSES, METRICS, MODELS

if TYPE_CHECKING:
    pass


PATH = "or package.module:callable"


def make_parser(description: str) -> argparse.ArgumentParser:
    """All options, with TrainConfig's defaults."""
    parser = argparse.ArgumentParser(prog="python -m scalestudy.training", description=description)
    _add_workload(parser.add_argument_group("workload"))
    _add_training(parser.add_argument_group("training"))
    _add_synchronisation(parser.add_argument_group("workers"))
    _add_place(parser.add_argument_group("place and files"))
    return parser


def make_config(options: argparse.Namespace) -> TrainConfig:
    """The checked config. Raises ValueError."""
    names = (
        "model", "model_args", "data", "data_args", "data_root", "loss", "metric", "batch_size", "learning_rate",
        "epochs", "seed", "lr_rule", "base_batch_size", "warmup_epochs", "schedule", "gradient_clip", "precision",
        "channels_last", "compile", "accumulation", "augment", "gradient_sync", "powersgd_rank", "local_steps",
        "sync_batch_norm", "shards", "warm_up_steps", "max_steps",
    )  # fmt: skip
    optimizer = OptimizerConfig(name=options.optimizer, momentum=options.momentum, weight_decay=options.weight_decay)
    return TrainConfig(optimizer=optimizer, **{name: getattr(options, name) for name in names})


def _add_workload(group: Any) -> None:
    add = group.add_argument
    add("--model", required=True, help=f"{', '.join(MODELS)}, torchvision:name {PATH}")
    add("--model-args", type=_mapping, default={}, metavar="JSON", help='such as \'{"init": "xavier"}\'')
    add("--data", required=True, help=f"{', '.join(DATASETS)} {PATH}")
    add("--data-args", type=_mapping, default={}, metavar="JSON", help="keywords of the data set's callable")
    add("--data-root", metavar="DIR", help="folder of data sets (default: SCALESTUDY_DATA, else the user's cache)")
    add("--loss", default="cross_entropy", help=f"{', '.join(LOSSES)} {PATH}")
    add("--metric", default="accuracy", help=f"{', '.join(METRICS)} {PATH}")


def _add_training(group: Any) -> None:
    add = group.add_argument
    add("--batch-size", type=int, required=True, help="global: examples a step over all workers together")
    add("--learning-rate", type=float, required=True)
    add("--epochs", type=int, default=1)
    add("--seed", type=int, default=0)
    add("--optimizer", default="sgd", help=", ".join(OPTIMIZERS))
    add("--momentum", type=float, default=0.0)
    add("--weight-decay", type=float, default=0.0)
    add("--lr-rule", default="none", help=f"{', '.join(LR_RULES)}: how the rate follows the batch size")
    add("--base-batch-size", type=int, default=256, help="where the rule leaves the rate as it is")
    add("--warmup-epochs", type=float, default=0.0, help="epochs over which the rate rises")
    add("--schedule", default="constant", help=", ".join(SCHEDULES))
    add("--gradient-clip", type=float, help="largest L2 norm of the gradient (default: not clipped)")
    add("--precision", default="fp32", help=", ".join(PRECISIONS))
    add("--channels-last", type=_switch, default=False, metavar="false|true|auto", help="memory order of images")
    add("--compile", action="store_true", help="run the model through torch.compile")
    add("--accumulation", type=int, default=1, help="micro-batches a step")
    add("--augment", default="none", help=", ".join(AUGMENTATIONS))


def _add_synchronisation(group: Any) -> None:
    add = group.add_argument
    add("--gradient-sync", default="ddp", help=f"{', '.join(GRADIENT_SYNCS)} {PATH}")
    add("--powersgd-rank", type=int, help="of powersgd (default: 2)")
    add("--local-steps", type=int, help="of local_sgd: steps between two averages (default: 8)")
    add("--sync-batch-norm", action="store_true", help="batch normalisation over the global batch")
    add("--shards", type=_shards, default="even", help="even, speed, or a weight a worker such as 0.7,0.3")


def _add_place(group: Any) -> None:
    add = group.add_argument
    add("--device", default="auto", help="auto, cpu, cuda")
    add(
        "--devices",
        type=_devices,
        metavar="LIST",
        help="a device a worker, such as cuda:0,cpu: so many workers, started here if torchrun started one alone",
    )
    add("--threads", type=int, help="threads a worker on the CPU (default: its share of the cores)")
    add("--timeout-seconds", type=float, default=1800.0, help="longest wait for the other workers")
    add("--warm-up-steps", type=int, default=5, help="first steps that samples_per_second leaves out")
    add("--max-steps", type=int, help="end after so many steps, and never evaluate: to time steps (default: don't)")
    add("--noise-scale", action="store_true", help="measure the gradient noise scale")
    add("--save-model", type=Path, metavar="FILE", help="write the trained parameters there")
    add("--checkpoints", type=Path, metavar="DIR", help="write checkpoints there, and go on from the last one")
    add("--checkpoint-every", type=int, default=1, metavar="EPOCHS", help="epochs between checkpoints")
    add("--checkpoint-every-steps", type=int, default=0, metavar="STEPS", help="steps between them (0: none)")


def _mapping(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f'{text!r} is not a JSON object; write it like {{"init": "xavier"}}')
    return value


def _shards(text: str) -> Any:
    if text in ("even", "speed"):
        return text
    try:
        return tuple(float(weight) for weight in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither 'even' nor 'speed' nor numbers with commas between"
        ) from None


def _switch(text: str) -> bool | str:
    choices: dict[str, bool | str] = {"false": False, "true": True, "auto": "auto"}
    if text not in choices:
        raise argparse.ArgumentTypeError(f"{text!r} is not known; choose one of {', '.join(choices)}")
    return choices[text]


def _devices(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(","))


_FROM_TORCHRUN = ("MASTER_", "TORCHELASTIC_", "GROUP_", "LOCAL_", "ROLE_")  # what names of its variables begin with


def has_to_become_many(devices: Sequence[str] | None) -> bool:
    """Whether this process is alone and several devices are asked for."""
    return devices is not None and len(devices) > 1 and os.environ.get("WORLD_SIZE", "1") == "1"


def become_many(workers: int, arguments: Sequence[str]) -> int:
    """Run the same command in so many processes, as torchrun does on one machine; the exit status of what failed."""
    import logging
    import uuid

    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # the workers say what is wrong
    for name in [key for key in os.environ if key.startswith(_FROM_TORCHRUN) or key in ("RANK", "WORLD_SIZE")]:
        del os.environ[name]
    settings = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=workers,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
    )
    try:
        elastic_launch(settings, sys.executable)("-m", "scalestudy.training", *arguments)
    except ChildFailedError as error:
        return max(failure.exitcode if failure.exitcode > 0 else 1 for failure in error.failures.values())
    return 0
