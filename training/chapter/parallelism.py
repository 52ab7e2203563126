"""Stage 5, training loop: `bench parallel` – operations that do not wait for each other, in turn and together.

The book's "Automatic Parallelism". PyTorch parallelises within an operation by itself; between operations it leaves it
to the program: threads on a CPU (operations release Python's lock), streams on CUDA. Rejected: torch.jit.fork, legacy.
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

QUESTION = "What is gained by running operations that do not depend on each other together?"

Graph = Mapping[str, tuple[str, ...]]
"""Operation -> those whose results it takes, all of them earlier in the mapping."""

Operation = Callable[..., torch.Tensor]
Results = dict[str, torch.Tensor]
Ways = Mapping[str, Callable[[Mapping[str, Operation]], Results]]
"""Name -> a way of running the graph's operations."""

Watch = Callable[[torch.Tensor], torch.Tensor]

INDEPENDENT: Graph = MappingProxyType({f"op{number}": () for number in range(10)})
DEPENDENT: Graph = MappingProxyType(
    {
        **{"a": (), "b": (), "c": (), "d": ()},
        **{"e": ("a", "b"), "f": ("c", "d")},
        "g": ("e", "f"),
    }
)


def _as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


@dataclass(frozen=True)
class Work:
    """A graph whose every operation is a few matrix products."""

    graph: Graph
    size: int  # matrices are size × size
    products: int  # a product after the other in one operation

    def operations(self, device: torch.device, watch: Watch = _as_it_is) -> dict[str, Operation]:
        """Each operation as a function of the results that it takes; `watch` sees every tensor that one makes."""
        return {name: self._operation(number, device, watch) for number, name in enumerate(self.graph)}

    def _operation(self, number: int, device: torch.device, watch: Watch) -> Operation:
        generator = torch.Generator().manual_seed(number)
        matrix = (torch.randn(self.size, self.size, generator=generator) / self.size**0.5).to(device)

        def operate(*inputs: torch.Tensor) -> torch.Tensor:
            result = matrix
            for other in inputs:
                result = watch(result + other)
            for _ in range(self.products):
                result = watch(torch.mm(matrix, result))
            return result

        return operate


FULL = {
    "ten independent operations": Work(INDEPENDENT, 512, 4),
    "seven operations with dependencies": Work(DEPENDENT, 512, 4),
    "ten operations too small to gain": Work(INDEPENDENT, 8, 1),
}
QUICK = {name: Work(work.graph, min(work.size, 64), 1) for name, work in FULL.items()}
ALL_THREADS = "in turn, all threads"
WORDS = ("independent", "dependent", "small")  # of the metrics, in the order of FULL


def run(device: torch.device, *, quick: bool = False) -> Experiment:
    """Three graphs, each in turn and together, with equal results; on a CPU some seconds."""
    workers = usable_cores()
    repeats = 3 if quick else 15
    rows: list[tuple[Cell, ...]] = []
    metrics: dict[str, float] = {}
    for word, (name, work) in zip(WORDS, (QUICK if quick else FULL).items(), strict=True):
        compared = compare(work, device, workers, repeats)
        rows.append(_row(name, work, device, workers, compared))
        in_turn, together = compared.seconds["in turn"], compared.seconds["together"]
        metrics[f"{word}_in_turn_seconds"] = in_turn
        metrics[f"{word}_together_seconds"] = together
        metrics[f"{word}_gain_ratio"] = in_turn / together
    return Experiment("parallel", QUESTION, (_table(device, workers, rows),), _notes(device, workers), metrics)


@dataclass(frozen=True)
class Compared:
    """One graph, run in each way."""

    seconds: dict[str, float]
    same: bool  # the results of all ways, to the bit
    peak_bytes: dict[str, int]  # of the tensors that the operations make


def compare(work: Work, device: torch.device, workers: int, repeats: int) -> Compared:
    """The ways that the device has, one after the other."""
    if device.type == "cuda":
        return _measure(work, {"in turn": functools.partial(run_in_turn, work.graph),
                               "together": functools.partial(run_on_streams, work.graph, device)},
                        device, repeats)  # fmt: skip
    # threads take over the number of intra-operator threads that holds when they start
    with intra_op_threads(1), ThreadPoolExecutor(workers) as pool:
        ways: Ways = {
            "in turn": functools.partial(run_in_turn, work.graph),
            "together": functools.partial(run_on_threads, work.graph, pool),
        }
        compared = _measure(work, ways, device, repeats)
    with intra_op_threads(workers):
        operations = work.operations(device)
        wide = median_seconds({ALL_THREADS: lambda: run_in_turn(work.graph, operations)}, device, repeats)
    return dataclasses.replace(compared, seconds={**compared.seconds, **wide})


