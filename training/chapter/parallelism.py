"""`bench parallel`: what is gained by running operations together that do not depend on each other?

The book's "Automatic Parallelism". PyTorch parallelises within an operation. Between operations the program has to do
it: by threads on a CPU, since operations release Python's lock, and by streams on CUDA. Rejected: torch.jit.fork, which
is legacy.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from scalestudy.training.chapter.measuring import (
    Alive,
    Cell,
    Experiment,
    Table,
    intra_op_threads,
    median_seconds,
    milliseconds,
    usable_cores,
)

QUESTION = "What is gained by running independent operations at the same time?"

Graph = Mapping[str, tuple[str, ...]]
"""Operation -> the operations whose results it takes, all of them earlier in the mapping."""

Operation = Callable[..., torch.Tensor]
Results = dict[str, torch.Tensor]
Ways = Mapping[str, Callable[[Mapping[str, Operation]], Results]]
"""Name -> a way of running the graph's operations."""

INDEPENDENT: Graph = MappingProxyType({f"op{number}": () for number in range(10)})
DEPENDENT: Graph = MappingProxyType(
    {
        **{"a": (), "b": (), "c": (), "d": ()},
        **{"e": ("a", "b"), "f": ("c", "d")},
        "g": ("e", "f"),
    }
)


@dataclass(frozen=True)
class Work:
    """A graph in which every operation is a few matrix products."""

    graph: Graph
    size: int  # matrices are size × size
    products: int  # one after the other in an operation

    def operations(
        self, device: torch.device, watch: Callable[[torch.Tensor], torch.Tensor] = lambda tensor: tensor
    ) -> dict[str, Operation]:
        """Makes each operation a function of the results that it takes; `watch` sees every tensor that one makes."""

        def operate(matrix: torch.Tensor, *inputs: torch.Tensor) -> torch.Tensor:
            result = matrix
            for other in inputs:
                result = watch(result + other)
            for _ in range(self.products):
                result = watch(torch.mm(matrix, result))
            return result

        operations: dict[str, Operation] = {}
        for number, name in enumerate(self.graph):
            generator = torch.Generator().manual_seed(number)
            matrix = (torch.randn(self.size, self.size, generator=generator) / self.size**0.5).to(device)
            operations[name] = functools.partial(operate, matrix)
        return operations


FULL = {
    "ten independent operations": Work(INDEPENDENT, 512, 4),
    "seven operations with dependencies": Work(DEPENDENT, 512, 4),
    "ten operations too small to gain": Work(INDEPENDENT, 8, 1),
}
QUICK = {name: Work(work.graph, min(work.size, 64), 1) for name, work in FULL.items()}
WORDS = ("independent", "dependent", "small")  # of the metrics, in the order of FULL
ALL_THREADS = "in turn, all threads"


def run(device: torch.device, *, quick: bool = False) -> Experiment:
    """Runs three graphs in turn and together, and compares their results; on a CPU some seconds."""
    on_cuda, workers = device.type == "cuda", usable_cores()
    rows: list[tuple[Cell, ...]] = []
    metrics: dict[str, float] = {}
    for word, (name, work) in zip(WORDS, (QUICK if quick else FULL).items(), strict=True):
        compared = compare(work, device, workers, 3 if quick else 15)
        in_turn, together = compared.seconds["in turn"], compared.seconds["together"]
        wide = compared.seconds.get(ALL_THREADS)
        count, chain = len(work.graph), longest_chain(work.graph)
        rows.append(
            (
                name,
                f"{work.size} × {work.size}",
                count,
                chain,
                milliseconds(in_turn),
                None if wide is None else milliseconds(wide),
                milliseconds(together),
                in_turn / together,
                count / (chain if on_cuda else rounds(work.graph, workers)),
                compared.peak_bytes["in turn"] / 1024,
                compared.peak_bytes["together"] / 1024,
                "yes" if compared.same else "no",
            )
        )
        metrics[f"{word}_in_turn_seconds"] = in_turn
        metrics[f"{word}_together_seconds"] = together
        metrics[f"{word}_gain_ratio"] = in_turn / together
    header = (
        *("work", "matrices", "operations", "longest chain", "in turn (ms)", f"{ALL_THREADS} (ms)", "together (ms)"),
        *("gain", "at best", "memory in turn (KiB)", "memory together (KiB)", "same results"),
    )
    how = "CUDA streams" if on_cuda else f"{workers} threads of one core each"
    table = Table(f"In turn and together, on {how}", header, tuple(rows))
    if on_cuda:
        notes = (
            "Streams let kernels run side by side only where one of them leaves parts of the device idle; `at best` is "
            "operations ÷ longest chain, and a kernel that fills the device gains nothing.",
            "Operations too small to gain are bound by their launches, and events between streams add to these.",
        )
    else:
        notes = (
            f"`gain` is in turn on one core ÷ together on {workers}; `at best` counts rounds of equal operations on "
            f"{workers} workers. `in turn, all threads`: PyTorch's own parallelism within each operation, without a "
            "thread of ours: the thing to beat.",
            "Operations too small to gain: handing one to a thread takes longer than the operation itself.",
        )
    return Experiment("parallel", QUESTION, (table,), notes, metrics)


