"""Synchronised batch normalisation: any split of a batch over workers gives what one device's BatchNorm gives."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from scalestudy.training.config import TrainConfig
from scalestudy.training.distributed import Worker
from scalestudy.training.loop.trial import start_trial
from scalestudy.training.models import ResNet18
from scalestudy.training.models.sync_batch_norm import (
    SynchronisedBatchNorm,
    convert_sync_batch_norm,
    sync_batch_norm_class,
)
from tests.support.gloo import GlooPool
from tests.support.training.helpers import (
    ALONE,
    largest_difference,
    make_config,
    run_training,
    same_bits,
    smallest_movement,
)

LAYERS: dict[str, tuple[type[nn.Module], tuple[int, ...]]] = {  # name: class, shape of an example
    "1d": (nn.BatchNorm1d, (3,)),
    "1d of sequences": (nn.BatchNorm1d, (3, 5)),
    "2d": (nn.BatchNorm2d, (3, 4, 2)),
    "3d": (nn.BatchNorm3d, (3, 2, 3, 2)),
}
SPLITS = [[12], [6, 6], [3, 9], [12, 0], [1, 11], [3, 3, 3, 3], [5, 0, 1, 6], [0, 0, 0, 12]]
TOLERANCE = 1e-10


def batch_of(layer: str) -> torch.Tensor:
    """12 examples in float64 whose mean is far from zero, so that a sum of squares would cancel."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(12, *LAYERS[layer][1], generator=generator, dtype=torch.float64) + 100.0


def outcome_of(model: nn.Module, batches: list[torch.Tensor]) -> dict[str, Any]:
    """Outputs of a step a batch, gradients of the last, and the buffers."""
    outputs = []
    for batch in batches:
        inputs = batch.clone().requires_grad_()
        model.zero_grad()
        outputs.append(model(inputs))
        (outputs[-1] ** 3).sum().backward()  # the gradient of each output is another
    return {
        "outputs": [output.detach() for output in outputs],
        "input gradient": inputs.grad,
        "gradients": {name: parameter.grad for name, parameter in model.named_parameters()},
        "buffers": {name: buffer.clone() for name, buffer in model.named_buffers()},
    }


def two_batches(layer: str) -> list[torch.Tensor]:
    return [batch_of(layer), batch_of(layer).flip(0) * 2.0 - 30.0]


def layer_of(layer: str, options: dict[str, Any]) -> nn.Module:
    module = LAYERS[layer][0](3, **options).double()
    if module.affine:
        nn.init.normal_(module.weight, generator=torch.Generator().manual_seed(2))
        nn.init.normal_(module.bias, generator=torch.Generator().manual_seed(3))
    return module


def synchronised(worker: Worker, layer: str, options: dict[str, Any], sizes: list[int]) -> dict[str, Any]:
    """This rank's outcome on its shard."""
    module = layer_of(layer, options)
    assert convert_sync_batch_norm(module, worker)
    shards = [batch.split(sizes)[worker.rank] for batch in two_batches(layer)]
    return outcome_of(module, shards)


OPTIONS: list[dict[str, Any]] = [
    {"momentum": None},
    {"momentum": 0.0},
    {"affine": False},
    {"track_running_stats": False},
    {"eps": 0.5},
]


@pytest.mark.parametrize(
    ("layer", "options", "sizes"),
    [
        *((layer, {}, sizes) for layer in LAYERS for sizes in SPLITS),
        *(("2d", options, [5, 0, 1, 6]) for options in OPTIONS),
    ],
    ids=str,
)
def test_any_split_gives_one_devices_numbers(
    ranks: GlooPool, layer: str, options: dict[str, Any], sizes: list[int]
) -> None:
    expected = outcome_of(layer_of(layer, options), two_batches(layer))
    per_rank = ranks.run(len(sizes), synchronised, layer, options, sizes)
    for step in range(2):
        outputs = torch.cat([rank["outputs"][step] for rank in per_rank])
        assert (outputs - expected["outputs"][step]).abs().max() < TOLERANCE
    gradients = torch.cat([rank["input gradient"] for rank in per_rank])
    assert (gradients - expected["input gradient"]).abs().max() < TOLERANCE
    for name, gradient in expected["gradients"].items():
        summed = sum(rank["gradients"][name] for rank in per_rank)
        assert (summed - gradient).abs().max() < TOLERANCE
    for rank in per_rank:
        assert rank["buffers"].keys() == expected["buffers"].keys()
        for name, buffer in expected["buffers"].items():
            assert (rank["buffers"][name] - buffer).abs().max() < TOLERANCE
            assert torch.equal(rank["buffers"][name], per_rank[0]["buffers"][name])


def test_the_backward_is_the_derivative_of_the_forward() -> None:
    module = layer_of("1d of sequences", {})
    convert_sync_batch_norm(module, Worker(0, 1, torch.device("cpu")))
    inputs = torch.randn(4, 3, 5, dtype=torch.float64, requires_grad=True)
    arguments = (inputs, module.weight, module.bias)
    assert torch.autograd.gradcheck(
        lambda *given: torch.func.functional_call(module, {"weight": given[1], "bias": given[2]}, given[0]), arguments
    )


