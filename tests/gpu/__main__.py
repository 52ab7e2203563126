"""`make gpu`: proofs and figures for a machine with one GPU. It needs PyTorch, NumPy and pydantic; it installs nothing.

Parts run one after another, each in a process of its own with its own time limit. Each writes its result to
OUT/<part>.json before the next begins; what it prints is in OUT/<part>.log, and the page with all of it in OUT/gpu.md.
On a CPU every part runs in a small size, or says what it lacks.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from scalestudy.training.exceptions import InputError
from tests.gpu.parts import PARTS, TOTAL_SECONDS, Part
from tests.gpu.report import BAD, PartResult, Settings, figures_table, page, parts_table
from tests.gpu.runner import ROOT, environment, run_parts

OLDEST_PYTHON = (3, 11)
OLDEST_TORCH = (2, 11)
PROBE_SECONDS = 120.0  # a first import of torch from a cold disk takes long
BAD_INPUT = 2


def main(arguments: Sequence[str]) -> int:
    """Run the parts that the arguments name. Returns 0; 1 if a part failed; 2 if nothing could be run."""
    options = _parser().parse_args(arguments)
    started = time.monotonic()
    try:
        parts = chosen_parts(options.part)
        check_installed()
        root = data_root(options.data)
        machine = probe()
        device = device_of(options.device, machine)
        options.out.mkdir(parents=True, exist_ok=True)
    except (InputError, OSError) as error:
        sys.stderr.write(f"make gpu: {error}\n")
        return BAD_INPUT
    settings = Settings(device=device, small=options.small or device == "cpu", data_root=root)
    _write_json(options.out / "machine.json", machine)
    size = ", small sizes" if settings.small else ""
    print(f"{machine['gpu'] or machine['cpu']}, PyTorch {machine['torch']}, on {settings.device}{size}", flush=True)
    if settings.device == "cpu" and machine["gpu"] is None:
        print(f"no GPU: {machine['why_no_gpu']}", flush=True)
    print(f"results: {options.out}\n", flush=True)

    def say(result: PartResult) -> None:
        print(f"{result.part:<16} {result.status:<10} {result.seconds:6.1f} s  {result.first_problem}", flush=True)

    results = run_parts(parts, settings, options.out, deadline=started + options.total_seconds, say=say)
    text = page(machine, settings, results)
    (options.out / "gpu.md").write_text(text, encoding="utf-8")
    print(f"\n{parts_table(results)}\n\n{figures_table(results)}".rstrip())
    seconds = time.monotonic() - started
    bad = [result.part for result in results if result.status in BAD]
    print(f"\n{seconds:.0f} s; {'not well: ' + ', '.join(bad) if bad else 'no part failed'}; {options.out / 'gpu.md'}")
    return 1 if bad else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__)
    parser.add_argument("--data", type=Path, help="folder that has FashionMNIST/raw; without it, the package's digits")
    parser.add_argument("--part", default="", help=f"names of parts, of {', '.join(PARTS)}; by default all")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "gpu", help="folder of the results")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--small", action="store_true", help="small sizes on a GPU too")
    parser.add_argument("--total-seconds", type=float, default=TOTAL_SECONDS, help="no part begins later")
    return parser


def chosen_parts(names: str) -> dict[str, Part]:
    """The named parts, in the suite's order; all without a name. Raises InputError for an unknown one."""
    wanted = names.replace(",", " ").split()
    unknown = [name for name in wanted if name not in PARTS]
    if unknown:
        raise InputError(f"PART: there is no part {', '.join(unknown)}", f"choose of {', '.join(PARTS)}")
    return {name: part for name, part in PARTS.items() if not wanted or name in wanted}


def check_installed() -> None:
    """Raise InputError if this Python can't run the parts."""
    if sys.version_info < OLDEST_PYTHON:
        found, oldest = (".".join(map(str, version[:2])) for version in (sys.version_info, OLDEST_PYTHON))
        raise InputError(f"PYTHON: {sys.executable} is Python {found}", f"give one from {oldest} on")
    for name in ("torch", "numpy"):
        if importlib.util.find_spec(name) is None:
            raise InputError(f"PYTHON: {sys.executable} has no {name}", "give a Python that has it, as PYTHON=…")
    if importlib.util.find_spec("pydantic") is None:
        same = ".".join(map(str, sys.version_info[:2]))
        remedy = f"put a folder on PYTHONPATH that `pip install --target DIR pydantic` made with Python {same}"
        raise InputError(f"PYTHON: {sys.executable} has no pydantic", remedy)
    version = importlib.metadata.version("torch")
    if tuple(map(int, version.split("+")[0].split(".")[:2])) < OLDEST_TORCH:
        oldest_torch = ".".join(map(str, OLDEST_TORCH))
        raise InputError(
            f"PYTHON: {sys.executable} has PyTorch {version}", f"give one that has {oldest_torch} or newer"
        )


def probe() -> dict[str, Any]:
    """What the machine is, by a process that ends before the first part. Raises InputError if it fails."""
    command = [sys.executable, "-m", "tests.gpu.machine"]
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=PROBE_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise InputError(f"PYTHON: in {PROBE_SECONDS:g} s PyTorch did not say what devices there are") from None
    if done.returncode:
        raise InputError(f"PYTHON: {sys.executable} can't use torch: {done.stderr.strip().splitlines()[-1]}")
    facts: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return facts


def data_root(folder: Path | None) -> str | None:
    """Where the parts read Fashion-MNIST; None: nowhere. Raises InputError for a folder without it."""
    if folder is None:
        return None
    from scalestudy.training.data import DataError, require  # NumPy, which was looked for before

    root = folder.expanduser().absolute()
    try:
        require("fashion_mnist", root)
    except DataError as error:
        raise InputError(f"DATA: {error.what}", "give the folder that has FashionMNIST/raw") from None
    return str(root)


def device_of(wanted: str, machine: dict[str, Any]) -> Literal["cpu", "cuda"]:
    """Raises InputError for a GPU that is not there."""
    if wanted == "cuda" and not machine["gpu"]:
        raise InputError(f"device: no GPU can be used ({machine['why_no_gpu']})", "leave out --device cuda")
    return "cpu" if wanted == "cpu" or not machine["gpu"] else "cuda"


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that the part in progress ends too
    sys.exit(main(sys.argv[1:]))