@dataclass(frozen=True)
class Compared:
    """One graph, run in each way."""

    seconds: dict[str, float]
    same: bool  # the results of all ways, to the bit
    peak_bytes: dict[str, int]  # of the tensors that the operations make


def compare(work: Work, device: torch.device, workers: int, repeats: int) -> Compared:
    """Measures the ways that the device has: streams on CUDA; on a CPU our threads, and PyTorch's own."""
    in_turn = functools.partial(run_in_turn, work.graph)
    if device.type == "cuda":
        on_streams = functools.partial(run_on_streams, work.graph, device)
        return _measure(work, {"in turn": in_turn, "together": on_streams}, device, repeats)
    # threads take over the number of intra-operator threads that holds when they start
    with intra_op_threads(1), ThreadPoolExecutor(workers) as pool:
        on_threads = functools.partial(run_on_threads, work.graph, pool)
        compared = _measure(work, {"in turn": in_turn, "together": on_threads}, device, repeats)
    with intra_op_threads(workers):
        operations = work.operations(device)
        wide = median_seconds({ALL_THREADS: lambda: in_turn(operations)}, device, repeats)
    return dataclasses.replace(compared, seconds={**compared.seconds, **wide})


def _measure(work: Work, ways: Ways, device: torch.device, repeats: int) -> Compared:
    operations = work.operations(device)
    calls = {name: functools.partial(way, operations) for name, way in ways.items()}
    seconds = median_seconds(calls, device, repeats)
    results = [call() for call in calls.values()]
    same = all(torch.equal(found[name], results[0][name]) for found in results for name in found)
    peaks: dict[str, int] = {}
    for name, way in ways.items():
        alive = Alive()
        way(work.operations(device, alive.watch))
        peaks[name] = alive.peak
    return Compared(seconds, same, peaks)


def run_in_turn(graph: Graph, operations: Mapping[str, Operation]) -> Results:
    """Runs one operation after the other; returns every operation's result."""
    results: Results = {}
    for name, needed in graph.items():
        results[name] = operations[name](*(results[other] for other in needed))
    return results


def run_on_threads(graph: Graph, pool: ThreadPoolExecutor, operations: Mapping[str, Operation]) -> Results:
    """Runs the operations on the pool's threads. An operation waits in its thread for those it needs.

    The pool begins operations in the order of the graph, the needed ones first. So even one thread comes to an end.
    """

    def operate(operation: Operation, needed: list[Future[torch.Tensor]]) -> torch.Tensor:
        return operation(*(future.result() for future in needed))

    futures: dict[str, Future[torch.Tensor]] = {}
    for name, needed in graph.items():
        futures[name] = pool.submit(operate, operations[name], [futures[other] for other in needed])
    return {name: future.result() for name, future in futures.items()}


def run_on_streams(graph: Graph, device: torch.device, operations: Mapping[str, Operation]) -> Results:
    """Runs each operation on a stream of its own, which waits for the streams of those it needs.

    Everything is handed over at once, and the caller's stream waits for all of it. torch.cpu has the same names and
    carries each call out at once.
    """
    streams: Any = torch.get_device_module(device)
    caller = streams.current_stream()
    results: Results = {}
    own: dict[str, Any] = {}
    for name, needed in graph.items():
        own[name] = streams.Stream()
        own[name].wait_stream(caller)
        for other in needed:
            own[name].wait_stream(own[other])
        with streams.stream(own[name]):
            results[name] = operations[name](*(results[other] for other in needed))
    for stream in own.values():
        caller.wait_stream(stream)
    return results


def longest_chain(graph: Graph) -> int:
    """Counts the operations of the longest chain, in which each needs the one before. No pool of workers is faster."""
    depth: dict[str, int] = {}
    for name, needed in graph.items():
        depth[name] = 1 + max((depth[other] for other in needed), default=0)
    return max(depth.values())


def rounds(graph: Graph, workers: int) -> int:
    """Counts the rounds of equally long operations if each worker takes the first operation that is ready."""
    done: set[str] = set()
    count = 0
    while len(done) < len(graph):
        ready = [name for name, needed in graph.items() if name not in done and done.issuperset(needed)]
        done.update(ready[:workers])
        count += 1
    return count
