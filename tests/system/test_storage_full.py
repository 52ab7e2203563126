"""Storage that runs full, or may not be entered: it is said, and nothing is lost. Needs root."""

import os
import pwd
import subprocess

import pytest

from scalestudy.orchestration.base.errors import StudyError
from scalestudy.orchestration.study.opening import check_writable
from scalestudy.orchestration.tracking.server import check_reachable, resolve_address
from tests.support.chaos_outcome import in_peace, outcome_of
from tests.support.drivers import SLOW, Driver, assert_recorded_once, joining
from tests.support.in_process import scalestudy
from tests.support.studies import write_spec

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


def test_a_full_disk(ray_session, tmp_path, small_disk):
    spec = write_spec(
        tmp_path,
        workload=SLOW,
        train={"epochs": EPOCHS},
        sweep={"num_gpus": [2], "batch_size": [256], "learning_rate": [0.1, 0.2]},
    )
    driver = Driver(tmp_path, small_disk / "out", address=ray_session.address, **joining(ray_session))
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
    assert outcome_of(driver.folder) == in_peace(spec)
    assert_recorded_once(driver.folder, tmp_path / "mlflow.db", EPOCHS)


def test_a_folder_that_may_not_be_entered(tmp_path):
    """In a process of a user without rights: root may enter any."""
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o700)
    said = as_nobody(lambda: check_writable(locked / "runs" / "study"))
    assert said.startswith(f"storage: {locked / 'runs' / 'study'}: can't be written (Permission denied)")
    database = as_nobody(lambda: check_reachable(resolve_address(f"sqlite:///{locked / 'mlflow.db'}")))
    assert database.startswith(f"tracking.uri: sqlite:///{locked / 'mlflow.db'}: can't be written")


def as_nobody(act):
    """What an error of an act says that this process's child does as the user `nobody`."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        said = "no error"
        try:
            os.setuid(pwd.getpwnam("nobody").pw_uid)
            act()
        except BaseException as error:
            said = str(error) if isinstance(error, StudyError) else repr(error)
        os.write(writing, said.encode())
        os._exit(0)
    os.wait()
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as pipe:
        return pipe.read()
