"""Stage 5, training loop: checkpoints in a byte store – written, found again, and forgotten.

Layout: `<number>/part-<rank>.pt` of each rank, `<number>/shared.pt` of rank 0, and `<number>/manifest.json` last, by
rank 0, once all ranks have said that theirs is written. What has no manifest is not there; no rename is needed, which
object stores don't have. A number is used once (`forget_newer` sees to that on resuming), so no file of a checkpoint
that is whole is ever written again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from training.checkpoint.byte_store import ByteStore
from training.checkpoint.manifest import MANIFEST, Manifest, PartSummary, check_part_name
from training.checkpoint.packing import unpack

_FILE = re.compile(r"(\d{8,})/.+")


class CheckpointError(ValueError):
    """A checkpoint that was not finished, or is damaged.

    Attributes:
        number: of the checkpoint.
        problem: what is wrong with it.
    """

    def __init__(self, number: int, problem: str) -> None:
        super().__init__(number, problem)
        self.number = number
        self.problem = problem

    def __str__(self) -> str:
        return f"checkpoint {self.number}: {self.problem}; resume again, from the one before"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint in a store, to be read part by part."""

    manifest: Manifest
    store: ByteStore
    held: dict[str, bytes] = field(default_factory=dict, repr=False)  # name -> bytes, already verified

    def read(self, name: str) -> Any:
        """The state in one part, verified; bytes that are held are let go.

        Raises CheckpointError if the part is damaged by now, ValueError if there is none or its bytes hold code.
        """
        data = self.held.pop(name, None)
        if data is None:
            data = _read_part(self.store, self.manifest, self.manifest.part(name))
        return unpack(data)


@dataclass(frozen=True)
class Search:
    """What `latest` found."""

    found: Checkpoint | None
    messages: tuple[str, ...]  # one line for each newer checkpoint that was passed over, newest first


def file_name(number: int, name: str) -> str:
    """A checkpoint's file in the store."""
    return f"{number:08d}/{name}"


def write_part(store: ByteStore, number: int, name: str, data: bytes) -> PartSummary:
    """Write one part, what `pack` gave, of checkpoint `number`. Any rank, at any time before the manifest.

    Raises ValueError for a bad name or number, OSError if the store fails.
    """
    check_part_name(name)
    if number < 0:
        raise ValueError(f"number: {number} is negative; count checkpoints from 0")
    store.write(file_name(number, name), data)
    return PartSummary.of(name, data)


def write_manifest(store: ByteStore, manifest: Manifest) -> None:
    """Make the checkpoint whole. Rank 0, after every part that the manifest names was written."""
    store.write(file_name(manifest.number, MANIFEST), manifest.to_bytes())


def latest(store: ByteStore, identity: str, hold: Collection[str] = ()) -> Search:
    """The newest checkpoint that is whole: its manifest is sound and every part has its size and checksum.

    Call it on rank 0 alone; the others take the number from there (`open_checkpoint`). So all resume from the same
    checkpoint without a vote, and its parts are read twice at most over all ranks: here, and verified once more by the
    rank that needs them. The alternative, each rank judging its own parts, reads them once but needs a round of
    collectives for each damaged checkpoint, and nobody would judge the parts of ranks that are gone when the world has
    shrunk. Parts named in `hold`, those that rank 0 will read itself, stay in memory and are read once; of the others,
    one at a time is in memory.

    Raises ValueError if the newest checkpoint with a sound manifest has another identity, OSError if the store fails:
    a store out of reach is no reason to go on from an older checkpoint.
    """
    messages: list[str] = []
    for number in sorted(_files_by_number(store), reverse=True):
        try:
            manifest = _read_manifest(store, number)
            _check_identity(manifest, identity)
            held = _verify(store, manifest, hold)
        except CheckpointError as error:
            messages.append(f"checkpoint {number} is passed over: {error.problem}")
        else:
            return Search(Checkpoint(manifest, store, held), tuple(messages))
    return Search(None, tuple(messages))


