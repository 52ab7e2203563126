"""Gradients that are not finite stay out of the parameters, and no steady step waits for the device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from scalestudy.training.config import OptimizerConfig
from scalestudy.training.distributed import Worker
from scalestudy.training.gradient_sync.base import GradientSync
from scalestudy.training.loop.guard import Guard
from scalestudy.training.loop.hooks import Hook
from scalestudy.training.loop.train import train
from scalestudy.training.loop.trial import Trial
from scalestudy.training.registry import GRADIENT_SYNCS
from scalestudy.training.task import ShardLoss
from tests.support.gloo import GlooPool
from tests.support.training.helpers import ALONE, examples_task, make_config

NAN = float("nan")


def updates(optimizer: torch.optim.Optimizer, parameter: torch.nn.Parameter, gradients: list[float]) -> Iterator[float]:
    """The parameter after each step with that gradient, as the loop makes them."""
    guard = Guard(optimizer, ALONE)
    one = torch.ones(())
    for gradient in gradients:
        parameter.grad = torch.full_like(parameter, gradient)
        torch._amp_foreach_non_finite_check_and_unscale_([parameter.grad], guard.found, one)
        guard.update()
        yield parameter.item()


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_no_update_follows_the_first_gradient_that_is_not_finite(fused: bool, momentum: float) -> None:
    parameter = torch.nn.Parameter(torch.tensor([8.0]))
    optimizer = torch.optim.SGD([parameter], lr=1.0, momentum=momentum, fused=fused)
    seen = list(updates(optimizer, parameter, [1.0, 1.0, NAN, 1.0, 1.0]))
    assert seen[0] == 7.0
    assert seen[1:] == [7.0 - 1.0 - momentum] * 4


@pytest.mark.parametrize("fused", [True, False])
def test_a_first_step_that_is_not_finite_leaves_the_parameter(fused: bool) -> None:
    """PyTorch's fused SGD makes its first momentum of memory as it is: nothing may ever be updated with it."""
    parameter = torch.nn.Parameter(torch.tensor([8.0]))
    optimizer = torch.optim.SGD([parameter], lr=1.0, momentum=0.9, fused=fused)
    assert list(updates(optimizer, parameter, [NAN, 1.0, 1.0])) == [8.0] * 3


def test_a_look_tells_how_many_steps_are_skipped() -> None:
    parameter = torch.nn.Parameter(torch.tensor([8.0]))
    optimizer = torch.optim.Adam([parameter], lr=1.0, fused=True)
    guard = Guard(optimizer, ALONE)
    guard.update()
    assert guard.look() == 0
    guard.found.fill_(1)
    for _ in range(3):
        guard.update()
    assert guard.look() == 3


def looked(worker: Worker) -> tuple[int, list[bool]]:
    """Rank 1 alone skips two steps: what each rank is told, and when it is due to look again."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0, fused=True)
    guard = Guard(optimizer, worker)
    guard.found.fill_(worker.rank)
    for _ in range(2):
        guard.update()
    skipped = guard.look()
    return skipped, [guard.is_due() for _ in range(2)]


def test_all_ranks_are_told_the_most_that_one_has_skipped_and_look_again_together(ranks: GlooPool) -> None:
    first, second = ranks.run(2, looked)
    assert first == second
    assert first[0] == 2


@pytest.mark.filterwarnings("ignore:Complex modules")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64])
@pytest.mark.parametrize("value", [1e4, NAN, float("inf")])
def test_gradients_of_every_format_are_checked(dtype: torch.dtype, value: float) -> None:
    """PyTorch's check on a GPU has no kernel for bfloat16, and none for complex numbers."""
    model = torch.nn.Linear(3, 2).to(dtype)
    sync = GradientSync(ShardLoss(model, examples_task()), ALONE)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    model.weight.grad[1, 2] = value
    found = torch.zeros(())
    sync.check_finite(found)
    assert found.item() == (value != 1e4)
    assert model.weight.grad[0, 0] == 1


# --- nothing is read in a steady step -----------------------------------------------------------------------------


class NoRead(TorchDispatchMode):
    """Counts operations that wait for a GPU: a tensor's number, or a result whose size depends on numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        if name in ("_local_scalar_dense", "nonzero", "masked_select", "item"):
            self.reads.append(name)
        return function(*args, **(kwargs or {}))


class ReadsOf(Hook):
    """The operations of steps 5 to 7 that would wait, from the end of the step before."""

    def __init__(self) -> None:
        self.mode = NoRead()

    def train_starts(self, trial: Trial) -> None:
        trial.guard._pace.looked(8)  # its next look ends step 8

    def step_ends(self, trial: Trial, step: int) -> None:
        if trial.made == 4:
            self.mode.__enter__()
        elif trial.made == 7:
            self.mode.__exit__(None, None, None)


def reads(worker: Worker, options: dict[str, Any]) -> list[str]:
    """What a training with these options reads in its steady steps."""
    hook = ReadsOf()
    train(make_config(epochs=1, **options), worker, hooks=[hook])
    return hook.mode.reads


@pytest.mark.parametrize("strategy", sorted(GRADIENT_SYNCS))
def test_a_steady_step_reads_nothing_from_the_device(ranks: GlooPool, strategy: str) -> None:
    options = {"gradient_sync": strategy, "gradient_clip": 1.0, "accumulation": 2}
    assert ranks.run(2, reads, options) == [[], []]


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_no_built_in_optimizer_reads(name: str) -> None:
    assert reads(ALONE, {"optimizer": OptimizerConfig(name=name)}) == []


def test_a_task_with_weights_of_its_own_reads_nothing() -> None:
    options = {"task": "tests.support.training.tasks:Examples", "metric": "accuracy"}
    assert reads(ALONE, options) == []


def test_a_read_is_found() -> None:
    with NoRead() as mode:
        torch.ones(()).item()
        torch.ones(2).nonzero()
    assert mode.reads == ["_local_scalar_dense", "nonzero"]