def six_steps(**changes: Any) -> TrainConfig:
    """Two epochs of a network with batch normalisation, in float64."""
    values: dict[str, Any] = {
        "model": "tests.support.training.workloads:DoubleBatchNormNet",
        "model_args": {},
        "data_args": {"train_samples": 3 * 32 - 5, "test_samples": 32},
        "learning_rate": 0.1,
        "epochs": 2,
    }
    return make_config(**(values | changes))


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    """One worker's outcome."""
    return run_training(ALONE, six_steps())


@pytest.mark.parametrize(
    ("shards", "strategy"),
    [
        ((1.0, 1.0), "naive"),
        ((3.0, 1.0), "ddp"),
        ((1.0, 0.0), "naive"),
        ((1.0,) * 4, "ddp"),
        ((1.0, 0.0, 2.0, 1.0), "ddp"),
    ],
    ids=str,
)
def test_a_training_equals_one_workers(
    ranks: GlooPool, alone: dict[str, Any], shards: tuple[float, ...], strategy: str
) -> None:
    config = six_steps(shards=shards, gradient_sync=strategy, sync_batch_norm=True)
    replicas = ranks.run(len(shards), run_training, config)
    assert all(same_bits(replicas[0]["state"], replica["state"]) for replica in replicas)
    assert largest_difference(alone["state"], replicas[0]["state"]) < 1e-9
    assert smallest_movement(alone["first_state"], alone["state"]) > 1e-4
    for mine, expected in zip(replicas[0]["curve"], alone["curve"], strict=True):  # evaluated with running statistics
        assert mine == pytest.approx(expected, abs=1e-9)


def test_without_it_the_number_of_workers_shows(ranks: GlooPool, alone: dict[str, Any]) -> None:
    """So that the test above can fail."""
    replicas = ranks.run(2, run_training, six_steps())
    assert largest_difference(alone["state"], replicas[0]["state"]) > 1e-3


class ImageBatchNormNet(nn.Sequential):
    """Batch normalisation of images alone, which even one example has many values for."""

    def __init__(self, num_classes: int, in_channels: int) -> None:
        super().__init__(
            nn.Conv2d(in_channels, 4, 5, stride=3),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(3),
            nn.Flatten(),
            nn.Linear(36, num_classes),
        )


def test_a_micro_batch_without_any_example_changes_nothing(ranks: GlooPool) -> None:
    """The last batch has one example, which four micro-batches can't share; images have many values a channel."""
    config = six_steps(
        model=f"{__name__}:ImageBatchNormNet",
        data_args={"train_samples": 33, "test_samples": 8},
        accumulation=4,
        sync_batch_norm=True,
    )
    replicas = ranks.run(2, run_training, config)
    assert replicas[0]["status"] == "finished"
    assert same_bits(replicas[0]["state"], replicas[1]["state"])


