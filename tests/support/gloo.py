"""One pool of gloo ranks for all collective tests: a function runs on the first k of them and gives a value a rank."""

from __future__ import annotations

import gc
import multiprocessing
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
    """Spawned processes that live as long as the pool; each job gets a process group of its own.

    A job's function is called as function(worker, *arguments), must be importable by name, and runs with one thread
    and with warnings as errors. A rank's exception is raised here, with its traceback.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._folder = tempfile.TemporaryDirectory(prefix="gloo-pool-")
        self._jobs = 0
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connections: list[Connection] = []
        self._processes = []
        for _ in range(self._size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self._connections.append(ours)
            self._processes.append(process)

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
        for connection, process in zip(self._connections, self._processes, strict=True):
            connection.close()
            process.kill()
            process.join()
        self._start()

    def close(self) -> None:
        """End the processes; raises RuntimeError if one did not end well, which a crash at exit would hide."""
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            process.join(timeout=EXIT_SECONDS)
            if process.is_alive():
                process.kill()
                process.join()
        self._folder.cleanup()
        codes = [process.exitcode for process in self._processes]
        if any(codes):
            raise RuntimeError(f"gloo pool: exit codes {codes}")


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
