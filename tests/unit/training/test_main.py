"""`python -m scalestudy.training`, alone and under torchrun."""

from __future__ import annotations

import errno
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from scalestudy.training import __main__ as entry
from scalestudy.training.__main__ import main
from scalestudy.training.backend import Gpu, machine
from scalestudy.training.config import TrainConfig
from scalestudy.training.device import has_precision
from scalestudy.training.section import ConfigError
from scalestudy.training.state import load_state

WORKLOADS = "tests.support.training.workloads"


ARGUMENTS = [
    "--model",
    "mlp",
    "--model-args",
    '{"hidden": [16]}',
    "--data",
    "digits",
    "--batch-size",
    "100",
    "--learning-rate",
    "0.1",
    "--epochs",
    "2",
    "--threads",
    "1",
    "--device",
    "cpu",
]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]


def run(*command: str) -> list[dict[str, Any]]:
    """The JSON lines of a program that must end well and keep its standard output clean."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "terminate" not in done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_torchrun_prints_the_same_records_as_one_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Losses are sums in another order; accuracies of 360 examples may differ by one."""
    assert main([*ARGUMENTS, "--save-model", str(tmp_path / "alone.pt")]) == 0
    alone = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    together = run(*TORCHRUN, "-m", "scalestudy.training", *ARGUMENTS, "--save-model", str(tmp_path / "together.pt"))
    assert len(alone) == len(together) == 3
    for one, two in zip(alone[:2], together[:2], strict=True):
        assert one.keys() == two.keys()
        assert [one[name] for name in ("epoch", "steps", "samples")] == [
            two[name] for name in ("epoch", "steps", "samples")
        ]
        assert one["train_loss"] == pytest.approx(two["train_loss"], rel=1e-4)
        assert one["test_loss"] == pytest.approx(two["test_loss"], rel=1e-4)
        assert one["test_accuracy"] == pytest.approx(two["test_accuracy"], abs=1.01 / 360)
        assert two["replica_max_diff"] == 0.0
    assert alone[2]["status"] == together[2]["status"] == "finished"
    states = [load_state(tmp_path / name) for name in ("alone.pt", "together.pt")]
    assert all(torch.allclose(states[0][name], states[1][name], atol=1e-4) for name in states[0])


def test_main_prints_records_and_a_last_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ARGUMENTS, "--optimizer", "adamw", "--gradient-clip", "1", "--gradient-sync", "naive"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["epoch"] for line in lines[:2]] == [1, 2]
    assert lines[2]["last_test_accuracy"] == lines[1]["test_accuracy"]


def test_every_option_reaches_the_training(capsys: pytest.CaptureFixture[str]) -> None:
    """Each in a way that can be seen in what is printed."""
    options = [
        "--lr-rule",
        "sqrt",
        "--base-batch-size",
        "25",
        "--warmup-epochs",
        "0.5",
        "--schedule",
        "cosine",
        "--accumulation",
        "2",
        "--channels-last",
        "auto",
        "--precision",
        "bf16" if has_precision("bf16", torch.device("cpu")) else "fp32",
        "--augment",
        "crop_flip",
        "--loss",
        "mse",
        "--metric",
        "mse",
        "--noise-scale",
        "--sync-batch-norm",
        "--shards",
        "speed",
    ]
    assert main([*ARGUMENTS, *options]) == 0
    printed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    first, second, last = [json.loads(line) for line in printed]
    assert min(first["test_mse"], second["test_mse"]) > 0
    assert first["grad_trace_cov"] is not None
    # 15 steps an epoch: 8 of warm-up, then half a cosine over 22; the epoch's last update is the 7th of them
    assert first["learning_rate"] == pytest.approx(0.1 * 2 * (1 + math.cos(math.pi * 6 / 22)) / 2)
    assert last["details"].keys() == {"channels_last"}
    assert last["last_test_mse"] == second["test_mse"]


