"""One pool of gloo ranks for all collective tests: a function runs on the first k of them and gives a value a rank."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

START_SECONDS = 60.0
COLLECTIVE_SECONDS = 60.0
JOB_SECONDS = 120.0
DIED = "the process died"
SILENT = f"no answer within {START_SECONDS + JOB_SECONDS} s"
EXIT_SECONDS = 60.0  # a process that has imported much takes seconds to end, on a busy machine many


class GlooPool:
    """Processes that live as long as the pool; each job gets a process group of its own.

    A job's function is called as function(worker, *arguments), must be importable by name, and runs with one thread
    and with warnings as errors. A rank's exception is raised here, with its traceback. The ranks are forks of one
    process that has imported PyTorch: each import of its own would take three seconds of a core.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._folder = tempfile.TemporaryDirectory(prefix="gloo-pool-")
        self._jobs = 0
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        pipes = [context.Pipe() for _ in range(self._size)]
        self._connections: list[Connection] = [ours for ours, _ in pipes]
        self._parent = context.Process(target=_fork_ranks, args=([theirs for _, theirs in pipes],), daemon=True)
        self._parent.start()
        for _, theirs in pipes:
            theirs.close()

    def run(self, world_size: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """The values that function(worker, *arguments) returns on ranks 0 … world_size - 1."""
        self._jobs += 1
        store = Path(self._folder.name) / str(self._jobs)
        ranks = self._connections[:world_size]
        for rank, connection in enumerate(ranks):
            connection.send((function, arguments, rank, world_size, f"file://{store}"))
        outcomes = [_receive(connection, rank) for rank, connection in enumerate(ranks)]
        if any(outcome[1] in (DIED, SILENT) for outcome in outcomes if not outcome[0]):
            self._start_again()  # one lost rank must not fail every job that follows
        failures = [f"rank {rank}:\n{outcome[1]}" for rank, outcome in enumerate(outcomes) if not outcome[0]]
        if failures:
            raise RuntimeError("\n".join(failures))
        return [outcome[1] for outcome in outcomes]

    def _start_again(self) -> None:
        for connection in self._connections:
            connection.close()
        os.killpg(self._parent.pid, signal.SIGKILL)
        self._parent.join()
        self._start()

    def close(self) -> None:
        """End the processes; raises RuntimeError if one did not end well, which a crash at exit would hide."""
        for connection in self._connections:
            connection.close()
        self._parent.join(timeout=EXIT_SECONDS)
        if self._parent.is_alive():
            os.killpg(self._parent.pid, signal.SIGKILL)
            self._parent.join()
        self._folder.cleanup()
        if self._parent.exitcode:
            raise RuntimeError("gloo pool: a rank did not end well")


@contextmanager
def gloo_pool(size: int) -> Iterator[GlooPool]:
    """A pool for the time of a with block."""
    pool = GlooPool(size)
    try:
        yield pool
    finally:
        pool.close()


def _receive(connection: Connection, rank: int) -> tuple[bool, Any]:
    if not connection.poll(START_SECONDS + JOB_SECONDS):
        return False, SILENT
    try:
        return connection.recv()
    except EOFError:
        return False, DIED


def _fork_ranks(connections: list[Connection]) -> None:
    """Forks a rank for each connection, in a process group of their own; ends with them, 1 if one ended badly."""
    os.setpgid(0, 0)
    gc.disable()  # while so much is imported

    import scalestudy.training.loop.train  # noqa: F401

    gc.freeze()  # what is imported is never garbage: the collections as five processes end take seconds of a core
    gc.enable()
    ranks = []
    for mine in connections:
        rank = os.fork()
        if not rank:
            for other in connections:
                if other is not mine:
                    other.close()
            _serve(mine)
            sys.exit()
        ranks.append(rank)
    for connection in connections:
        connection.close()
    ends = [os.waitpid(rank, 0)[1] for rank in ranks]
    sys.exit(any(ends))


def _serve(connection: Connection) -> None:
    """A rank's life: run jobs until the pool closes its end."""
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "`torch.jit.script_method` is deprecated")  # torch.compile imports what uses it
    while True:
        try:
            job = connection.recv()
        except EOFError:
            return
        connection.send(_run(*job))


def _run(
    function: Callable[..., Any], arguments: tuple[Any, ...], rank: int, world_size: int, store: str
) -> tuple[bool, Any]:
    import torch
    import torch.distributed as dist

    from scalestudy.training.distributed import Worker, start_process_group, stop_process_group

    torch.set_num_threads(1)
    gc.freeze()  # modules are never garbage: the collection at a job's end looks at what the job has made
    try:
        start_process_group(rank, world_size, init_method=store, timeout_seconds=COLLECTIVE_SECONDS)
        if world_size > 1:
            dist.barrier()  # a job without collectives could else leave the group while another rank still joins it
        return True, function(Worker(rank, world_size, torch.device("cpu"), threads=1), *arguments)
    except BaseException:
        return False, traceback.format_exc()
    finally:
        stop_process_group()