def in_bfloat16(worker: Worker, is_synchronised: bool) -> tuple[torch.dtype, torch.Tensor, torch.Tensor]:
    """Outputs on this worker's part, and the gradient of the layer's weight."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4))
    inputs = torch.rand(8, 1, 6, 6) + 10.0
    if is_synchronised:
        convert_sync_batch_norm(model, worker)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = model(inputs.chunk(worker.world_size)[worker.rank])
    (outputs.float() ** 3).sum().backward()
    return outputs.dtype, outputs.float().detach(), model[1].weight.grad


def test_autocast_to_bfloat16_normalises_in_float32(ranks: GlooPool) -> None:
    _, expected, expected_gradient = in_bfloat16(ALONE, False)
    (first_type, first, first_gradient), (second_type, second, second_gradient) = ranks.run(2, in_bfloat16, True)
    assert {first_type, second_type} == {torch.bfloat16}
    assert (torch.cat([first, second]) - expected).abs().max() < 0.02  # up to 3, which bfloat16 holds to 1 in 128
    gradient = first_gradient + second_gradient
    assert torch.allclose(gradient, expected_gradient, rtol=0.02, atol=0.02 * gradient.abs().max())


def test_evaluation_is_pytorchs_own_and_needs_no_other_rank() -> None:
    plain = layer_of("2d", {})
    plain(batch_of("2d"))
    converted = copy.deepcopy(plain)
    convert_sync_batch_norm(converted, Worker(0, 2, torch.device("cpu")))  # there is no process group here
    before = converted.running_mean.clone()
    assert torch.equal(plain.eval()(batch_of("2d")), converted.eval()(batch_of("2d")))
    assert torch.equal(before, converted.running_mean)


def test_names_and_numbers_stay() -> None:
    model = ResNet18(10, 1)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert convert_sync_batch_norm(model, Worker(1, 2, torch.device("cpu")))
    assert list(model.state_dict()) == list(before)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    ResNet18(10, 1).load_state_dict(model.state_dict())


@pytest.mark.parametrize(
    ("backend", "fewest", "is_compiled", "expected"),
    [
        ("nccl", 1, False, nn.SyncBatchNorm),
        ("nccl", 0, False, SynchronisedBatchNorm),
        ("nccl", 1, True, SynchronisedBatchNorm),
        ("gloo", 16, False, SynchronisedBatchNorm),
        (None, 16, False, SynchronisedBatchNorm),
    ],
)
def test_pytorchs_layer_is_taken_on_nccl_where_every_worker_always_has_examples(
    backend: str | None, fewest: int, is_compiled: bool, expected: type[nn.Module]
) -> None:
    assert sync_batch_norm_class(backend, fewest, is_compiled=is_compiled) is expected


def layers_as_on_nccl(worker: Worker, **changes: Any) -> set[str]:
    """The layers' class in a trial whose group says that it is NCCL's."""
    values = {"model": "tests.support.training.workloads:BatchNormNet", "model_args": {}, "sync_batch_norm": True}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.distributed, "get_backend", lambda: "nccl")
        model = start_trial(make_config(**values, gradient_sync="flat", **changes), worker).model
    return {type(module).__name__ for module in model.modules() if isinstance(module, _BatchNorm)}


def layers_of_configs(worker: Worker, *all_changes: dict[str, Any]) -> list[set[str]]:
    return [layers_as_on_nccl(worker, **changes) for changes in all_changes]


def test_a_trial_knows_whether_every_micro_batch_has_examples(ranks: GlooPool) -> None:
    """256 examples in batches of 32, on two workers. Two micro-batches are made where a hook asks for them."""
    theirs, ours = {"SyncBatchNorm"}, {"SynchronisedBatchNorm"}
    cases: list[tuple[dict[str, Any], set[str]]] = [
        ({}, theirs),
        ({"shards": (15.0, 1.0)}, theirs),  # 30 and 2
        ({"shards": (31.0, 1.0)}, ours),  # 31 and 1
        ({"accumulation": 16}, theirs),
        ({"accumulation": 17}, ours),
        ({"data_args": {"train_samples": 35, "test_samples": 8}}, ours),  # the last batch: 2 and 1
        ({"data_args": {"train_samples": 36, "test_samples": 8}}, theirs),  # 2 and 2
    ]
    found = ranks.run(2, layers_of_configs, *(changes for changes, _ in cases))
    assert found == [[expected for _, expected in cases]] * 2


def test_pytorchs_layer_has_the_same_names_numbers_and_evaluation() -> None:
    """Its training needs CUDA."""
    model = ResNet18(10, 1)
    model(torch.rand(4, 1, 8, 8))
    before, modules = copy.deepcopy(model), dict(model.named_modules())
    assert convert_sync_batch_norm(model, ALONE, nn.SyncBatchNorm)
    assert all(modules[name] is module for name, module in model.named_modules())
    assert {type(module) for module in model.modules() if "BatchNorm" in type(module).__name__} == {nn.SyncBatchNorm}
    state, expected = model.state_dict(), before.state_dict()
    assert list(state) == list(expected)
    assert all(torch.equal(value, expected[name]) for name, value in state.items())
    inputs = torch.rand(4, 1, 8, 8)
    assert torch.equal(model.eval()(inputs), before.eval()(inputs))


def test_the_mean_of_all_batches_stays_ours() -> None:
    model = nn.Sequential(nn.BatchNorm1d(3, momentum=None), nn.BatchNorm1d(3), nn.SyncBatchNorm(3))
    convert_sync_batch_norm(model, ALONE, nn.SyncBatchNorm)
    assert [type(module) for module in model] == [SynchronisedBatchNorm, nn.SyncBatchNorm, nn.SyncBatchNorm]


def test_a_model_without_batch_normalisation_has_none_replaced() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.InstanceNorm1d(3))
    assert not convert_sync_batch_norm(model, Worker(0, 2, torch.device("cpu")))
    assert not any(isinstance(module, SynchronisedBatchNorm) for module in model.modules())


class UsersBatchNorm(nn.BatchNorm1d):
    """Somebody's own."""


def test_a_users_own_batch_normalisation_is_refused() -> None:
    model = nn.Sequential(nn.Linear(3, 3), UsersBatchNorm(3))
    with pytest.raises(
        ValueError, match="sync_batch_norm: 1 is a UsersBatchNorm, not one of PyTorch's own classes; use"
    ):
        convert_sync_batch_norm(model, Worker(0, 2, torch.device("cpu")))


def one_value_a_channel(worker: Worker) -> str:
    module = nn.BatchNorm1d(3)
    convert_sync_batch_norm(module, worker)
    try:
        module(torch.rand(1 - worker.rank, 3))
    except ValueError as error:
        return str(error)
    return "no error"


def test_a_batch_without_a_variance_is_refused_on_every_rank(ranks: GlooPool) -> None:
    expected = "batch_size: one value a channel in the global batch has no variance, which batch normalisation needs; "
    assert ranks.run(2, one_value_a_channel) == [f"{expected}choose a larger batch_size"] * 2


def test_inputs_of_another_shape_are_refused() -> None:
    module = nn.BatchNorm1d(3)
    convert_sync_batch_norm(module, Worker(0, 1, torch.device("cpu")))
    with pytest.raises(ValueError, match=r"inputs of shape \[2, 4\] are not \(n, 3, \.\.\.\)"):
        module(torch.rand(2, 4))
