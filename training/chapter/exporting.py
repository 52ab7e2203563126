"""`bench export`: can the model leave Python as a program, and is it the same one elsewhere?

torch.export takes the place of the book's hybridized network and its exported symbols. The model is LeNet, with the
number of examples left open. Shapes: inputs (N, 1, 28, 28) with N from 2, outputs (N, 10).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.export import Dim, ExportedProgram

from scalestudy.training.chapter.measuring import Cell, Experiment, Table, median_seconds, milliseconds, quiet_compiler
from scalestudy.training.models import build_model
from scalestudy.training.seeding import seed_parameters

QUESTION = "Can the model leave Python as a program, and is it the same one elsewhere?"
KIBIBYTE = 1024
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
"""The other process. It reads the program and the inputs, writes the outputs, and has none of our modules. It takes as
many threads as this process has: another number rounds sums differently."""


def run(device: torch.device, *, quick: bool = False) -> Experiment:
    """Exports LeNet, prints its graph, saves it, runs it in another process; on a CPU some 10 s."""
    seed_parameters(0)
    model = build_model("lenet", (10, 1), {}).eval().to(device)
    inputs = [
        torch.randn(count, 1, 28, 28, generator=torch.Generator().manual_seed(count)).to(device) for count in (2, 5, 64)
    ]
    started = time.perf_counter()
    program = export(model, inputs[0])
    export_seconds = time.perf_counter() - started
    with tempfile.TemporaryDirectory(prefix="export-") as folder:
        file = Path(folder) / "lenet.pt2"
        torch.export.save(program, file)
        file_bytes = file.stat().st_size
        elsewhere = run_elsewhere(file, inputs)
    module, largest_batch = program.module(), inputs[-1]
    with torch.no_grad():
        ways = {"eager": lambda: model(largest_batch), "program": lambda: module(largest_batch)}
        seconds = median_seconds(ways, device, 3 if quick else 51)
    compared, largest = compare(model, program, inputs, elsewhere.outputs)
    parameter_bytes = sum(each.numel() * each.element_size() for each in model.parameters())
    figures: tuple[tuple[Cell, ...], ...] = (
        ("exporting (ms)", milliseconds(export_seconds)),
        ("loading elsewhere (ms)", milliseconds(elsewhere.load_seconds)),
        ("a call of the eager model, 64 examples (ms)", milliseconds(seconds["eager"])),
        ("a call of the program, 64 examples (ms)", milliseconds(seconds["program"])),
        ("the file (KiB)", file_bytes / KIBIBYTE),
        ("the parameters in it (KiB)", parameter_bytes / KIBIBYTE),
    )
    notes = (
        f"The other process loaded {len(elsewhere.modules)} modules of this package: the program holds the model's "
        "operations and parameters, not its Python source.",
        "The number of examples is a symbol in every shape (s…): one program serves any batch of two or more. An "
        "example of one row would have fixed it at 1.",
        "The program's module runs the same kernels one by one: exporting frees a model from its source, and it is "
        "torch.compile or AOTInductor, on top of it, that makes it faster.",
    )
    metrics = {
        "export_seconds": export_seconds,
        "load_seconds": elsewhere.load_seconds,
        "output_difference": largest,
        "file_bytes": float(file_bytes),
        "parameter_bytes": float(parameter_bytes),
        "eager_call_seconds": seconds["eager"],
        "program_call_seconds": seconds["program"],
    }
    tables = (graph_table(program), Table("Time and memory", ("what", "value"), figures), compared)
    return Experiment("export", QUESTION, tables, notes, metrics)


def export(model: nn.Module, example: torch.Tensor) -> ExportedProgram:
    """Exports the model for any number of examples. The example's own number, 2 or more, is not built in."""
    with quiet_compiler(), torch.no_grad():
        return torch.export.export(model, (example,), dynamic_shapes=({0: Dim("examples", min=2)},))


def graph_table(program: ExportedProgram) -> Table:
    """Shows the symbolic program, an operation a row."""
    rows: list[tuple[Cell, ...]] = []
    for node in program.graph.nodes:
        value = node.meta.get("val")
        shape = "(" + ", ".join(map(str, value.shape)) + ")" if isinstance(value, torch.Tensor) else None
        arguments = ", ".join(map(str, node.args)) if node.op != "placeholder" else None
        rows.append((node.name, node.op, str(node.target), arguments, shape))
    title = f"The program: {len(rows)} nodes, as torch.export holds it"
    return Table(title, ("name", "kind", "operation", "arguments", "shape"), tuple(rows))


@dataclass(frozen=True)
class Elsewhere:
    """What the other process found."""

    outputs: list[torch.Tensor]
    load_seconds: float
    modules: list[str]  # modules of this package that it had loaded
    threads: int


def run_elsewhere(file: Path, inputs: list[torch.Tensor]) -> Elsewhere:
    """Runs the program in a process that imports PyTorch alone and gets only the files.

    Raises RuntimeError, with that process's error output, if it fails.
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
    """Compares the model's outputs with the program's, here and elsewhere; returns the largest difference too."""
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
