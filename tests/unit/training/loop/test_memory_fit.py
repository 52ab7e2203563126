"""A model's memory: the parameter table, what training it takes, and the search for the largest batch."""

from __future__ import annotations

import json
import time
from dataclasses import asdict

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from scalestudy.training.config import OptimizerConfig
from scalestudy.training.data.loading import open_data
from scalestudy.training.exceptions import is_out_of_memory
from scalestudy.training.loop.memory_fit import (
    RESOLUTION,
    Memory,
    find_max_batch,
    inspect_config,
    inspect_model,
    largest_that_fits,
    optimizer_bytes,
)
from scalestudy.training.loop.train import train
from scalestudy.training.loop.trial import make_optimizer
from scalestudy.training.models import MLP
from tests.support.training.helpers import ALONE, FirstParameters, make_config

SGD = OptimizerConfig()


def test_a_row_tells_name_shape_count_mean_and_spread() -> None:
    layer = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, 2.0], [3.0, 6.0]]))
    (row,) = inspect_model(layer, SGD).parameters
    assert (row.name, row.shape, row.count, row.trained, row.shared_with) == ("weight", (2, 2), 4, True, ())
    assert row.mean == 3.0  # (1 + 2 + 3 + 6) / 4
    assert row.std == pytest.approx(3.5**0.5)  # (4 + 1 + 0 + 9) / 4


def test_a_shared_tensor_is_told_and_counted_once() -> None:
    found = inspect_model(MLP(3, 1, hidden=[4], image_size=2, shared=3), SGD)
    shared = {row.name: row.shared_with for row in found.parameters if row.shared_with}
    assert shared == {"3.weight": ("5.weight", "7.weight"), "3.bias": ("5.bias", "7.bias")}
    assert found.trained_numbers == (4 * 4 + 4) + (4 * 4 + 4) + (4 * 3 + 3)
    assert found.memory == Memory(parameters=220, gradients=220, optimizer=0, buffers=0)  # 55 numbers of 4 bytes


def test_frozen_parameters_take_no_gradient_and_no_optimizer_state() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    model[0].weight.requires_grad_(False)
    found = inspect_model(model, OptimizerConfig(momentum=0.9))
    assert [row.name for row in found.parameters if not row.trained] == ["0.weight"]
    assert (found.trained_numbers, found.frozen_numbers) == (12, 16)
    assert (found.buffer_tensors, found.buffer_numbers) == (3, 9)
    # running mean and variance in float32, one int64 count of batches
    assert found.memory == Memory(parameters=4 * 28, gradients=4 * 12, optimizer=4 * 12, buffers=4 * 8 + 8)


def test_an_empty_parameter_has_no_moments() -> None:
    model = nn.Module()
    model.none = nn.Parameter(torch.empty(0, 3))
    (row,) = inspect_model(model, SGD).parameters
    assert (row.count, row.mean, row.std) == (0, None, None)


@pytest.mark.parametrize(
    "config",
    [
        SGD,
        OptimizerConfig(momentum=0.9),
        OptimizerConfig(name="adam"),
        OptimizerConfig(name="adamw", weight_decay=0.1),
        OptimizerConfig(name="adam", amsgrad=True),
        OptimizerConfig(name="torch.optim:RMSprop"),
    ],
    ids=lambda config: f"{config.name} {config.momentum}{' amsgrad' * config.amsgrad}",
)
def test_the_optimizers_memory_is_what_it_keeps_after_a_step(config: OptimizerConfig) -> None:
    model = MLP(3, 1, hidden=[5], image_size=4, batch_norm=True)
    optimizer = make_optimizer(config, 0.1, model)
    model(torch.rand(4, 1, 4, 4)).sum().backward()
    optimizer.step()
    kept = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, torch.Tensor)]
    assert optimizer_bytes(config, model) == sum(value.numel() * value.element_size() for value in kept)


def test_what_is_shown_is_what_is_trained() -> None:
    config = make_config(model="lenet", model_args={"init": "xavier"}, seed=7)
    first = FirstParameters()
    train(config, ALONE, hooks=[first])
    found = inspect_config(config, open_data(config, ALONE))
    assert {row.name: row.shape for row in found.parameters} == {
        name: value.shape for name, value in first.state.items()
    }
    for row in found.parameters:
        assert row.mean == pytest.approx(first.state[row.name].mean(dtype="float64"), abs=1e-12)
        assert row.std == pytest.approx(first.state[row.name].std(dtype="float64"), abs=1e-12)
    other = make_config(model="lenet", model_args={"init": "xavier"}, seed=8)
    other_seed = inspect_config(other, open_data(other, ALONE))
    assert other_seed.parameters[0].mean != found.parameters[0].mean


