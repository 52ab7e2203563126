"""Batches of any form: tensors in dicts, tuples, lists and dataclasses, nested as a user's data set gives them.

Rejected: `torch.utils._pytree`, which is private and knows neither dataclasses nor mappings of other types, such as a
tokenizer's `BatchEncoding`.

Shapes: N examples in a batch, the first dimension of each of its tensors.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from scalestudy.training.exceptions import InputError

Tree = Any
"""A tensor, or a mapping, tuple, list or dataclass of trees. Values of other types are kept as they are."""


def mapped(function: Callable[[torch.Tensor], torch.Tensor], tree: Tree) -> Tree:
    """Return a tree of the same form and types, each tensor replaced by the function's value."""
    if isinstance(tree, torch.Tensor):
        return function(tree)
    if isinstance(tree, tuple | list):
        parts = [mapped(function, part) for part in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    if isinstance(tree, Mapping):
        parts_by_key = {key: mapped(function, part) for key, part in tree.items()}
        if type(tree) is dict or not isinstance(tree, dict | UserDict):
            return parts_by_key
        filled = copy.copy(tree)  # it may keep more than its items
        for key, value in parts_by_key.items():  # some mappings refuse `update`, such as a `ModelOutput`
            filled[key] = value
        return filled
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        fields = [field.name for field in dataclasses.fields(tree) if field.init]
        return dataclasses.replace(tree, **{name: mapped(function, getattr(tree, name)) for name in fields})
    return tree


def tensors(tree: Tree) -> Iterator[tuple[str, torch.Tensor]]:
    """Return the tree's tensors with their places, such as `["text"]["ids"]`, `[0]` or `.mask`."""
    return ((place, leaf) for place, leaf in _leaves(tree) if isinstance(leaf, torch.Tensor))


def form(tree: Tree) -> list[tuple[str, Any]]:
    """Return the places of the tree's leaves, with a tensor's shape and dtype, and any other leaf itself."""
    return [
        (place, (leaf.shape, leaf.dtype) if isinstance(leaf, torch.Tensor) else leaf) for place, leaf in _leaves(tree)
    ]


def arrays(tree: Tree) -> Iterator[str]:
    """Return the places of what is an array of numbers, and no tensor."""
    return (place for place, leaf in _leaves(tree) if hasattr(leaf, "__array__") and not isinstance(leaf, torch.Tensor))


def _leaves(tree: Tree) -> Iterator[tuple[str, Any]]:
    parts: Iterator[tuple[str, Tree]]
    if isinstance(tree, torch.Tensor):
        yield "", tree  # asked first, since most are, and every step asks
        return
    if isinstance(tree, tuple | list):
        parts = ((f"[{index}]", part) for index, part in enumerate(tree))
    elif isinstance(tree, Mapping):
        parts = ((f"[{key!r}]", part) for key, part in tree.items())
    elif dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        parts = ((f".{field.name}", getattr(tree, field.name)) for field in dataclasses.fields(tree))
    else:
        yield "", tree
        return
    for place, part in parts:
        for rest, leaf in _leaves(part):
            yield place + rest, leaf


def count(batch: Tree) -> int:
    """Return N, by the first tensor. Raises InputError for a batch without tensors."""
    first = batch[0] if type(batch) is tuple and batch else batch  # most batches are tuples, and every step asks
    if isinstance(first, torch.Tensor) and first.dim():
        return first.shape[0]
    for place, tensor in tensors(batch):
        if tensor.dim() == 0:
            raise InputError(f"data: batch{place} is a single number", "give each tensor a row an example")
        return tensor.shape[0]
    raise InputError("data: a batch has no tensors", "let the data set's examples, or its collate, give tensors")


def check_rows(batch: Tree, examples: int, what: str) -> Tree:
    """Return the batch. Raises InputError unless it has tensors, each with a row an example. `what` names it there."""
    places = list(tensors(batch))
    if not places:
        raise InputError(f"data: a {what} batch has no tensors", "let the examples, or collate, give tensors")
    for place, tensor in places:
        if tensor.dim() == 0 or len(tensor) != examples:
            raise InputError(
                f"data: batch{place} of the {what} set has shape {tuple(tensor.shape)} for {examples} examples",
                "give each tensor of a batch one row an example; pad ragged ones in collate, and keep what is no row "
                "as a number",
            )
    return batch


def split(batch: Tree, sizes: Sequence[int]) -> list[Tree]:
    """Return the batch in pieces of these sizes, which sum to N; views of its tensors."""
    if len(sizes) == 1:
        return [batch]
    ends = [sum(sizes[: index + 1]) for index in range(len(sizes))]
    return [part(batch, end - size, end) for size, end in zip(sizes, ends, strict=True)]


def part(batch: Tree, start: int, stop: int) -> Tree:
    """Return the examples start … stop - 1, a view."""
    return mapped(lambda tensor: tensor[start:stop], batch)


def rows(batch: Tree, chosen: torch.Tensor) -> Tree:
    """Return a batch of the chosen examples, (k,) int64 on the tensors' device."""
    return mapped(lambda tensor: tensor.index_select(0, chosen), batch)


def moved(batch: Tree, device: torch.device) -> Tree:
    """Return the batch on the device; from pinned memory without waiting."""
    return mapped(lambda tensor: tensor.to(device, non_blocking=True), batch)
