"""Torchvision imports beside any build of torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def run_python(code: str, folder: Path) -> str:
    """The program's output; warnings are errors in it."""
    environment = {"PYTHONPATH": f"{Path.cwd()}:{folder}", "PATH": ""}
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_models_data_sets_and_transforms_work(tmp_path: Path) -> None:
    code = """
from scalestudy.training.torchvision_compat import define_missing_operators, import_torchvision
define_missing_operators()
torchvision = import_torchvision()
import torch
from torchvision.transforms import v2
print(torchvision.models.resnet18(num_classes=7)(torch.rand(2, 3, 32, 32)).shape)
print(v2.RandomHorizontalFlip(1.0)(torch.arange(3.0).reshape(1, 1, 3)).flatten().tolist())
"""
    assert run_python(code, tmp_path) == "torch.Size([2, 7])\n[2.0, 1.0, 0.0]\n"


@pytest.mark.slow
def test_a_users_module_may_import_torchvision(tmp_path: Path) -> None:
    (tmp_path / "users_models.py").write_text("import torchvision\ndef net(num_classes, in_channels): return 'net'\n")
    code = "from scalestudy.training.registry import MODELS, resolve; print(resolve('users_models:net', MODELS)(10, 1))"
    assert run_python(code, tmp_path) == "net\n"
