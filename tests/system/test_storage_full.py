"""The study's storage runs full: it stops, says so, loses nothing, and goes on when there is room. Needs root."""

import os
import subprocess

import pytest

from tests.support.drivers import SLOW, Driver, assert_recorded_once, outcome
from tests.support.studies import scalestudy, write_spec

EPOCHS = 3


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 8 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", disk], check=True)
    yield disk
    subprocess.run(["umount", "--lazy", disk], check=True)


def fill(disk):
    """Takes all the room that is left."""
    with (disk / "filler").open("wb", buffering=0) as filler:
        try:
            for size in (65_536, 4_096, 1):
                while filler.write(os.urandom(size)) == size:
                    pass
        except OSError:
            pass


def test_a_full_disk(tmp_path, small_disk):
    write_spec(tmp_path, workload=SLOW, train={"epochs": EPOCHS},
               sweep={"num_gpus": [1, 2], "batch_size": [256], "learning_rate": [0.1, 0.2]})  # fmt: skip
    undisturbed = Driver(tmp_path, "undisturbed")
    assert undisturbed.end()[0] == 0

    driver = Driver(tmp_path, small_disk / "out")
    driver.wait_for("epoch", EPOCHS + 1)
    fill(small_disk)
    status, printed = driver.end()
    assert status == 3, printed
    assert f"storage: {driver.folder.path}: No space left on device" in printed
    assert f"to go on: scalestudy resume {driver.folder.path}" in printed
    assert "Traceback" not in printed

    full = scalestudy("resume", driver.folder.path, "--address", "local", cwd=tmp_path)
    assert full.returncode == 3, full.stdout + full.stderr
    assert "No space left on device" in full.stdout + full.stderr
    assert "Traceback" not in full.stdout + full.stderr

    (small_disk / "filler").unlink()
    done = scalestudy("resume", driver.folder.path, "--address", "local", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert outcome(driver.folder) == outcome(undisturbed.folder)
    assert_recorded_once(driver.folder, tmp_path / "mlflow.db", EPOCHS)
