"""What is gained by running operations at the same time that do not depend on each other?

The book's "Automatic Parallelism": python docs/chapter/parallel.py [--device cpu] [--quick]

PyTorch parallelises within an operation. Between operations the program has to do it: by threads on a CPU, since
operations release Python's lock, and by streams on a GPU.
"""

import functools
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from lesson import begin, milliseconds, show
from torch.utils.benchmark import Timer

from scalestudy.training.device import usable_cores

Graph = Mapping[str, tuple[str, ...]]  # operation: those whose results it takes, all of them earlier in the mapping
Operations = Mapping[str, Callable[..., torch.Tensor]]
Results = dict[str, torch.Tensor]

INDEPENDENT: Graph = {f"op{number}": () for number in range(10)}
DEPENDENT: Graph = {
    **{"a": (), "b": (), "c": (), "d": ()},
    **{"e": ("a", "b"), "f": ("c", "d")},
    "g": ("e", "f"),
}
WORKS = {  # graph, size of the matrices, products one after the other in an operation
    "ten independent operations": (INDEPENDENT, 512, 4),
    "seven operations with dependencies": (DEPENDENT, 512, 4),
    "ten operations too small to gain": (INDEPENDENT, 8, 1),
}


def make_operations(graph: Graph, size: int, products: int, device: torch.device) -> Operations:
    """Make each operation a function of the results that it takes."""

    def operate(matrix: torch.Tensor, *inputs: torch.Tensor) -> torch.Tensor:
        result = sum(inputs, start=matrix)
        for _ in range(products):
            result = torch.mm(matrix, result)
        return result

    torch.manual_seed(0)
    return {name: functools.partial(operate, (torch.randn(size, size) / size**0.5).to(device)) for name in graph}


def run_in_turn(graph: Graph, operations: Operations) -> Results:
    """Run one operation after the other."""
    results: Results = {}
    for name, needed in graph.items():
        results[name] = operations[name](*(results[other] for other in needed))
    return results


def run_on_threads(pool: ThreadPoolExecutor, graph: Graph, operations: Operations) -> Results:
    """Run the operations on the pool's threads. An operation waits in its thread for those it needs.

    The pool begins operations in the order of the graph, the needed ones first, so even one thread comes to an end.
    """

    def operate(name: str, needed: list[Future[torch.Tensor]]) -> torch.Tensor:
        return operations[name](*(future.result() for future in needed))

    futures: dict[str, Future[torch.Tensor]] = {}
    for name, needed in graph.items():
        futures[name] = pool.submit(operate, name, [futures[other] for other in needed])
    return {name: future.result() for name, future in futures.items()}


def run_on_streams(graph: Graph, operations: Operations) -> Results:
    """Run each operation on a stream, which waits for the streams of those it needs."""
    caller, results = torch.cuda.current_stream(), Results()
    streams: dict[str, torch.cuda.Stream] = {}
    for name, needed in graph.items():
        streams[name] = torch.cuda.Stream()
        for other in (caller, *(streams[other] for other in needed)):
            streams[name].wait_stream(other)
        with torch.cuda.stream(streams[name]):
            results[name] = operations[name](*(results[other] for other in needed))
    for stream in streams.values():
        caller.wait_stream(stream)
    return results


def rounds(graph: Graph, workers: int) -> int:
    """Count the rounds of equally long operations if each worker takes the first operation that is ready."""
    done: set[str] = set()
    count = 0
    while len(done) < len(graph):
        ready = [name for name, needed in graph.items() if name not in done and done.issuperset(needed)]
        done.update(ready[:workers])
        count += 1
    return count


def seconds_of(call: Callable[[], object], quick: bool, threads: int = 1) -> float:
    """Measure the median of calls in which an operation has so many threads of PyTorch's."""
    timer = Timer("call()", globals={"call": call}, num_threads=threads)
    return timer.blocked_autorange(min_run_time=0.01 if quick else 2.0).median


def main() -> None:
    """Run the three graphs in turn and together."""
    device, quick = begin(__doc__)
    on_cuda = device.type == "cuda"
    cores = usable_cores()
    torch.set_num_threads(1)  # for the pool's threads too: they take over the number that holds when they start
    rows = []
    with ThreadPoolExecutor(cores) as pool:
        together = run_on_streams if on_cuda else functools.partial(run_on_threads, pool)
        for name, (graph, size, products) in WORKS.items():
            operations = make_operations(graph, min(size, 64) if quick else size, products, device)
            one, other = (functools.partial(way, graph, operations) for way in (run_in_turn, together))
            in_turn, at_once = seconds_of(one, quick), seconds_of(other, quick)
            all_threads = "-" if on_cuda else milliseconds(seconds_of(one, quick, cores))
            at_best = len(graph) / rounds(graph, len(graph) if on_cuda else cores)
            same = all(torch.equal(result, other()[key]) for key, result in one().items())
            times = (milliseconds(in_turn), all_threads, milliseconds(at_once))
            rows.append((name, *times, in_turn / at_once, at_best, "yes" if same else "no"))
    header = ("work", "in turn (ms)", "all threads (ms)", "together (ms)", "gain", "at best", "same results")
    show(f"In turn and together, on {'streams' if on_cuda else f'{cores} threads of one core each'}", header, rows)
    print("all threads: in turn, with PyTorch's own threads within each operation; the thing to beat")


if __name__ == "__main__":
    main()
