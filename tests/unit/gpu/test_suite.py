"""The runner of `make gpu`, its command line, its page, and its quick parts on a CPU; the others run by the suite."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from scalestudy.training.exceptions import InputError
from tests.gpu.__main__ import check_installed, chosen_parts, device_of, main
from tests.gpu.part import run
from tests.gpu.parts import PARTS, Part
from tests.gpu.report import PartResult, Report, Settings, figures_table, page
from tests.gpu.runner import run_parts
from tests.support.project_files import REPOSITORY

CPU = Settings(device="cpu", small=True)
WITHOUT_OTHERS = """
import os
import re
import sys
from importlib.machinery import PathFinder

HIDDEN = {"ray", "mlflow", "pandas", "scipy", "matplotlib", "pytest", "typer", "torchvision"}
HIDDEN.update(os.environ["HIDDEN"].split())

class Finder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in HIDDEN else super().find_spec(name, path, target)

sys.meta_path[:] = [Finder if each is PathFinder else each for each in sys.meta_path]
"""
"""A sitecustomize.py, by which an interpreter finds torch, NumPy and pydantic alone, and not what HIDDEN names."""


def fake(name: str, limit_seconds: float = 60.0) -> Part:
    return Part(function=f"tests.unit.gpu.gpu_parts:{name}", title=name, limit_seconds=limit_seconds)


def run_fakes(folder: Path, *parts: Part, total_seconds: float = 100.0) -> dict[str, PartResult]:
    """Results by part, as the files have them."""
    settings = Settings(device="cpu", small=True, data_root=str(folder))
    deadline = time.monotonic() + total_seconds
    run_parts({part.title: part for part in parts}, settings, folder, deadline=deadline)
    return {part.title: PartResult.read(folder / f"{part.title}.json") for part in parts}


def test_parts_that_fail_stop_no_other(tmp_path: Path) -> None:
    names = ("fails_a_check", "raises", "lacks", "dies", "passes")
    found = run_fakes(tmp_path, *map(fake, names))
    assert [found[name].status for name in names] == ["failed", "failed", "lacks", "failed", "passed"]
    assert found["fails_a_check"].first_problem == "another: nan, not at most 2"
    assert found["raises"].message == "RuntimeError: no kernel image"
    assert [check.what for check in found["raises"].checks] == ["a number"], "what it found before is kept"
    assert "RuntimeError: no kernel image" in (tmp_path / "raises.log").read_text("utf-8")
    assert found["lacks"].first_problem == "needs CUDA: all of it"
    assert "SIGABRT" in found["dies"].message
    assert "the driver is gone" in found["dies"].message


def test_a_part_over_its_time_ends_with_its_children_and_the_next_one_runs(tmp_path: Path) -> None:
    found = run_fakes(tmp_path, fake("hangs", limit_seconds=2.0), fake("passes"))
    assert [each.status for each in found.values()] == ["time limit", "passed"]
    child = int((tmp_path / "child").read_text("utf-8"))
    state = Path(f"/proc/{child}/stat")
    assert not state.exists() or state.read_text("utf-8").rpartition(")")[2].split()[0] == "Z"


def test_no_part_begins_after_the_suites_time(tmp_path: Path) -> None:
    found = run_fakes(tmp_path, fake("passes"), fake("lacks"), total_seconds=0.0)
    assert {each.status for each in found.values()} == {"not run"}


def test_the_look_at_the_machine_is_part_of_the_suites_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]

    def slow_probe() -> dict[str, str | None]:
        clock[0] += 120.0
        return {"gpu": None, "cpu": "X", "torch": "2.11.0", "why_no_gpu": "none"}

    monkeypatch.setattr("tests.gpu.__main__.probe", slow_probe)
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    assert main(["--part", "tf32", "--out", str(tmp_path), "--total-seconds", "119"]) == 1
    assert PartResult.read(tmp_path / "tf32.json").status == "not run"


def test_a_result_of_an_earlier_run_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    run_fakes(tmp_path, fake("passes"))
    again = Part(function="tests.unit.gpu.gpu_parts:dies", title="passes", limit_seconds=60.0)
    assert run_fakes(tmp_path, again)["passes"].status == "failed"


@pytest.mark.parametrize(("names", "chosen"), [("", list(PARTS)), ("tf32, resume", ["resume", "tf32"])])
def test_part_names_parts_in_the_suites_order(names: str, chosen: list[str]) -> None:
    assert list(chosen_parts(names)) == chosen


def test_what_cannot_run_is_one_line_that_names_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, said in (
        (["--part", "resum"], "make gpu: PART: there is no part resum; choose of training, resume, "),
        (["--part", "tf32", "--data", str(tmp_path)], "make gpu: DATA: data: fashion_mnist: no train-images-"),
    ):
        assert main([*arguments, "--out", str(tmp_path / "out")]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(said)
    assert not (tmp_path / "out").exists()


def test_a_gpu_that_is_not_there_is_refused_with_what_pytorch_says() -> None:
    old = {"gpu": None, "why_no_gpu": "The NVIDIA driver on your system is too old"}
    with pytest.raises(InputError, match=r"no GPU can be used \(The NVIDIA driver on your system is too old\)"):
        device_of("cuda", old)
    assert [device_of(wanted, old) for wanted in ("auto", "cpu")] == ["cpu", "cpu"]
    assert [device_of(wanted, {"gpu": "X"}) for wanted in ("auto", "cpu", "cuda")] == ["cuda", "cpu", "cuda"]


def test_an_old_pytorch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check_installed()
    monkeypatch.setattr("importlib.metadata.version", lambda name: "2.9.1+cu130")
    with pytest.raises(InputError, match=r"has PyTorch 2\.9\.1\+cu130; give one that has 2\.11 or newer"):
        check_installed()


def made(tmp_path: Path, hidden: str = "") -> subprocess.CompletedProcess[str]:
    """Run the command of `make gpu` by an interpreter that finds neither Ray nor MLflow nor what is hidden."""
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_OTHERS, encoding="utf-8")
    make = ["make", "gpu", f"PYTHON={sys.executable}", "PART=tf32", f"OUT={tmp_path / 'out'}"]
    code = (REPOSITORY / "Makefile").read_text("utf-8").partition("\ngpu:")[2].partition("\n\n")[0]
    assert "$(VENV)" not in code
    outer = ("PYTHONPATH", "MAKEFLAGS", "MAKELEVEL")  # of the `make test` around it
    variables = {name: value for name, value in os.environ.items() if name not in outer} | {"HIDDEN": hidden}
    recipe = subprocess.run([*make, "--dry-run"], cwd=REPOSITORY, env=variables, capture_output=True, text=True)
    command = recipe.stdout.replace('PYTHONPATH="', f'PYTHONPATH="{tmp_path}:', 1)
    return subprocess.run(command, shell=True, cwd=REPOSITORY, env=variables, capture_output=True, text=True)


def test_a_machine_without_pydantic_is_told_what_to_bring(tmp_path: Path) -> None:
    done = made(tmp_path, "pydantic")
    told = r"make gpu: PYTHON: .* has no pydantic; put a folder on PYTHONPATH that `pip install --target DIR pydantic`"
    assert re.match(told, done.stderr)
    assert "Traceback" not in done.stderr


def test_json_log_and_page_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    machine = {"gpu": None, "cpu": "X", "torch": "2.11.0", "why_no_gpu": "none"}
    monkeypatch.setattr("tests.gpu.__main__.probe", lambda: machine)
    monkeypatch.setitem(PARTS, "passes", fake("passes"))
    assert main(["--part", "passes", "--out", str(tmp_path)]) == 0
    assert PartResult.read(tmp_path / "passes.json").status == "passed"
    assert (tmp_path / "passes.log").exists()
    assert json.loads((tmp_path / "machine.json").read_text("utf-8")) == machine
    assert "| passes | passed |" in capsys.readouterr().out
    assert "| torch | 2.11.0 |" in (tmp_path / "gpu.md").read_text("utf-8")


@pytest.mark.slow
def test_the_command_needs_torch_numpy_and_pydantic_alone(tmp_path: Path) -> None:
    done = made(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert PartResult.read(tmp_path / "out" / "tf32.json").status == "passed"
    assert "| tf32 | passed |" in done.stdout
    assert f"| torch | {torch.__version__} |" in (tmp_path / "out" / "gpu.md").read_text("utf-8")


@pytest.mark.parametrize("name", ["resume", "out_of_memory", "steady"])
def test_a_quick_part_passes_on_the_cpu(name: str) -> None:
    threads = torch.get_num_threads()
    try:
        result = run(name, PARTS[name].title, PARTS[name].function, CPU)
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_num_threads(threads)
        os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)
    assert result.status == "passed", result.first_problem


def test_every_part_is_there_and_the_page_of_the_docs_names_it() -> None:
    text = (REPOSITORY / "docs" / "results" / "gpu.md").read_text("utf-8")
    for name, part in PARTS.items():
        module, _, function = part.function.partition(":")
        assert callable(getattr(importlib.import_module(module), function))
        assert f"`{name}`" in text


def test_a_goal_is_judged_on_a_whole_gpu_run_alone() -> None:
    met = []
    for settings in (Settings(device="cuda", small=False), Settings(device="cuda", small=True), CPU):
        report = Report(settings)
        report.figure("epoch", 0.07, "s", at_most=0.06)
        report.figure("ratio", 0.96, "", at_least=0.95)
        report.figure("never", None, "s", at_most=10.0)
        report.figure("digits", 1.0, "s", at_most=10.0, comparable=False)
        met.append([figure.met for figure in report.figures])
        assert report.status == "passed", "a goal that is missed fails nothing"
    assert met == [[False, True, False, None], [None] * 4, [None] * 4]


def test_the_page_names_the_machine_and_shows_figures_beside_goals(tmp_path: Path) -> None:
    settings = Settings(device="cuda", small=False)
    report = Report(settings)
    report.figure("LeNet: an epoch", 0.051234, "s", at_most=0.06, how="batch 256")
    result = PartResult(
        part="lenet", title="", status="passed", seconds=9.0, settings=settings, figures=tuple(report.figures)
    )
    result.write(tmp_path)
    assert PartResult.read(tmp_path / "lenet.json") == result
    text = page({"gpu": "NVIDIA X", "torch": "2.11.0"}, settings, [result])
    assert text.startswith("# The GPU suite on NVIDIA X\n")
    assert "| LeNet: an epoch | 0.05123 s | at most 0.06 s | yes | batch 256 |" in text
    assert figures_table([]) == ""
