"""Stage 5, training loop: `bench export` – a model as a program that needs no Python source.

torch.export in the place of the book's hybridized network and its exported symbols: LeNet, with the number of examples
left open. Shapes: inputs (N, 1, 28, 28), N from 2, outputs (N, 10).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import Dim, ExportedProgram

from scalestudy.training.chapter.measuring import Cell, Experiment, Table, median_seconds, milliseconds, quiet_compiler
from scalestudy.training.models import build_model
from scalestudy.training.seeding import seed_parameters

QUESTION = "Can the model leave Python as a program, and is it the same one elsewhere?"
ELSEWHERE_SECONDS = 120.0

READER = """
import json, sys, time, torch
torch.set_num_threads(int(sys.argv[4]))
started = time.perf_counter()
program = torch.export.load(sys.argv[1])
loaded = time.perf_counter()
inputs = torch.load(sys.argv[2], weights_only=True)
outputs = [program.module()(each) for each in inputs]
torch.save(outputs, sys.argv[3])
ours = sorted(name for name in sys.modules if name.partition(".")[0] == "scalestudy")
print(json.dumps({"load_seconds": loaded - started, "ours": ours, "threads": torch.get_num_threads()}))
"""
"""Another process: no module of ours, the program's file, the inputs; writes the outputs. As many threads as here: with
another number sums are rounded otherwise."""


@dataclass(frozen=True)
class Elsewhere:
    """What the other process found."""

    outputs: list[torch.Tensor]
    load_seconds: float
    modules: list[str]  # modules of this package that it had loaded
    threads: int


def run(device: torch.device, *, quick: bool = False) -> Experiment:
    """Exports LeNet, prints its graph, saves it, runs it in another process; on a CPU some 10 s."""
    seed_parameters(0)
    model = build_model("lenet", 10, 1, {}).eval().to(device)
    inputs = [_images(count, device) for count in (2, 5, 64)]
    started = time.perf_counter()
    program = export(model, inputs[0])
    export_seconds = time.perf_counter() - started
    with tempfile.TemporaryDirectory(prefix="export-") as folder:
        file = Path(folder) / "lenet.pt2"
        torch.export.save(program, file)
        file_bytes = file.stat().st_size
        elsewhere = run_elsewhere(file, inputs)
    seconds = _call_seconds(model, program, inputs[-1], 3 if quick else 51)
    compared, largest = compare(model, program, inputs, elsewhere.outputs)
    parameter_bytes = sum(each.numel() * each.element_size() for each in model.parameters())
    metrics = {
        **{"export_seconds": export_seconds, "load_seconds": elsewhere.load_seconds, "output_difference": largest},
        **{"file_bytes": float(file_bytes), "parameter_bytes": float(parameter_bytes)},
        **{f"{way}_call_seconds": value for way, value in seconds.items()},
    }
    tables = (graph_table(program), _figures(metrics), compared)
    return Experiment("export", QUESTION, tables, _notes(elsewhere), metrics)


def export(model: nn.Module, example: torch.Tensor) -> ExportedProgram:
    """The model's program for any number of examples: the example's own number (2 or more) is not built in."""
    with quiet_compiler(), torch.no_grad():
        return torch.export.export(model, (example,), dynamic_shapes=({0: Dim("examples", min=2)},))


def graph_table(program: ExportedProgram) -> Table:
    """The symbolic program, an operation a row."""
    rows = tuple(_graph_row(node) for node in program.graph.nodes)
    title = f"The program: {len(rows)} nodes, as torch.export holds it"
    return Table(title, ("name", "kind", "operation", "arguments", "shape"), rows)


def _graph_row(node: Any) -> tuple[Cell, ...]:
    value = node.meta.get("val")
    shape = "(" + ", ".join(map(str, value.shape)) + ")" if isinstance(value, torch.Tensor) else None
    arguments = ", ".join(map(str, node.args)) if node.op != "placeholder" else None
    return (node.name, node.op, str(node.target), arguments, shape)


def run_elsewhere(file: Path, inputs: list[torch.Tensor]) -> Elsewhere:
    """The program's outputs in a process that imports PyTorch alone and gets the files, nothing else of ours.

    Raises RuntimeError, with what it said, if that process fails.
    """
    given, made = file.with_name("inputs.pt"), file.with_name("outputs.pt")
    torch.save(inputs, given)
    command = [sys.executable, "-c", READER, str(file), str(given), str(made), str(torch.get_num_threads())]
    done = subprocess.run(
        command, cwd=file.parent, capture_output=True, text=True, timeout=ELSEWHERE_SECONDS, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"the process that reads the program failed: {done.stderr}")
    said = json.loads(done.stdout)
    return Elsewhere(torch.load(made, weights_only=True), said["load_seconds"], said["ours"], said["threads"])


def compare(
    model: nn.Module, program: ExportedProgram, inputs: list[torch.Tensor], elsewhere: list[torch.Tensor]
) -> tuple[Table, float]:
    """Outputs of the model, of the program here, and of the program elsewhere; the largest difference of all."""
    rows: list[tuple[Cell, ...]] = []
    largest = 0.0
    with torch.no_grad():
        for given, there in zip(inputs, elsewhere, strict=True):
            expected, here = model(given), program.module()(given)
            differences = [(outputs - expected).abs().max().item() for outputs in (here, there)]
            largest = max(largest, *differences)
            rows.append((len(given), *differences, "yes" if torch.equal(there, here) else "no"))
    header = ("examples", "program here: max difference", "program elsewhere: max difference", "same bits as here")
    return Table("Outputs against the eager model's", header, tuple(rows)), largest


def _call_seconds(model: nn.Module, program: ExportedProgram, given: torch.Tensor, repeats: int) -> dict[str, float]:
    module = program.module()
    with torch.no_grad():
        return median_seconds({"eager": lambda: model(given), "program": lambda: module(given)}, given.device, repeats)


def _figures(metrics: dict[str, float]) -> Table:
    kibibyte = 1024
    rows: tuple[tuple[Cell, ...], ...] = (
        ("exporting (ms)", milliseconds(metrics["export_seconds"])),
        ("loading elsewhere (ms)", milliseconds(metrics["load_seconds"])),
        ("a call of the eager model, 64 examples (ms)", milliseconds(metrics["eager_call_seconds"])),
        ("a call of the program, 64 examples (ms)", milliseconds(metrics["program_call_seconds"])),
        ("the file (KiB)", metrics["file_bytes"] / kibibyte),
        ("the parameters in it (KiB)", metrics["parameter_bytes"] / kibibyte),
    )
    return Table("Time and memory", ("what", "value"), rows)


def _notes(elsewhere: Elsewhere) -> tuple[str, ...]:
    return (
        f"The other process loaded {len(elsewhere.modules)} modules of this package: the program holds the model's "
        "operations and parameters, not its Python source.",
        "The number of examples is a symbol in every shape (s…): one program serves any batch of two or more. An "
        "example of one row would have fixed it at 1.",
        "The program's module runs the same kernels one by one: exporting frees a model from its source, and it is "
        "torch.compile or AOTInductor, on top of it, that makes it faster.",
    )


def _images(count: int, device: torch.device) -> torch.Tensor:
    return torch.randn(count, 1, 28, 28, generator=torch.Generator().manual_seed(count)).to(device)
