"""Who this process is among the workers, and the few collectives that it needs.

World size 1 needs no process group: every function here then answers without communication.
"""

from __future__ import annotations

import datetime
import gc
import hashlib
import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from scalestudy.training.exceptions import InputError

LONGEST_TIMEOUT_SECONDS = 1e9  # a backend counts nanoseconds in 64 bits
LONGEST_CALLBACK_SECONDS = 1.0  # for a communication hook's callback to end once its result is ready
ONLY_HERE = 2  # references to an object that one local variable holds: the variable, and getrefcount's argument
PACKED_BYTES = 2**26  # of tensors that travel in one broadcast
LOCAL_TIMEOUT_SECONDS = 120.0  # of a collective in `on_ranks`


@dataclass(frozen=True)
class Worker:
    """One rank of a data-parallel training, with its own device."""

    rank: int  # 0 … world_size - 1
    world_size: int  # workers that train together
    device: torch.device
    threads: int = 1  # intra-operator threads of this process, on the CPU

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise InputError(f"rank: {self.rank} is not in 0 … {self.world_size - 1}", "correct rank or world size")
        if self.threads < 1:
            raise InputError(f"threads: {self.threads} is less than 1", "give each worker at least one")


def start_process_group(
    rank: int,
    world_size: int,
    *,
    init_method: str | None = None,
    store: dist.Store | None = None,
    backend: str = "gloo",
    device: torch.device | None = None,
    timeout_seconds: float = 1800.0,
) -> None:
    """Join the default process group of `world_size` ranks; for world size 1 do nothing.

    `init_method` is a URL such as tcp://10.0.0.1:29500 or file:///shared/file; None reads MASTER_ADDR and MASTER_PORT
    from the environment. A `store` replaces it. `device`: this rank's, for NCCL. `timeout_seconds` bounds the wait in
    one collective. Raises ValueError for a bad timeout, RuntimeError or torch.distributed.DistStoreError if the ranks
    don't meet in that time.
    """
    timeout = _timeout(timeout_seconds)
    if world_size == 1:
        return
    dist.init_process_group(
        backend,
        init_method=init_method,
        store=store,
        rank=rank,
        world_size=world_size,
        timeout=timeout,
        device_id=device if backend == "nccl" else None,
    )


def _timeout(seconds: float) -> datetime.timedelta:
    """Return the timeout. Raises InputError for one that no backend takes."""
    if not 0 < seconds <= LONGEST_TIMEOUT_SECONDS:
        remedy = f"choose a number above 0, at most {LONGEST_TIMEOUT_SECONDS:g}"
        raise InputError(f"timeout_seconds: {seconds} is not a valid timeout", remedy)
    return datetime.timedelta(seconds=seconds)


def store_of_environment(rank: int, world_size: int, timeout_seconds: float) -> dist.Store:
    """Open the store by which ranks meet at MASTER_ADDR and MASTER_PORT: torchrun's, or one that rank 0 serves.

    Raises ValueError for a bad timeout, RuntimeError or torch.distributed.DistStoreError if the ranks don't meet.
    """
    store, _, _ = next(dist.rendezvous("env://", rank, world_size, timeout=_timeout(timeout_seconds)))
    return store


def gather_by_store(text: str, store: dist.Store, rank: int, world_size: int) -> list[str]:
    """Return every rank's text, by rank, on every rank, before there is a process group. For one exchange a start."""
    key = f"scalestudy/gathered/{_attempt()}"
    store.set(f"{key}/{rank}", text)
    return [store.get(f"{key}/{each}").decode() for each in range(world_size)]


