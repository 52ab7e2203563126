"""Saved parameters, and states as bytes."""

from __future__ import annotations

import math
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from scalestudy.training.models import LeNet
from scalestudy.training.state import cpu_state, load_state, pack, save_state, unpack


def test_a_saved_model_loads_to_the_bit(tmp_path: Path) -> None:
    model, other = LeNet(10, 1), LeNet(10, 1)
    save_state(model, tmp_path / "model.pt")
    other.load_state_dict(load_state(tmp_path / "model.pt"))
    assert all(torch.equal(one, two) for one, two in zip(model.parameters(), other.parameters(), strict=True))
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt"]


def test_the_state_is_a_copy() -> None:
    model = LeNet(10, 1)
    state = cpu_state(model)
    with torch.no_grad():
        model[0].bias.fill_(7)
    assert state["0.bias"].max() == 0


def test_an_unwritable_path_is_a_value_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="can't write") as caught:
        save_state(LeNet(10, 1), tmp_path / "missing" / "model.pt")
    assert str(caught.value).endswith("/missing/model.pt: No such file or directory; choose another path")


def test_a_failure_inside_torch_save_is_a_value_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(state: object, file: object) -> None:
        raise RuntimeError(f"{file}: file write failed")

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(ValueError, match="can't write") as caught:
        save_state(LeNet(10, 1), tmp_path / "model.pt")
    assert ".model.pt." not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


class _Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (print, ("code from a file",))


@pytest.mark.parametrize("content", [b"", b"garbage", pickle.dumps(_Evil(), protocol=2)])
def test_what_holds_no_tensors_is_refused(tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.pt").write_bytes(content)
    with pytest.raises(ValueError, match="can't read"):
        load_state(tmp_path / "model.pt")
    assert "code from a file" not in capsys.readouterr().out


def test_a_missing_file_is_a_value_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="can't read"):
        load_state(tmp_path / "none.pt")


dtypes = st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool])
tensors = st.builds(
    lambda shape, dtype, seed: torch.from_numpy(np.random.default_rng(seed).integers(0, 200, shape)).to(dtype),
    st.lists(st.integers(0, 3), max_size=3).map(tuple),
    dtypes,
    st.integers(0, 2**32 - 1),
)
words = st.none() | st.booleans() | st.integers(-(2**100), 2**100) | st.floats(allow_nan=False) | st.text()
words |= st.complex_numbers(allow_nan=False) | st.binary(min_size=1)
words |= st.sampled_from([torch.float16, torch.device("cpu")])
leaves = words | st.sampled_from([math.nan, torch.Size([2, 3])]) | st.binary().map(bytearray) | tensors
states = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(words | st.tuples(words, words), inner, max_size=4)
        | st.sets(words, max_size=4)
    ),
    max_leaves=12,
)


def same(one: Any, other: Any) -> bool:
    """Whether two states are equal, types and NaN included."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other or (one != one and other != other)


@given(states)
def test_a_state_survives(state: Any) -> None:
    assert same(unpack(pack(state)), state)


def test_states_of_a_training_survive() -> None:
    model = LeNet(10, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    model(torch.rand(2, 1, 28, 28)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "random": torch.get_rng_state()}
    assert same(unpack(pack(state)), state)


def test_tied_weights_stay_tied() -> None:
    weight = nn.Parameter(torch.ones(3))
    again = unpack(pack({"one": weight, "other": weight}))
    assert type(again["one"]) is nn.Parameter
    assert again["one"].data_ptr() == again["other"].data_ptr()


class _Float(float):
    pass


@pytest.mark.parametrize(
    ("state", "place"),
    [
        ({"a": [1, np.float64(2)]}, "state['a'][1]: a numpy.float64"),
        ({"a": np.zeros(2)}, "state['a']: a numpy.ndarray"),
        ((_Float(1),), f"state[0]: a {__name__}._Float"),
        ({np.int64(1): 0}, "state: a key of type numpy.int64"),
        ({(1, _Float(2)): 0}, f"state: a key of type {__name__}._Float"),
        ([b""], "state[0]: an empty builtins.bytes"),
        ([frozenset()], "state[0]: a builtins.frozenset"),
        ({"a": LeNet}, "state['a']: a builtins.type"),
    ],
)
def test_what_could_not_be_read_again_is_not_written(state: Any, place: str) -> None:
    with pytest.raises(ValueError) as error:
        pack(state)
    assert str(error.value) == (
        f"{place} can't be in a checkpoint; turn it into tensors, numbers, strings, bytes, sets, lists or dicts"
    )


def test_types_that_only_torch_allows_are_refused_when_read(tmp_path: Path) -> None:
    torch.save({"layout": torch.strided}, tmp_path / "state.pt")
    with pytest.raises(ValueError, match=r"^state\['layout'\]: a torch.layout; resume from a checkpoint"):
        unpack((tmp_path / "state.pt").read_bytes())


@settings(max_examples=200)
@given(st.randoms(use_true_random=False))
def test_damaged_states_are_value_errors(chance: random.Random) -> None:
    """Here a change of the numbers alone may pass: the checksums of the manifest are what finds it."""
    data = bytearray(pack({"weights": torch.arange(3.0), "random": [1, (2.5, None)]}))
    for _ in range(chance.randrange(1, 4)):
        data[chance.randrange(len(data))] = chance.randrange(256)
    cut = bytes(data[: chance.choice([len(data), chance.randrange(len(data))])])
    try:
        unpack(cut)
    except ValueError as error:
        assert "\n" not in str(error)  # noqa: PT017 - it need not be raised


@pytest.mark.parametrize("data", [b"", b"garbage", b"PK\x03\x04", bytes(1_000)])
def test_what_is_no_state_is_refused(data: bytes) -> None:
    with pytest.raises(
        ValueError, match=rf"^state: {len(data)} bytes can't be read \(.*hold code; resume from a check"
    ):
        unpack(data)