@pytest.mark.parametrize(("workers", "code"), [("1", 0), ("2", 3)])
def test_without_memory_one_of_several_workers_fails(
    workers: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Under NCCL the others would wait for a rank that ends as if all were well."""

    def train(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(entry, "_train", train)
    monkeypatch.setenv("WORLD_SIZE", workers)
    assert main(ARGUMENTS) == code
    assert json.loads(capsys.readouterr().out)["status"] == "out_of_memory"


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_gpu_that_fails_is_told_in_one_line(
    workers: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def train(*arguments: object) -> None:
        raise RuntimeError("CUDA error: unspecified launch failure\nFor debugging consider CUDA_LAUNCH_BLOCKING=1")

    monkeypatch.setattr(entry, "_train", train)
    monkeypatch.setenv("WORLD_SIZE", workers)
    assert main(ARGUMENTS) == 1
    told = "rank 0 ends because its GPU failed: CUDA error: unspecified launch failure"
    assert capsys.readouterr().err == f"python -m scalestudy.training: {told}\n"


def test_code_that_exits_does_not_look_like_a_training_that_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUITS", "exits_zero")
    with pytest.raises(RuntimeError, match="SystemExit: 0"):
        main([*ARGUMENTS, "--loss", "tests.support.quitting:loss"])


def test_a_diverged_training_is_a_result(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ARGUMENTS, "--learning-rate", "1e30"]) == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last["status"] == "diverged"
    assert last["last_test_accuracy"] is None
    assert "epoch 1" in last["message"]


def too_few_outputs(num_classes: int, in_channels: int) -> nn.Module:
    """One class is missing."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784 * in_channels, num_classes - 1))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "mnist", "--data-root", "/nowhere"], "run `scalestudy data fetch mnist`"),
        (["--batch-size", "2000"], "batch_size: 2000 is more than the 1437"),
        (["--device", "tpu"], "device: 'tpu' is not known"),
        (["--threads", "-1"], "threads: -1"),
        (["--threads", "0"], "threads: 0 is less than 1"),
        (["--timeout-seconds", "nan"], "timeout_seconds: nan is not a valid timeout; choose a number above 0"),
        (["--timeout-seconds", "1e300"], "timeout_seconds: 1e+300"),
        (["--save-model", "/nonexist/x.pt"], "save_model: /nonexist/x.pt: there is no folder /nonexist; make it"),
        (["--save-model", "/"], "save_model: /: it is a folder; name a file in it"),
        (
            ["--model", f"{__name__}:too_few_outputs", "--model-args", "{}"],
            "model: outputs (100, 9) do not fit 10 classes; make its last layer give 10 outputs",
        ),
        (["--device", "cpu", "--devices", "cpu"], "device: cpu and devices cpu are both given"),
        (["--checkpoints", "/dev/null/x"], "checkpoints: /dev/null/x"),
    ],
)
def test_bad_input_is_one_message_and_exit_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*ARGUMENTS, *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert len(captured.err.splitlines()) == 1


def test_what_the_config_refuses_is_shown_in_its_words(capsys: pytest.CaptureFixture[str]) -> None:
    """Text that has no value too. What is bad, the table says: tests/unit/experiments/spec/bad_input.txt."""
    bad = {
        "model": "lenat",
        "model_args": [1],
        "data_args": "{",
        "optimizer": {"name": "adam", "betas": "a,b"},
        "lr_rule": "adascale",
        "shards": [0.9, 0.3],
        "checkpoint_every": -1,
        "seed": "many",
    }
    options = "--model lenat --model-args [1] --data-args { --optimizer adam --betas a,b --lr-rule adascale"
    options += " --shards 0.9,0.3 --checkpoint-every -1 --seed many"
    with pytest.raises(ConfigError) as caught:
        TrainConfig.from_dict({"batch_size": 100, "learning_rate": 0.1, **bad})
    assert len(caught.value.problems) == 8
    assert main([*ARGUMENTS, *options.split()]) == 2
    assert capsys.readouterr() == ("", f"python -m scalestudy.training: error: {caught.value}\n")


@pytest.mark.parametrize("arguments", [["--x"], ["--threads", "many"], ["--checkpoint-every-steps", "-1"]])
def test_arguments_that_do_not_parse_exit_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*ARGUMENTS, *arguments])
    assert ended.value.code == 2
    assert "error: " in capsys.readouterr().err


