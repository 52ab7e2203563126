"""Ray's worker processes as forks of one process that has imported PyTorch already.

Importing PyTorch takes three seconds of a core, and a study of two sizes starts some twelve processes. Ray starts each
with the Python that started the cluster. Here a small script stands in its place: it hands arguments, environment and
output to the process that forks. From there on Ray's own `default_worker.py` runs, as without. Ray itself is imported
after the fork: its gRPC does not survive one.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

if TYPE_CHECKING:
    from scalestudy.orchestration.cluster.connection import Cluster

MODULES = (
    "torch._dynamo",
    "torch.nn.parallel",
    "torch.optim",
    "pandas",
    "pyarrow.compute",
    "pyarrow.fs",
    "pydantic",
    "aiohttp",
    "requests",
    "rich.console",
    "rich.progress",
    "google.protobuf.message",
    "google.protobuf.json_format",
    "fsspec",
    "click",
    "jsonschema",
    "yaml",
    "filelock",
    "scalestudy.orchestration.groups.actor",
    "scalestudy.orchestration.groups.worker",
    "scalestudy.training.loop.train",
    "scalestudy.training.data",
    "scalestudy.training.models",
    "tests.support.user_models",
)
SCRIPT = """\
#!{python} -IS
import json, os, socket, sys
arguments = sys.argv[1:]
if not any(each.endswith("default_worker.py") for each in arguments):
    os.execv({python!r}, [{python!r}, *arguments])
with socket.socket(socket.AF_UNIX) as forks:
    forks.connect({address!r})
    order = json.dumps([arguments, dict(os.environ), os.getcwd()]).encode()
    socket.send_fds(forks, [len(order).to_bytes(8, "big")], [0, 1, 2])
    forks.sendall(order)
    forks.recv(1)  # nothing comes: the connection ends with the worker
"""


@contextmanager
def preloaded_workers() -> Iterator[str]:
    """What to put in the place of `sys.executable` while a cluster starts: it has such workers until the block ends."""
    home = Path(tempfile.mkdtemp(prefix="preloaded-"))
    script, address = home / "python", str(home / "socket")
    script.write_text(SCRIPT.format(python=sys.executable, address=address), encoding="utf-8")
    script.chmod(0o700)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(64)
        number = listener.fileno()
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.preloaded", str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[number],
        )
    try:
        yield str(script)
    finally:
        process.communicate()
        shutil.rmtree(home, ignore_errors=True)


@contextmanager
def preloaded_cluster(num_cpus: int) -> Iterator[Cluster]:
    """A Ray of this process with such workers."""
    from scalestudy.orchestration.cluster.connection import connect  # not in the process that forks

    with preloaded_workers() as python:
        with mock.patch.object(sys, "executable", python):
            cluster = connect("local", num_cpus=num_cpus)
        yield cluster
        cluster.disconnect()


def serve(listener: socket.socket) -> None:
    """Imports, then forks a worker for each connection; ends with the process that writes to its standard input."""
    for module in MODULES:
        __import__(module)
    gc.freeze()  # no collection of a worker walks, and so copies, what it shares with this process
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps workers that have ended
    while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
        connection, _ = listener.accept()
        if os.fork() == 0:
            os.setpgid(0, 0)  # as Ray's own workers are: it ends what a worker leaves behind by its process group
            listener.close()
            become_worker(connection)
        connection.close()
    os._exit(0)  # nothing is kept here, and to take all these modules down takes a second


def become_worker(connection: socket.socket) -> None:
    """Runs what Ray's `setup_worker.py` and `default_worker.py` run, in this process."""
    head, descriptors, *_ = socket.recv_fds(connection, 8, 3)
    with connection.makefile("rb") as stream:
        arguments, environment, folder = json.loads(stream.read(int.from_bytes(head, "big")))
    for target, descriptor in enumerate(descriptors):
        os.dup2(descriptor, target)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.chdir(folder)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    from ray._private.runtime_env.context import RuntimeEnvContext
    from ray._private.utils import update_envs

    parser = ArgumentParser()
    parser.add_argument("--serialized-runtime-env-context", default="{}")
    parser.add_argument("--language")
    known, rest = parser.parse_known_args(arguments)
    update_envs(RuntimeEnvContext.deserialize(known.serialized_runtime_env_context).env_vars)
    sys.argv = rest[next(number for number, each in enumerate(rest) if each.endswith("default_worker.py")) :]
    sys.path.insert(0, str(Path(sys.argv[0]).parent))
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    else:
        code = 0
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # to take all these modules down takes a second


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
