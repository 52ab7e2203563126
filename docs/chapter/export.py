"""Can the model leave Python as a program, and is it the same one elsewhere?

The book's exported network: python docs/chapter/export.py [--device cpu] [--quick]

torch.export takes the place of the book's `net.export`. The number of examples stays open: inputs (N, 1, 28, 28) with N
from 2, outputs (N, 10). Another process, which knows PyTorch alone, reads the file and runs the program.
"""

import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import torch
from lesson import begin, milliseconds, show
from torch.export import Dim, ExportedProgram
from torch.profiler import ProfilerActivity, profile
from torch.utils.benchmark import Timer

from scalestudy.training.models import build_model

ELSEWHERE = """
import sys, torch
program_file, inputs_file, outputs_file, threads = sys.argv[1:]
torch.set_num_threads(int(threads))  # as many as in the other process: another number rounds sums differently
program = torch.export.load(program_file).module()
torch.save([program(each) for each in torch.load(inputs_file, weights_only=True)], outputs_file)
print(sum(name.partition(".")[0] == "scalestudy" for name in sys.modules))
"""


def export(model: torch.nn.Module, example: torch.Tensor) -> ExportedProgram:
    """Export for any number of examples; an example of one row would have fixed it at 1."""
    return torch.export.export(model, (example,), dynamic_shapes=({0: Dim("examples", min=2)},))


def run_elsewhere(file: Path, inputs: list[torch.Tensor]) -> tuple[list[torch.Tensor], int]:
    """Run the program in another process; returns its outputs, and how many modules of this project it had loaded."""
    given, made = file.with_name("inputs.pt"), file.with_name("outputs.pt")
    torch.save(inputs, given)
    command = [sys.executable, "-c", ELSEWHERE, file, given, made, str(torch.get_num_threads())]
    done = subprocess.run(command, cwd=file.parent, stdout=subprocess.PIPE, text=True, check=True)
    return torch.load(made, weights_only=True), int(done.stdout)


def operations(model: torch.nn.Module, inputs: torch.Tensor) -> Counter[str]:
    """Count the operations of one call, by name."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        model(inputs)
    return Counter({each.key: each.count for each in profiler.key_averages() if each.key.startswith("aten::")})


def main() -> None:
    """Export LeNet, show its graph, and compare the model, the program here, and the program elsewhere."""
    device, quick = begin(__doc__)
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    model = build_model("lenet", (10, 1), {}).eval().to(device)
    inputs = [torch.randn(count, 1, 28, 28, device=device) for count in (2, 5, 64)]
    program = export(model, inputs[0])
    module = program.module()

    shapes = [(node, node.meta["val"].shape) for node in program.graph.nodes if "val" in node.meta]
    steps = [
        (node.name, str(node.target), str(tuple(map(str, shape))))
        for node, shape in shapes
        if node.op == "call_function"
    ]
    show(
        f"The program: {len(program.graph.nodes)} nodes, of which these compute", ("name", "operation", "shape"), steps
    )

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "lenet.pt2"
        torch.export.save(program, file)
        size = file.stat().st_size
        outputs, ours = run_elsewhere(file, inputs)
    parameters = sum(each.nbytes for each in model.parameters())
    print(f"\nthe file has {size / 1024:.0f} KiB, of which {parameters / 1024:.0f} are parameters")
    print(f"the other process loaded {ours} modules of this project")

    rows = []
    for given, there in zip(inputs, outputs, strict=True):
        here = module(given)
        difference = (here - model(given)).abs().max().item()
        rows.append((len(given), difference, "yes" if torch.equal(here, there) else "no"))
    show("The program's outputs", ("examples", "differ from the model's by", "elsewhere the same bits"), rows)

    number, threads = (3, 1) if quick else (200, torch.get_num_threads())
    model_s, program_s = (
        Timer("f(x)", globals={"f": f, "x": inputs[-1]}, num_threads=threads).timeit(number).median
        for f in (model, module)
    )
    print(f"\na call with 64 examples: model {milliseconds(model_s):.3g} ms, program {milliseconds(program_s):.3g} ms")
    computing = ("aten::conv2d", "aten::avg_pool2d", "aten::linear", "aten::relu")
    counts = [
        [found[name] for name in computing] for found in (operations(each, inputs[-1]) for each in (model, module))
    ]
    print(f"both run the same operations: {'yes' if counts[0] == counts[1] else 'no'}")


if __name__ == "__main__":
    main()
