"""The suite's parts in their order. No torch here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Part:
    """One part: a function(settings, report), run in a process of its own."""

    function: str  # package.module:name
    title: str
    limit_seconds: float  # on a GPU and on a CPU alike; then its processes are killed


def _part(function: str, title: str, limit_seconds: float) -> Part:
    return Part(function=f"tests.gpu.{function}", title=title, limit_seconds=limit_seconds)


PARTS = {
    "training": _part("correctness:training", "trainings learn", 60),
    "resume": _part("correctness:resume", "a training goes on from its checkpoint as if it had not ended", 60),
    "bf16": _part("correctness:bf16", "bf16 computes in bfloat16 and updates in float32", 45),
    "tf32": _part("correctness:tf32", "fp32 is strict, and tf32 is not", 45),
    "out_of_memory": _part("memory:out_of_memory", "memory that runs out is a result, and the next trial trains", 60),
    "memory": _part("memory:returned", "a trial gives back all memory that it took", 90),
    "gloo": _part("ranks:gloo_on_one_device", "two workers on one device train like one", 120),
    "nccl": _part("ranks:nccl_alone", "every gradient strategy on NCCL, one worker", 60),
    "steady": _part("steps:steady", "a steady step never waits for the device", 60),
    "timing": _part("steps:timing", "the seconds of our records are those of CUDA's events", 45),
    "compile": _part("steps:compiled", "a compiled model trains alike, and compilations are not timed", 150),
    "lenet": _part("figures:lenet", "an epoch of LeNet", 100),
    "resnet18": _part("figures:resnet18", "an epoch of ResNet-18", 90),
    "time_to_93": _part("figures:time_to_93", "the time to 93 % of Fashion-MNIST", 100),
    "reduce_overhead": _part("figures:reduce_overhead", "eager steps against reduce-overhead", 120),
    "by_hand": _part("figures:against_by_hand", "our loop against a graphed loop written by hand", 100),
}
TOTAL_SECONDS = 540.0
"""Of the whole suite. A part that would begin later does not run."""
