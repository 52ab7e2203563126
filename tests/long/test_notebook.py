"""docs/examples/notebook.ipynb, run as a reader would in an empty folder."""

import json
import sys

import pytest

from tests.long.notebooks import WRITE_FILE, code_cells
from tests.support.studies import REPOSITORY, ran

NOTEBOOK = REPOSITORY / "docs" / "examples" / "notebook.ipynb"


@pytest.mark.chaos
@pytest.mark.timeout(400)
def test_the_notebook_runs_and_shows_what_its_cells_promise(tmp_path):
    home = tmp_path / "home"
    folder = tmp_path / "folder"
    folder.mkdir()
    done = ran(
        [sys.executable, "-m", "tests.long.notebooks", str(NOTEBOOK)],
        cwd=folder,
        seconds=300,
        HOME=str(home),
        SCALESTUDY_HOME=str(home),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    values = dict(zip(code_cells(NOTEBOOK), json.loads(done.stdout.splitlines()[-1]), strict=True))

    def shown(begins: str) -> str:
        (value,) = [value for source, value in values.items() if source.startswith(begins)]
        return value

    assert any(source.startswith(WRITE_FILE) for source in values)
    answer = shown("import my_model")
    assert "Recommended" in answer
    assert "<th>" in answer
    assert shown("result.trials").count("<tr") == 1 + 4, "two batch sizes, two seeds"
    assert shown("result.cells").count("<tr") == 1 + 2
    assert float(shown("result.best").removeprefix("np.float64(").rstrip(")")) > 0.8
    assert "workers=1 batch=" in done.stdout
    assert shown("result.report").endswith("report.html')")
    assert "my_model:build" in next((folder / "runs").glob("in-a-notebook-*/spec.yaml")).read_text("utf-8")
