"""The options of `python -m scalestudy.training`, made from the keys of `TrainConfig`, and a config as such options."""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from scalestudy.training.config import (
    EPOCHS,
    LARGEST,
    UNITS,
    CheckpointKnobs,
    Key,
    Knobs,
    TrainConfig,
    TrainKnobs,
    keys,
    knob,
    text_of,
)
from scalestudy.training.contradictions import value_of


def make_parser(description: str) -> argparse.ArgumentParser:
    """Makes the parser of all options, with the defaults of TrainConfig."""
    parser = argparse.ArgumentParser(prog="python -m scalestudy.training", description=description)
    trained = {key.name for key in keys(TrainKnobs)}
    workload, training = parser.add_argument_group("workload"), parser.add_argument_group("training")
    for option, path, key in _options(TrainConfig):
        group = training if path[0] in trained else workload
        how = _how(option, key)
        group.add_argument(option, dest=".".join(path), **(how | {"default": None} if key.name == "epochs" else how))
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
    for option, _, key in _options(CheckpointIntervals):
        add(option, **_how(option, key))
    return parser


@dataclass(frozen=True, kw_only=True)
class CheckpointIntervals(CheckpointKnobs):
    """When checkpoints are written. Raises KnobError with field, value and remedy."""

    checkpoint_every_steps: int = knob(0, "steps between checkpoints; 0: only after epochs", least=0, most=LARGEST)

    @classmethod
    def of(cls, options: argparse.Namespace) -> Self:
        """Those that the parsed options say."""
        return cls(**{key.name: getattr(options, key.name) for key in keys(cls)})


def make_config(options: argparse.Namespace) -> TrainConfig:
    """Makes the config from parsed options. Raises KnobError with all problems."""
    plain: dict[str, Any] = {}
    for _, path, _ in _options(TrainConfig):
        *sections, name = path
        section = plain
        for part in sections:
            section = section.setdefault(part, {})
        section[name] = getattr(options, ".".join(path))
    if all(plain[unit] is None for unit in UNITS):
        plain["epochs"] = EPOCHS
    return TrainConfig.from_dict(plain)


def make_arguments(config: TrainConfig) -> list[str]:
    """The arguments from which `make_parser` and `make_config` make this config: what differs from the defaults."""
    words = []
    for option, path, key in _options(TrainConfig):
        value = value_of(config, ".".join(path))
        if value is None or (value == key.default and not key.is_required):
            continue
        if key.kind is bool:  # a flag; one that is on by default has a form that turns it off
            words.append(option if value else f"--no-{option.removeprefix('--')}")
            continue
        if isinstance(value, tuple):
            text = ",".join(map(text_of, value))
        else:
            text = json.dumps(dict(value)) if isinstance(value, Mapping) else text_of(value)
        words += [f"{option}={text}"] if text.startswith("-") else [option, text]  # or it would be another option
    return words


def _options(config: type[Knobs], above: tuple[str, ...] = ()) -> Iterator[tuple[str, tuple[str, ...], Key]]:
    """Yields option, path in the config, and key. `--optimizer` sets `optimizer.name`, `--momentum` its `momentum`,
    `--optimizer-args` its `args`, `--loader-workers` the `workers` of `loader`.
    """
    for key in keys(config):
        path = (*above, key.name)
        if key.is_section:
            yield from _options(key.kind, path)
        else:
            name = key.name
            if above and name in ("name", "args", "workers", "prefetch"):  # too general to stand alone
                name = above[-1] if name == "name" else f"{above[-1]}_{name}"
            yield f"--{name.replace('_', '-')}", path, key


def _how(option: str, key: Key) -> dict[str, Any]:
    """The keyword arguments of `add_argument` for a key."""
    choices = [text_of(choice) for choice in key.choices]
    if key.knob.names is not None:
        choices = [*key.knob.names, "package.module:callable"]
    default = key.knob.unset if key.default is None else text_of(key.default)
    meaning = f"{', '.join(choices)}: {key.knob.help}" if choices else key.knob.help
    if key.kind is bool:
        action = argparse.BooleanOptionalAction if key.default else "store_true"
        return {"action": action, "default": key.default, "help": meaning}
    if not key.is_required and default:
        meaning += f" (default: {default})"
    parse: Callable[[str], Any] = key.kind if key.kind in (int, float) else functools.partial(_parse, key)
    metavar = "JSON" if key.kind is Mapping else option.strip("-").replace("-", "_").upper()
    return {"type": parse, "required": key.is_required, "default": key.default, "metavar": metavar, "help": meaning}


def _parse(key: Key, text: str) -> Any:
    """The value of an option that is no number. Keeps text that is no choice: the config refuses it."""
    by_text = {text_of(choice): choice for choice in key.choices}
    if text in by_text or key.kind not in (tuple, Mapping):
        return by_text.get(text, text)
    if key.kind is tuple:
        try:
            return tuple(float(weight) for weight in text.split(","))
        except ValueError:
            listed = ", ".join(map(repr, key.choices))
            either = f"neither one of {listed} nor" if listed else "not"
            message = f"{text!r} is {either} numbers separated by commas"
            raise argparse.ArgumentTypeError(message) from None
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f'{text!r} is not a JSON object; write it like {{"name": 1}}')
    return value


_FROM_TORCHRUN = ("MASTER_", "TORCHELASTIC_", "GROUP_", "LOCAL_", "ROLE_")  # how the names of its variables begin


def has_to_become_many(devices: Sequence[str] | None) -> bool:
    """Whether this process is alone, although several devices are asked for."""
    return devices is not None and len(devices) > 1 and os.environ.get("WORLD_SIZE", "1") == "1"


def become_many(workers: int, arguments: Sequence[str]) -> int:
    """Run the same command in this many processes, as torchrun does on one machine. Returns the exit status."""
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
