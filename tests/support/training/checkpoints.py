"""Checkpoints of two ranks whose every part says where it comes from."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from scalestudy.training.checkpoint.byte_store import ByteStore, LocalByteStore
from scalestudy.training.checkpoint.files import (
    SHARED,
    Manifest,
    PartSummary,
    Search,
    forget_newer,
    forget_old,
    latest,
    part_name,
    write_manifest,
    write_part,
)
from scalestudy.training.state import pack

NAMES = (SHARED, part_name(0), part_name(1))
LENET = "lenet"


def state_in(name: str, number: int, life: int = 0, size: int = 4) -> dict[str, Any]:
    """A state that tells from which part, checkpoint and life of the training it comes."""
    return {"from": (name, number, life), "weights": torch.full((size,), float(number))}


def save(store: ByteStore, number: int, *, life: int = 0, identity: str = LENET, size: int = 4) -> None:
    """What two ranks do for a checkpoint, one after the other."""
    parts = [write_part(store, number, name, pack(state_in(name, number, life, size))) for name in NAMES]
    write_manifest(store, manifest_of(number, parts, identity))


def manifest_of(number: int, parts: Sequence[PartSummary], identity: str = LENET) -> Manifest:
    return Manifest(number=number, world_size=2, identity=identity, epoch=1, step=number, parts=tuple(parts))


def resume(store: ByteStore) -> int:
    """What rank 0 does at the start: the number of the next checkpoint."""
    found = latest(store, LENET).found
    newest = None if found is None else found.manifest.number
    forget_newer(store, newest)
    return 0 if newest is None else newest + 1


def write_for_ever(folder: str) -> None:
    """A process to be killed: some megabytes a checkpoint, so that it is mostly writing."""
    store = LocalByteStore(folder)
    for number in itertools.count(resume(store)):
        save(store, number, size=200_000)
        forget_old(store)


def origins(search: Search) -> set[tuple[str, int, int]]:
    """Where all parts of what was found come from."""
    assert search.found is not None
    return {search.found.read(name)["from"] for name in NAMES}


def numbers_in(store: ByteStore) -> set[int]:
    return {int(name.partition("/")[0]) for name in store.names()}
