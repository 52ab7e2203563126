"""The options of `python -m scalestudy.training`, made from the keys of `TrainConfig`, and a config as such options.

What the values may be, the config alone says.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from scalestudy.training.config import OF_LOOP, TrainConfig, Workload
from scalestudy.training.section import changed, default_of, kind_of, leaves, summary_of, text_of

OF_STUDIES = ("metric_mode", *OF_LOOP)
"""Keys of `TrainConfig` that say nothing to a single training."""
ALWAYS_TOLD = ("model", "data")
"""Keys that `make_arguments` writes even at their defaults: a reader asks for them first."""


def make_parser(description: str) -> argparse.ArgumentParser:
    """Make the parser of all options. Those of TrainConfig that are not given are left out of what it parses."""
    parser = argparse.ArgumentParser(prog="python -m scalestudy.training", description=description)
    workload, training = parser.add_argument_group("workload"), parser.add_argument_group("training")
    for option, path, field in _options():
        group = workload if path[0] in Workload.model_fields else training
        group.add_argument(option, dest=".".join(path), **_how(option, field))
    add = parser.add_argument_group("place and files").add_argument
    add("--device", default="auto", help="auto, cpu, cuda")
    add(
        "--devices",
        type=lambda text: tuple(name.strip() for name in text.split(",")),
        metavar="LIST",
        help="one device for each worker, such as cuda:0,cpu; starts the workers, unless torchrun has",
    )
    add("--threads", type=int, help="CPU threads of each worker (default: its share of the cores)")
    add("--timeout-seconds", type=float, default=1800.0, help="longest wait for the other workers")
    add("--noise-scale", action="store_true", help="measure the gradient noise scale")
    add("--save-model", type=Path, metavar="FILE", help="file for the trained parameters")
    add("--checkpoints", type=Path, metavar="DIR", help="folder for checkpoints; training continues from the last")
    add(
        "--checkpoint-every-steps",
        type=_whole,
        default=0,
        metavar="STEPS",
        help="steps between checkpoints; 0: only after evaluations (default: 0)",
    )
    return parser


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 0")
    return int(text)


def make_config(options: argparse.Namespace) -> TrainConfig:
    """Make the config from parsed options. Raises ConfigError with all problems."""
    plain: dict[str, Any] = {}
    for _, path, _ in _options():
        *sections, name = path
        if ".".join(path) not in options:
            continue
        section = plain
        for part in sections:
            section = section.setdefault(part, {})
        section[name] = getattr(options, ".".join(path))
    return TrainConfig.from_dict(plain)


def make_arguments(config: TrainConfig) -> list[str]:
    """Return the arguments from which `make_parser` and `make_config` make this config: what is not a default."""
    words, plain = [], changed(TrainConfig, config.to_dict(), always=ALWAYS_TOLD)
    for option, path, field in _options():
        *sections, name = path
        section = functools.reduce(lambda part, key: part.get(key, {}), sections, plain)
        value = section.get(name) if isinstance(section, dict) else section if name == "name" else None
        if value is None:
            continue
        if kind_of(field) is bool:  # a flag
            words.append(option)
            continue
        text = ",".join(map(text_of, value)) if isinstance(value, list) else text_of(value)
        words += [f"{option}={text}"] if text.startswith("-") else [option, text]  # or it would be another option
    return words


def _options() -> Iterator[tuple[str, tuple[str, ...], FieldInfo]]:
    """Yield option, path in the config, and field. `--optimizer` sets `optimizer.name`, `--momentum` its `momentum`,
    `--optimizer-args` its `args`, `--loader-workers` the `workers` of `loader`.
    """
    for path, field in leaves(TrainConfig):
        *above, name = path
        if path[0] in OF_STUDIES:
            continue
        if above and name in ("name", "args", "per", "workers", "prefetch"):  # too general to stand alone
            name = above[-1] if name == "name" else f"{above[-1]}_{name}"
        yield f"--{name.replace('_', '-')}", path, field


def _how(option: str, field: FieldInfo) -> dict[str, Any]:
    """Return the keyword arguments of `add_argument` for a key."""
    kind, default, meaning = kind_of(field), default_of(field), summary_of(field).replace("%", "%%")
    if kind is bool:
        assert default is False, f"{option}: a flag that is on by default needs a form that turns it off"
        return {"action": "store_true", "default": argparse.SUPPRESS, "help": meaning}
    if default is not None:
        meaning += f" (default: {text_of(default)})"
    metavar = "JSON" if kind is dict else option.strip("-").replace("-", "_").upper()
    needed: dict[str, Any] = {"required": True} if field.is_required() else {"default": argparse.SUPPRESS}
    return {"type": functools.partial(_parse, field), **needed, "metavar": metavar, "help": meaning}


def _parse(field: FieldInfo, text: str) -> Any:
    """Return the value that an option's text means. Text that has no such value is kept: the config refuses it."""
    kind = kind_of(field)
    try:
        if kind in (int, float):
            return kind(text)
        if kind is tuple:  # 3,1 or, as remedies write it, [3, 1]
            return [float(item) for item in text.removeprefix("[").removesuffix("]").split(",")]
        return text if kind is str else json.loads(text)
    except ValueError:
        return text


_FROM_TORCHRUN = ("MASTER_", "TORCHELASTIC_", "GROUP_", "LOCAL_", "ROLE_")  # how the names of its variables begin


def has_to_become_many(devices: Sequence[str] | None) -> bool:
    """Whether this process is alone, although several devices are asked for."""
    return devices is not None and len(devices) > 1 and os.environ.get("WORLD_SIZE", "1") == "1"


def become_many(workers: int, arguments: Sequence[str]) -> int:
    """Run the same command in this many processes, as torchrun does on one machine. Return the exit status."""
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