def test_a_rank_that_lacks_a_device_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("LOCAL_RANK", "2")
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert main([*ARGUMENTS, "--device", "cuda"]) == 2
    assert "error on rank 2: device: no CUDA device 2 among 2; start fewer workers" in capsys.readouterr().err


class GroupStartsError(Exception):
    """In place of a process group: there is no GPU."""


def started(rank: int, gpus: list[str | None], arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """The backend of the group that this rank starts, or the exit status in its place.

    gpus: by rank, the GPU's uuid; None for a CPU. A rank sees one device, its own.
    """
    from scalestudy.training import distributed

    store = dist.HashStore()
    for other, uuid in enumerate(gpus):
        names = [] if uuid is None else sorted(Gpu(uuid=uuid, pci=f"of {uuid}").names(machine()))
        if other != rank:
            store.set(f"scalestudy/gathered/0/{other}", json.dumps(names))
    facts = SimpleNamespace(uuid=gpus[rank], pci_domain_id=0, pci_bus_id=7, pci_device_id=0)
    seen: list[str] = []

    def start_process_group(*_: object, backend: str, **__: object) -> None:
        seen.append(backend)
        raise GroupStartsError

    for name, value in (("RANK", rank), ("LOCAL_RANK", rank), ("WORLD_SIZE", len(gpus))):
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus[rank] is not None)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: {"cuda:0": facts}[str(device)])
    monkeypatch.setattr(distributed, "store_of_environment", lambda *_: store)
    monkeypatch.setattr(distributed, "start_process_group", start_process_group)
    try:
        return f"exit {main([*ARGUMENTS, '--device', 'auto', *arguments])}"
    except GroupStartsError:
        return seen[0]


SHARED = ["--devices", "cuda:0,cuda:0"]
NOT_OWN = "python -m scalestudy.training: gloo sums the gradients, since not every worker has a GPU of its own\n"


@pytest.mark.parametrize(
    ("rank", "gpus", "arguments", "backend", "said"),
    [
        (0, ["A", "B"], [], "nccl", ""),
        (1, ["A", "B"], [], "nccl", ""),
        (0, ["A", "A"], SHARED, "gloo", NOT_OWN),
        (1, ["A", "A"], SHARED, "gloo", ""),  # rank 0 says it
        (0, ["A", "B"], SHARED, "nccl", ""),  # of two machines
        (0, [None, "A"], [], "gloo", NOT_OWN),
        (0, [None, None], [], "gloo", ""),
    ],
)
def test_workers_with_a_gpu_each_get_nccl_and_others_gloo(
    rank: int,
    gpus: list[str | None],
    arguments: list[str],
    backend: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Also where a launcher shows each worker its own GPU alone."""
    assert started(rank, gpus, arguments, monkeypatch) == backend
    assert capsys.readouterr().err == said


def test_workers_that_share_a_gpu_unasked_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert started(1, ["A", "B", "A", "B"], [], monkeypatch) == "exit 2"
    told = "ranks 0 and 2 have the same GPU; start fewer workers, or name each one's device by --devices"
    assert capsys.readouterr().err.startswith(f"python -m scalestudy.training: error on rank 1: device: {told}")


def test_a_model_that_cannot_be_saved_does_not_lose_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The disk is full only when the training is over."""
    monkeypatch.setattr(torch, "save", _raise_disk_full)
    assert main([*ARGUMENTS, "--save-model", str(tmp_path / "model.pt")]) == 2
    captured = capsys.readouterr()
    assert json.loads(captured.out.splitlines()[-1])["status"] == "finished"
    path = tmp_path / "model.pt"
    expected = f"model state: can't write {path}: No space left on device; choose another path"
    assert captured.err == f"python -m scalestudy.training: error: {expected}\n"
    assert list(tmp_path.iterdir()) == []


def _raise_disk_full(*arguments: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_no_cuda_device_is_a_clear_refusal(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has one")
    assert main([*ARGUMENTS, "--device", "cuda"]) == 2
    assert "error: device: CUDA does not work: " in capsys.readouterr().err