def _attempt() -> str:
    """Return how often torchrun has started the workers again: its store outlives a restart."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")


def store_at(address: str, port: int, rank: int, world_size: int, timeout_seconds: float) -> dist.Store:
    """Open the store by which ranks meet. Rank 0 serves it, at this address and no other.

    PyTorch's own `tcp://…` would listen on every interface of the machine, and the store obeys whoever connects.
    Raises OSError if the port is taken, torch.distributed.DistStoreError if the ranks don't meet.
    """
    served: int | None = None
    if rank == 0:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listening = socket.create_server((address, port), family=family, backlog=max(128, world_size))
        served = listening.detach()  # the store closes it
    timeout = datetime.timedelta(seconds=timeout_seconds)
    return dist.TCPStore(address, port, world_size, is_master=rank == 0, timeout=timeout, master_listen_fd=served)


def stop_process_group(*, abort: bool = False) -> None:
    """Leave the default process group, if there is one.

    `abort`: this rank has failed. NCCL would first wait for collectives that the other ranks are not to end.

    First collect garbage, since DistributedDataParallel is full of reference cycles. The remains of a training would
    keep the group's threads alive until the interpreter ends. It then aborts ("terminate called without an active
    exception"). Then wait until this thread alone holds the group. A thread of the group that ran a communication
    hook's callback could otherwise release it last, wait for itself and abort ("Resource deadlock avoided").
    """
    if dist.is_available() and dist.is_initialized():
        gc.collect()
        group = dist.group.WORLD
        if abort and group is not None and dist.get_backend() == "nccl":
            group.abort()
        dist.destroy_process_group()
        deadline = time.monotonic() + LONGEST_CALLBACK_SECONDS
        while sys.getrefcount(group) > ONLY_HERE and time.monotonic() < deadline:
            time.sleep(0.001)


def is_first_to_say(text: str) -> bool:
    """Return whether this rank is the first to ask about this text, by the store of the torchrun that started it.

    True without torchrun, and if its store does not answer: better an error twice than never. It needs no process
    group, since a rank that fails early never joins one.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return True
    try:
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = dist.TCPStore(address, port, is_master=False, timeout=datetime.timedelta(seconds=10))
        return store.add(f"scalestudy/said/{_attempt()}/{text}", 1) == 1
    except (RuntimeError, KeyError, ValueError):
        return True


def check_process_group(worker: Worker) -> None:
    """Raise ValueError if the worker's rank and world size differ from the process group's."""
    if worker.world_size == 1:
        return
    if not dist.is_initialized():
        raise InputError(f"world_size: {worker.world_size} workers need a process group", "call start_process_group")
    found = (dist.get_rank(), dist.get_world_size())
    if found != (worker.rank, worker.world_size):
        raise ValueError(f"worker: {(worker.rank, worker.world_size)} is not the process group's (rank, size) {found}")


def gather_rows(row: Sequence[float] | torch.Tensor, worker: Worker) -> list[list[float]]:
    """Return every rank's row of numbers, by rank; rows of one length. Whole numbers are exact to 2**53.

    A tensor's numbers are gathered where they are, and read from the device once, as rows.
    """
    mine = torch.as_tensor(row, dtype=torch.float64, device=worker.device)
    if worker.world_size == 1:
        return [mine.tolist()]
    mine = carried(mine)
    rows = [torch.empty_like(mine) for _ in range(worker.world_size)]
    dist.all_gather(rows, mine)
    gathered: list[list[float]] = torch.stack(rows).tolist()
    return gathered


def gather_texts(text: str, worker: Worker) -> list[str]:
    """Return every rank's text, by rank, on every rank. The texts may have different lengths."""
    if worker.world_size == 1:
        return [text]
    data = text.encode()
    lengths = [int(row[0]) for row in gather_rows([len(data)], worker)]
    padded = torch.tensor(list(data.ljust(max(*lengths, 1))), dtype=torch.uint8, device=worker.device)
    mine = carried(padded)
    rows = [torch.empty_like(mine) for _ in range(worker.world_size)]
    dist.all_gather(rows, mine)
    return [bytes(row[:length].tolist()).decode() for row, length in zip(rows, lengths, strict=True)]


