"""What the scripts of this folder share: their two options, and how they print a table."""

import argparse
import os
from collections.abc import Sequence
from typing import NamedTuple

import torch


class Options(NamedTuple):
    """How a script was called."""

    device: torch.device
    quick: bool  # small sizes, whose figures mean little


def begin(text: str) -> Options:
    """Read the options, print the script's question and the machine. `text`: the script's docstring."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    best = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=["cpu", "cuda"], default=best, help="default: cuda where there is one")
    parser.add_argument("--quick", action="store_true", help="small sizes, to try it; the figures mean little")
    given = parser.parse_args()
    if given.device == "cuda" and best == "cpu":
        parser.error("--device: there is no CUDA device here; choose cpu")
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else PyTorch's profiler prints lines about itself
    options = Options(torch.device(given.device), given.quick)
    name = torch.cuda.get_device_name(options.device) if options.device.type == "cuda" else "CPU"
    sizes = ", small sizes (--quick): do not quote the figures" if options.quick else ""
    print(text.partition("\n")[0])
    print(f"on {name}, {os.cpu_count()} cores, {torch.get_num_threads()} threads, torch {torch.__version__}{sizes}")
    return options


def show(title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table; numbers with four digits, columns two blanks apart."""
    cells = [[f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    print(f"\n{title}")
    for row in cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def milliseconds(seconds: float) -> float:
    """Return the time in milliseconds."""
    return 1e3 * seconds
