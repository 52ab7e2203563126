"""`bench export`: the program, its graph, and its outputs in another process."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from scalestudy.training.chapter.exporting import compare, export, run, run_elsewhere
from scalestudy.training.chapter.measuring import Experiment
from scalestudy.training.models import MLP


@pytest.fixture(scope="module")
def found() -> Experiment:
    return run(torch.device("cpu"), quick=True)


def test_the_program_is_the_same_elsewhere(found: Experiment) -> None:
    compared = found.tables[-1]
    assert compared.column("examples") == [2, 5, 64]  # traced with 2
    assert compared.column("program elsewhere: max difference") == pytest.approx([0, 0, 0], abs=1e-6)
    assert set(compared.column("same bits as here")) == {"yes"}
    assert "loaded 0 modules of this package" in found.notes[0]


def test_elsewhere_are_as_many_threads_as_here(tmp_path: Path) -> None:
    """Else sums are rounded otherwise, and bits differ."""
    before = torch.get_num_threads()
    threads = 1 if before > 1 else 2
    torch.set_num_threads(threads)
    try:
        inputs = torch.ones(3, 1, 4, 4)
        torch.export.save(export(MLP(10, 1, hidden=[4], image_size=4), inputs), tmp_path / "program.pt2")
        assert run_elsewhere(tmp_path / "program.pt2", [inputs]).threads == threads
    finally:
        torch.set_num_threads(before)


def test_the_graph_is_lenets(found: Experiment) -> None:
    operations = found.tables[0].column("operation")
    assert [str(name).split(".")[1] for name in operations if str(name).startswith("aten.")] == [
        *("conv2d", "relu", "avg_pool2d") * 2,
        *("flatten", "linear", "relu", "linear"),
    ]
    assert any(str(shape).endswith(", 1, 28, 28)") for shape in found.tables[0].column("shape"))


def test_the_file_holds_the_parameters(found: Experiment) -> None:
    assert found.metrics["file_bytes"] > found.metrics["parameter_bytes"] == 4 * 129_068  # LeNet's numbers
    # 20·9 + 20, 50·20·25 + 50, 128·800 + 128, 10·128 + 10


def test_another_models_outputs_are_told_apart() -> None:
    inputs = [torch.ones(3, 1, 4, 4)]
    model, other = (MLP(10, 1, hidden=[4], image_size=4) for _ in range(2))
    program = export(model, inputs[0])
    _, same = compare(model, program, inputs, [program.module()(inputs[0]).detach()])
    _, different = compare(other, program, inputs, [program.module()(inputs[0]).detach()])
    assert same < 1e-6 < different


def test_a_process_that_fails_is_an_error(tmp_path: Path) -> None:
    broken = tmp_path / "broken.pt2"
    broken.write_bytes(b"not a program")
    with pytest.raises(RuntimeError, match="the process that reads the program failed"):
        run_elsewhere(broken, [torch.ones(1)])
