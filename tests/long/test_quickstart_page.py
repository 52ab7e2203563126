"""docs/start.md: the commands that it shows are run, as a reader would, in one folder."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pages import blocks, page_text
from tests.support.studies import environment

PAGE = "docs/start.md"
NEWEST = re.compile(r"runs/my-study-…")


@pytest.mark.timeout(900)
def test_the_commands_of_the_quickstart_do_what_the_page_says(tmp_path):
    """All but the first block, `make demo`, which would install the package anew."""
    folder, home = tmp_path / "folder", tmp_path / "home"
    folder.mkdir()
    home.mkdir()
    variables = environment(HOME=str(home), PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    first, *others = blocks(page_text(PAGE), "bash")
    assert first.text.startswith("make demo")
    assert len(others) >= 4
    for block in others:
        script = "set -e\n" + NEWEST.sub(lambda _: str(newest(folder)), block.text)
        done = subprocess.run(
            ["bash", "-c", script], cwd=folder, env=variables, capture_output=True, text=True, timeout=400, check=False
        )
        assert done.returncode == 0, f"{PAGE}:{block.line}\n{done.stdout}{done.stderr}"
    files = {path.name for path in newest(folder).iterdir()}
    shown = re.findall(r"^\| (`.*?) \|", page_text(PAGE), re.MULTILINE)  # the table of the study's folder
    named = {name.strip("`/") for cell in shown for name in cell.split(", ")}
    assert len(named) > 8
    assert named <= files


def newest(folder: Path) -> Path:
    """The study that the reader has run."""
    return sorted((folder / "runs").glob("my-study-*"))[-1]