def carried(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor, or its copy on the CPU if the backend is gloo.

    On a GPU gloo has broadcast and allreduce alone. Gather, all-gather, send and receive go through the CPU, so ranks
    on a GPU and on a CPU can share a group.
    """
    return tensor.cpu() if dist.get_backend() == "gloo" else tensor


def broadcast_from_first(tensors: Iterable[torch.Tensor], worker: Worker) -> None:
    """Overwrite each tensor with rank 0's, in place; by one collective if they are less than `PACKED_BYTES`."""
    if worker.world_size == 1:
        return
    for tensor, theirs in _with_those_of_first(tensors):
        tensor.copy_(theirs)


def replicate(module: nn.Module, worker: Worker) -> None:
    """Give every rank rank 0's parameters and buffers. Buffers that differ in form stay as they are.

    Raises InputError, on every rank, for a parameter whose name, shape or dtype differs by rank.
    """
    if worker.world_size == 1:
        return
    parameters, forms = _forms(module.named_parameters(), worker)
    for rank, theirs in enumerate(forms):
        if odd := sorted(theirs ^ forms[0]):
            name, shape, dtype = json.loads(odd[0])
            owner = rank if odd[0] in theirs else 0
            raise InputError(
                f"model: rank {owner} alone has a parameter {name} of shape {shape} and {dtype}",
                "build the same model on every rank",
            )
    ordered = [parameters[form] for form in sorted(parameters)]
    broadcast_from_first((*ordered, *equal_in_form(module.named_buffers(), worker)), worker)


def equal_in_form(named: Iterable[tuple[str, torch.Tensor]], worker: Worker) -> list[torch.Tensor]:
    """Return the tensors that every rank has under the same name, in the same shape and dtype, in one order on all.

    Only these may go into a collective: buffers grow, come and go with the examples that a rank has seen. Tensors that
    are not dense stay out.
    """
    mine, forms = _forms(named, worker)
    return [mine[form] for form in sorted(set.intersection(*forms))]


def _forms(named: Iterable[tuple[str, torch.Tensor]], worker: Worker) -> tuple[dict[str, torch.Tensor], list[set[str]]]:
    """Return this rank's dense tensors by name, shape and dtype in one text, and every rank's texts.

    By one small collective; a second one where ranks differ.
    """
    mine = {
        json.dumps([name, list(tensor.shape), str(tensor.dtype)]): tensor
        for name, tensor in named
        if tensor.layout is torch.strided and not tensor.is_quantized
    }
    text = json.dumps(sorted(mine))
    digest = int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big")  # a row carries 53 bits
    if len({row[0] for row in gather_rows([digest], worker)}) == 1:
        return mine, [set(mine)] * worker.world_size
    return mine, [set(json.loads(theirs)) for theirs in gather_texts(text, worker)]


def largest_difference_from_first(tensors: Iterable[torch.Tensor], worker: Worker) -> float:
    """Return max |mine - rank 0's| over all elements: 0.0 only if the replicas are equal; NaN or infinity if some is.

    By one collective if the tensors are less than `PACKED_BYTES`.
    """
    if worker.world_size == 1:
        return 0.0
    largest = torch.zeros((), device=worker.device)
    for tensor, theirs in _with_those_of_first(tensors):
        if tensor.numel():
            largest = torch.maximum(largest, (tensor - theirs).abs().max())
    return largest.item()


def _with_those_of_first(tensors: Iterable[torch.Tensor]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield each tensor with rank 0's of the same place, dtype and shape.

    They travel as the bytes of one buffer after another, each of at most `PACKED_BYTES`, or one tensor.
    """
    group: list[torch.Tensor] = []
    size = 0  # bytes
    for tensor in tensors:
        if group and size + tensor.nbytes > PACKED_BYTES:
            yield from _broadcast_as_one(group)
            group, size = [], 0
        group.append(tensor.detach())
        size += tensor.nbytes
    if group:
        yield from _broadcast_as_one(group)


def _broadcast_as_one(tensors: Sequence[torch.Tensor]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield each tensor with rank 0's. Large elements come first, so that each begins at a multiple of its size."""
    ordered = sorted(tensors, key=torch.Tensor.element_size, reverse=True)
    packed = torch.cat([tensor.flatten().contiguous().view(torch.uint8) for tensor in ordered])
    dist.broadcast(packed, src=0)
    for tensor, piece in zip(ordered, packed.split([tensor.nbytes for tensor in ordered]), strict=True):
        yield tensor, piece.view(tensor.dtype).view(tensor.shape)


def synchronise_device(device: torch.device) -> None:
    """Wait until the device has finished its work; a CPU always has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def on_ranks(world_size: int, function: Callable[..., Any], *arguments: Any, backend: str = "gloo") -> list[Any]:
    """Call function(worker, *arguments) on spawned ranks 0 … world_size - 1 of this machine; return their values.

    The ranks share a process group. The function must be importable by name. A rank has one thread. With `nccl` it has
    the CUDA device of its number, otherwise the CPU. Raises what the lowest failing rank raised, BrokenProcessPool if
    a rank died.
    """
    with (
        tempfile.TemporaryDirectory(prefix="ranks-") as folder,
        ProcessPoolExecutor(world_size, mp_context=get_context("spawn")) as pool,
    ):
        meeting = (world_size, str(Path(folder) / "store"), backend)
        futures = [pool.submit(_serve_rank, function, rank, meeting, arguments) for rank in range(world_size)]
        return [future.result() for future in futures]


def _serve_rank(
    function: Callable[..., Any], rank: int, meeting: tuple[int, str, str], arguments: tuple[Any, ...]
) -> Any:
    """Do one rank's part. Block until all have met, so that no process of the pool takes two parts."""
    world_size, store, backend = meeting
    torch.set_num_threads(1)
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    meeting_place = dist.FileStore(store, world_size)  # a URL would cut a path at ? and #
    start_process_group(rank, world_size, store=meeting_place, backend=backend, timeout_seconds=LOCAL_TIMEOUT_SECONDS)
    try:
        return function(Worker(rank, world_size, device), *arguments)
    finally:
        stop_process_group()