def test_plain_data_survives_json() -> None:
    found = inspect_config(make_config(), open_data(make_config(), ALONE))
    plain = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert plain["memory"] == asdict(found.memory)
    assert plain["parameters"][0]["shape"] == [16, 784]
    assert plain["trained_numbers"] == found.trained_numbers == 784 * 16 + 16 + 16 * 10 + 10


MIB = 2**20
GIB = 2**30


@given(st.integers(0, 10_000), st.integers(1, 10_000))
def test_the_search_ends_at_the_limit(limit: int, most: int) -> None:
    asked: list[int] = []

    def fits(batch: int) -> bool:
        asked.append(batch)
        return batch <= limit

    found = largest_that_fits(fits, most)
    exact = min(limit, most)
    assert found <= exact <= found + found // RESOLUTION
    assert found == exact or exact >= RESOLUTION
    assert max(asked) <= most
    assert len(asked) == len(set(asked)) <= 2 * most.bit_length() + 1


@pytest.mark.slow
def test_a_step_that_fits_is_found_under_a_real_limit() -> None:
    """At some 0.2 MB an example."""
    config = make_config(model="tests.support.training.workloads:RoomyNet", model_args={})
    found = find_max_batch(config, ALONE, limit_bytes=540 * MIB, most=2**12)
    assert 256 < found.batch < 2**12
    assert not found.at_least
    assert any(not each.fits for each in found.tries)
    assert found.batch == max(each.batch for each in found.tries if each.fits)
    assert all(each.batch > found.batch for each in found.tries if not each.fits)
    assert found.limit_bytes == 540 * MIB


@pytest.mark.parametrize(
    ("limit", "message"), [(None, "a CPU needs a limit"), (2**26, "too little to load the data set")]
)
def test_a_limit_that_is_none_is_refused(limit: int | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find_max_batch(make_config(), ALONE, limit_bytes=limit)


def test_what_a_model_leaves_running_holds_no_try() -> None:
    config = make_config(model="tests.support.training.workloads:LeavingNet", model_args={})
    began = time.monotonic()
    assert find_max_batch(config, ALONE, limit_bytes=GIB, most=1).batch == 1
    assert time.monotonic() - began < 40, "LeavingNet's process lives for a minute"


def test_a_mistake_is_no_lack_of_memory() -> None:
    config = make_config(model="tests.support.training.workloads:RaisingNet", model_args={})
    with pytest.raises(ValueError, match="the user's own mistake"):
        find_max_batch(config, ALONE, limit_bytes=GIB)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried …"), True),
        (RuntimeError("CUDA out of memory. Tried to allocate"), True),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR"), False),
        (RuntimeError("CUDA driver error: out of memory"), True),
        (RuntimeError("Triton Error [CUDA]: out of memory"), True),
        (RuntimeError("NCCL error in: x.cpp:1\nLast error:\nCuda failure 2 'out of memory'"), True),
        (RuntimeError("NCCL error in: x.cpp:1\nLast error:\nCuda failure 700 'an illegal access'"), False),
        (RuntimeError("GET was unable to find an engine to execute this computation"), False),  # on a CPU
        (RuntimeError("could not create a primitive"), True),
        (RuntimeError("could not create a primitive descriptor for the convolution"), False),
        (RuntimeError("shapes do not fit"), False),
    ],
)
def test_what_counts_as_out_of_memory(error: Exception, expected: bool) -> None:
    assert is_out_of_memory(error) is expected


@pytest.mark.parametrize(
    ("free", "spare", "may_have", "expected"),
    [(1, 0, 100, True), (1, 9, 100, False), (10, 0, 100, False), (40, 0, 51, True), (40, 9, 51, False)],
)
def test_without_an_engine_it_depends_on_the_memory_left(
    free: int, spare: int, may_have: int, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 100 GiB, of which the allocator has 50 and may have so many."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free * GIB, 100 * GIB))
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda: may_have / 100)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 50 * GIB)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: (50 - spare) * GIB)
    error = RuntimeError("GET was unable to find an engine to execute this computation")
    assert is_out_of_memory(error) is expected


def test_a_lost_gpu_that_does_not_tell_its_memory_is_not_short_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost() -> None:
        raise RuntimeError("CUDA error: unspecified launch failure")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lost)
    assert not is_out_of_memory(RuntimeError("GET was unable to find an engine to execute this computation"))
