"""Studies that begin at the same moment with one new database of MLflow's."""

import subprocess
import sys

MAKES = """
import os, sys, time
from pathlib import Path
from scalestudy.orchestration.tracking.database import make_database
from scalestudy.orchestration.tracking.mlflow_store import open_experiment
from scalestudy.orchestration.tracking.server import TrackingAddress
import mlflow.store.tracking.sqlalchemy_store
print("ready", flush=True)
sys.stdin.readline()
make_database(Path(sys.argv[1]))
print(open_experiment(TrackingAddress.of_database(Path(sys.argv[1])), "one")[1])
"""


def test_two_processes_that_make_one_database_at_once_both_have_it(tmp_path):
    database = tmp_path / "new" / "50%41?" / "mlflow.db"
    command = [sys.executable, "-c", MAKES, str(database)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    both = [subprocess.Popen(command, **pipes) for _ in range(2)]
    for each in both:
        assert each.stdout.readline() == "ready\n"
    for each in both:
        each.stdin.write("\n")
        each.stdin.flush()
    ended = [each.communicate(timeout=120) for each in both]
    assert [each.returncode for each in both] == [0, 0], ended
    assert ended[0][0] == ended[1][0], "the same experiment"
    assert [each.name for each in database.parent.iterdir()] == ["mlflow.db"]
    assert [each.name for each in (tmp_path / "new").iterdir()] == ["50%41?"]