def open_checkpoint(store: ByteStore, number: int) -> Checkpoint:
    """A checkpoint that `latest` found on another rank. Raises CheckpointError if its manifest is no longer sound."""
    return Checkpoint(_read_manifest(store, number), store)


def forget_newer(store: ByteStore, number: int | None) -> None:
    """Delete what is newer than the checkpoint to go on from (None: everything), so that its numbers are free again.

    Rank 0, before any rank writes.
    """
    files = _files_by_number(store)
    _delete(store, [other for other in files if number is None or other > number])


def forget_old(store: ByteStore, keep: int = 2) -> None:
    """Delete all but the last `keep` checkpoints with a manifest, and what was left unfinished before the newest.

    Rank 0, after a manifest was written. Each manifest goes before its parts: a deletion cut short leaves what the next
    one takes away, never what looks whole. Raises ValueError if `keep` is less than 1.
    """
    if keep < 1:
        raise ValueError(f"keep: {keep} would delete the newest checkpoint; give at least 1")
    files = _files_by_number(store)
    finished = sorted(number for number, names in files.items() if file_name(number, MANIFEST) in names)
    unfinished = [number for number in files if number not in finished and number < max(finished, default=0)]
    _delete(store, [*finished[:-keep], *unfinished])


def _delete(store: ByteStore, numbers: Iterable[int]) -> None:
    for number in sorted(numbers):
        store.delete(file_name(number, MANIFEST))
        store.delete_folder(f"{number:08d}")


def _files_by_number(store: ByteStore) -> dict[int, list[str]]:
    """The names in the store by the number of the checkpoint that they belong to; others are not ours."""
    files: dict[int, list[str]] = {}
    for name in store.names():
        match = _FILE.fullmatch(name)
        if match and name == file_name(int(match[1]), name.partition("/")[2]):
            files.setdefault(int(match[1]), []).append(name)
    return files


def _read_manifest(store: ByteStore, number: int) -> Manifest:
    try:
        manifest = Manifest.from_bytes(_read(store, number, MANIFEST, "it was not finished"))
    except CheckpointError:
        raise
    except ValueError as error:
        raise CheckpointError(number, str(error)) from None
    if manifest.number != number:
        raise CheckpointError(number, f"{MANIFEST} is that of checkpoint {manifest.number}")
    return manifest


def _check_identity(manifest: Manifest, identity: str) -> None:
    if manifest.identity != identity:
        raise ValueError(
            f"checkpoint: {manifest.number} is of another training ({_difference(manifest.identity, identity)}); "
            "resume with the configuration that wrote it, or give an empty folder"
        )


def _difference(there: str, here: str) -> str:
    """Where two identities differ: field by field if both are JSON objects."""
    try:
        one, other = json.loads(there), json.loads(here)
        names = [name for name in sorted({*one, *other}) if one.get(name) != other.get(name)]
        return ", ".join(f"{name}: {one.get(name)!r} there, {other.get(name)!r} here" for name in names)
    except (ValueError, TypeError, AttributeError):
        return f"{there!r} there, {here!r} here"


def _verify(store: ByteStore, manifest: Manifest, hold: Collection[str]) -> dict[str, bytes]:
    """The bytes to hold, after all parts were read and compared."""
    held: dict[str, bytes] = {}
    for part in manifest.parts:
        data = _read_part(store, manifest, part)
        if part.name in hold:
            held[part.name] = data
    return held


def _read_part(store: ByteStore, manifest: Manifest, part: PartSummary) -> bytes:
    data = _read(store, manifest.number, part.name, f"{part.name} is missing")
    problem = part.problem_with(data)
    if problem is not None:
        raise CheckpointError(manifest.number, problem)
    return data


def _read(store: ByteStore, number: int, name: str, if_missing: str) -> bytes:
    try:
        return store.read(file_name(number, name))
    except FileNotFoundError:
        raise CheckpointError(number, if_missing) from None
