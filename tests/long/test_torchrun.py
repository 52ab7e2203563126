"""Processes that train together, under torchrun and without: errors, devices, how they end, and a real SIGKILL."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from scalestudy.training.__main__ import main
from tests.support.project_files import REPOSITORY
from tests.unit.training.test_main import ARGUMENTS, TORCHRUN, WORKLOADS, run


def test_devices_start_a_worker_each() -> None:
    """One command, no torchrun; the records are torchrun's."""
    arguments = [argument for argument in ARGUMENTS if argument not in ("--device", "cpu")]
    started = run("-m", "scalestudy.training", *arguments, "--devices", "cpu,cpu")
    under_torchrun = run(*TORCHRUN, "-m", "scalestudy.training", *arguments, "--devices", "cpu,cpu")
    assert [line["sync_bytes"] for line in started[:2]] == [line["sync_bytes"] for line in under_torchrun[:2]] != [0, 0]
    assert [line["train_loss"] for line in started[:2]] == [line["train_loss"] for line in under_torchrun[:2]]


def test_what_is_no_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ARGUMENTS, "--device", "auto", "--devices", "tpu"]) == 2
    assert "devices: 'tpu' is not a device; write cpu, cuda or cuda:1" in capsys.readouterr().err


def test_a_device_that_one_worker_lacks_is_told_once() -> None:
    command = [sys.executable, "-m", "scalestudy.training", *ARGUMENTS, "--device", "auto", "--devices", "cpu,cuda:7"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert ("device: no CUDA device 7 among" if torch.cuda.is_available() else "CUDA does not work: ") in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr


def test_a_rank_without_memory_ends_all(capsys: pytest.CaptureFixture[str]) -> None:
    """Alone it is a result, of several workers a failure: the others can't go on."""
    training = [*ARGUMENTS, "--model", f"{WORKLOADS}:NoMemoryOnRankOne", "--model-args", "{}"]
    assert main(training) == 0
    assert json.loads(capsys.readouterr().out)["status"] == "out_of_memory"

    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, *TORCHRUN, "-m", "scalestudy.training", *training]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode != 0
    assert [json.loads(line)["status"] for line in done.stdout.splitlines()] == ["out_of_memory"]


@pytest.mark.parametrize(
    ("arguments", "place", "message"),
    [
        (
            ["--device", "auto", "--devices", "cpu,cpu,cpu"],
            "error on rank ",  # whoever is first
            "devices: cpu,cpu,cpu names 3, but there are 2 workers; name one for each worker",
        ),
        (
            ["--model", f"{WORKLOADS}:refused_on_rank_one", "--model-args", "{}"],
            "error on rank 1: ",
            "only rank 1 finds fault",
        ),
    ],
)
def test_torchrun_says_an_error_once(arguments: list[str], place: str, message: str) -> None:
    command = [sys.executable, *TORCHRUN, "-m", "scalestudy.training", *ARGUMENTS, *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode != 0
    said = [line for line in done.stderr.splitlines() if message in line]
    assert len(said) == 1, done.stderr
    assert said[0].startswith(f"python -m scalestudy.training: {place}")


PROGRAM = """
import sys, torch
from tests.support.training.helpers import make_config
from scalestudy.training.distributed import Worker, start_process_group, stop_process_group
from scalestudy.training.loop.train import train

rank = int(sys.argv[1])
start_process_group(rank, 2, init_method=sys.argv[2], timeout_seconds=60)
config = make_config(model="lenet", model_args={}, data="digits", data_args={}, batch_size=320, epochs=2)
result = train(config, Worker(rank, 2, torch.device("cpu")))
stop_process_group()
"""


def test_a_process_that_has_trained_ends_well(tmp_path: Path) -> None:
    """Even one that still holds its result; a process group that outlives the interpreter would abort it."""
    command = [sys.executable, "-W", "error", "-c", PROGRAM]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    ranks = [
        subprocess.Popen([*command, str(rank), (tmp_path / "store").as_uri()], env=environment, stderr=subprocess.PIPE)
        for rank in (0, 1)
    ]
    errors = [process.communicate(timeout=100)[1] for process in ranks]
    assert [(process.returncode, error) for process, error in zip(ranks, errors, strict=True)] == [(0, b"")] * 2


@pytest.mark.chaos
def test_a_real_kill_under_torchrun(tmp_path: Path) -> None:
    """SIGKILL of the whole group while it trains; the same command goes on, and ends as an undisturbed one."""
    arguments = [
        "--model",
        "lenet",
        "--data",
        "digits",
        "--batch-size",
        "64",
        "--learning-rate",
        "0.1",
        "--epochs",
        "12",
        "--threads",
        "1",
        "--device",
        "cpu",
    ]
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node",
        "2",
        "-m",
        "scalestudy.training",
    ]
    store = ["--checkpoints", str(tmp_path / "checkpoints")]
    process = subprocess.Popen(
        [*command, *arguments, *store], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(3)]
    time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    resumed = subprocess.run([*command, *arguments, *store], capture_output=True, text=True, check=True).stdout
    whole = subprocess.run([*command, *arguments], capture_output=True, text=True, check=True).stdout
    assert [json.loads(line)["epoch"] for line in lines] == [1, 2, 3]
    assert curve(resumed) == curve(whole)
    assert len(curve(whole)) == 12


def curve(printed: str) -> list[tuple[float, float, float]]:
    """Losses and accuracies, epoch by epoch."""
    records = [json.loads(line) for line in printed.splitlines()]
    return [(r["train_loss"], r["test_loss"], r["test_accuracy"]) for r in records if "epoch" in r]