def _measure(work: Work, ways: Ways, device: torch.device, repeats: int) -> Compared:
    operations = work.operations(device)
    calls = {name: functools.partial(way, operations) for name, way in ways.items()}
    seconds = median_seconds(calls, device, repeats)
    results = [call() for call in calls.values()]
    same = all(torch.equal(found[name], results[0][name]) for found in results for name in found)
    return Compared(seconds, same, {name: _peak(work, way, device) for name, way in ways.items()})


def _peak(work: Work, way: Callable[[Mapping[str, Operation]], Results], device: torch.device) -> int:
    alive = Alive()
    way(work.operations(device, alive.watch))
    return alive.peak


def run_in_turn(graph: Graph, operations: Mapping[str, Operation]) -> Results:
    """Every operation's result, one operation after the other."""
    results: Results = {}
    for name, needed in graph.items():
        results[name] = operations[name](*(results[other] for other in needed))
    return results


def run_on_threads(graph: Graph, pool: ThreadPoolExecutor, operations: Mapping[str, Operation]) -> Results:
    """The same on the pool's threads. An operation waits in its thread for those it needs.

    They were handed over before it, and the pool begins in that order, so that even one thread comes to an end.
    """
    futures: dict[str, Future[torch.Tensor]] = {}
    for name, needed in graph.items():
        futures[name] = pool.submit(_after, operations[name], [futures[other] for other in needed])
    return {name: future.result() for name, future in futures.items()}


def _after(operation: Operation, needed: list[Future[torch.Tensor]]) -> torch.Tensor:
    return operation(*(future.result() for future in needed))


def run_on_streams(graph: Graph, device: torch.device, operations: Mapping[str, Operation]) -> Results:
    """The same, each operation on a stream of its own that waits for the events of those it needs.

    Everything is handed over at once and the caller's stream waits for all of it. (torch.cpu has the same names, and
    carries each call out at once.)
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
    """Operations of which each needs the one before: no number of workers is faster than these."""
    depth: dict[str, int] = {}
    for name, needed in graph.items():
        depth[name] = 1 + max((depth[other] for other in needed), default=0)
    return max(depth.values())


def rounds(graph: Graph, workers: int) -> int:
    """Rounds of equally long operations in which so many workers finish, each taking the first that is ready."""
    done: set[str] = set()
    count = 0
    while len(done) < len(graph):
        ready = [name for name, needed in graph.items() if name not in done and done.issuperset(needed)]
        done.update(ready[:workers])
        count += 1
    return count


def _row(name: str, work: Work, device: torch.device, workers: int, compared: Compared) -> tuple[Cell, ...]:
    chain, count = longest_chain(work.graph), len(work.graph)
    at_best = chain if device.type == "cuda" else rounds(work.graph, workers)
    seconds, peaks = compared.seconds, compared.peak_bytes
    wide = seconds.get(ALL_THREADS)
    return (
        *(name, f"{work.size} × {work.size}", count, chain),
        *(milliseconds(seconds["in turn"]), None if wide is None else milliseconds(wide)),
        *(milliseconds(seconds["together"]), seconds["in turn"] / seconds["together"], count / at_best),
        *(peaks["in turn"] / 1024, peaks["together"] / 1024, "yes" if compared.same else "no"),
    )


def _table(device: torch.device, workers: int, rows: list[tuple[Cell, ...]]) -> Table:
    how = "CUDA streams" if device.type == "cuda" else f"{workers} threads of one core each"
    header = (
        *("work", "matrices", "operations", "longest chain", "in turn (ms)", f"{ALL_THREADS} (ms)", "together (ms)"),
        *("gain", "at best", "memory in turn (KiB)", "memory together (KiB)", "same results"),
    )
    return Table(f"In turn and together, on {how}", header, tuple(rows))


def _notes(device: torch.device, workers: int) -> tuple[str, ...]:
    if device.type == "cuda":
        return (
            "Streams let kernels run side by side only where one of them leaves parts of the device idle; `at best` is "
            "operations ÷ longest chain, and a kernel that fills the device gains nothing.",
            "Operations too small to gain are bound by their launches, and events between streams add to these.",
        )
    return (
        f"`gain` is in turn on one core ÷ together on {workers}; `at best` counts rounds of equal operations on "
        f"{workers} workers. `in turn, all threads`: PyTorch's own parallelism within each operation, without a thread "
        "of ours: the thing to beat.",
        "Operations too small to gain: handing one to a thread takes longer than the operation itself.",
    )
