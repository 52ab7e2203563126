"""What `make install` adds to its environment: torchvision imports there beside any build of torch."""

from __future__ import annotations

import subprocess
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.project_files import REPOSITORY

Run = Callable[..., "subprocess.CompletedProcess[str]"]
TORCH = f"{sysconfig.get_path('purelib')}\n"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment as `make install` leaves it, but for pip's part: it has no packages."""
    folder = tmp_path_factory.mktemp("installed") / "venv"
    venv.create(folder, symlinks=True)
    command = ["make", "install", f"VENV={folder}", "PIP_INSTALL=true"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def run(environment: Path, tmp_path: Path) -> Run:
    """Run code in the environment, whose packages are what these .pth lines add; warnings are errors in it."""
    (packages,) = environment.glob("lib/python*/site-packages")

    def run(code: str, *added: str) -> subprocess.CompletedProcess[str]:
        (packages / "packages.pth").write_text("".join(added))
        command = [environment / "bin" / "python", "-W", "error", "-c", code]
        return subprocess.run(command, cwd=tmp_path, env={"PATH": ""}, capture_output=True, text=True)

    return run


SCALESTUDY = f"{REPOSITORY}\n"


def test_a_start_imports_neither_torch_nor_scalestudy(run: Run) -> None:
    code = (
        "import sys; print(sorted({'torch', 'torchvision', 'scalestudy', 'scalestudy_torchvision'} & {*sys.modules}))"
    )
    assert run(code, TORCH, SCALESTUDY).stdout == "['scalestudy_torchvision']\n"


@pytest.mark.slow
def test_a_program_may_import_torchvision_first(run: Run) -> None:
    code = "import torchvision, sys; print(torchvision.ops.nms.__name__, len(sys.meta_path))"
    done = run(code, TORCH, SCALESTUDY)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "nms 3\n"  # Python's own finders: ours has gone


def damaged(folder: Path) -> None:
    """A torchvision whose library does not load, which says whether operators are declared as it is imported."""
    (folder / "torchvision").mkdir()
    (folder / "torchvision" / "__init__.py").write_text("import torch; print(hasattr(torch.ops.torchvision, 'nms'))")
    (folder / "torchvision" / "_C.so").write_bytes(b"damaged")


@pytest.mark.slow
def test_a_study_may_declare_them_first(run: Run, tmp_path: Path) -> None:
    """It looks for torchvision, and meets the finder."""
    damaged(tmp_path)
    done = run("import scalestudy.training.data.readers, torchvision", TORCH, SCALESTUDY)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


@pytest.mark.slow
def test_a_package_that_has_imported_torch_may_import_torchvision(run: Run, tmp_path: Path) -> None:
    """As torchmetrics does, which lightning imports."""
    damaged(tmp_path)
    (tmp_path / "metrics").mkdir()
    (tmp_path / "metrics" / "__init__.py").write_text("import torch\nimport torchvision\n")
    done = run("import metrics", TORCH, SCALESTUDY)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


@pytest.mark.slow
def test_without_scalestudy_torchvision_says_itself_what_it_lacks(run: Run) -> None:
    """Where torchvision suits this torch, it lacks nothing."""
    done = run("import torchvision", TORCH)
    assert done.returncode == 0 or "operator torchvision::nms does not exist" in done.stderr


def test_without_torch_a_torchvision_is_on_its_own(run: Run, tmp_path: Path) -> None:
    (tmp_path / "torchvision.py").write_text("print('imported')")
    assert run("import torchvision", SCALESTUDY).stdout == "imported\n"
    (tmp_path / "torchvision.py").write_text("import torch")
    assert "No module named 'torch'" in run("import torchvision", SCALESTUDY).stderr.splitlines()[-1]


def test_other_imports_are_left_alone(run: Run) -> None:
    code = "import json, sys; assert 'torch' not in sys.modules; import nowhere"
    assert run(code, TORCH, SCALESTUDY).stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'nowhere'"


@pytest.mark.slow
def test_operators_are_not_declared_where_the_compiled_library_loads(run: Run, tmp_path: Path) -> None:
    """The library of this torchvision is one that torch brings."""
    damaged(tmp_path)
    library = Path(TORCH.strip()) / "torch" / "lib" / "libshm.so"
    (tmp_path / "torchvision" / "_C.so").write_bytes(library.read_bytes())
    assert run("import torchvision", TORCH, SCALESTUDY).stdout == "False\n"
