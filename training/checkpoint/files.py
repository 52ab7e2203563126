"""A checkpoint's files: how they are written, found, checked and deleted.

Layout: `<number>/part-<rank>.pt` of each rank, `<number>/shared.pt` of rank 0, and last `<number>/manifest.json`. Rank
0 writes the manifest once all ranks have said that their parts are written. A checkpoint exists only after its
manifest, so no rename is needed, which object stores don't have. A number is used once (`forget_newer` frees numbers on
resuming), so no file of a whole checkpoint is ever written again.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from scalestudy.training.checkpoint.byte_store import ByteStore, is_name
from scalestudy.training.exceptions import InputError
from scalestudy.training.state import unpack

FORMAT = 1  # of the manifest and of the files' layout; raise it if an older program can't read a new checkpoint
MANIFEST = "manifest.json"
SHARED = "shared.pt"
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


def part_name(rank: int) -> str:
    """Return the name of a rank's own part."""
    return f"part-{rank}.pt"


def check_part_name(name: str) -> None:
    """Raise ValueError unless a file of a checkpoint may have this name."""
    if not is_name(name) or "/" in name or name == MANIFEST:
        raise InputError(
            f"name: {name!r} is not a part's name", f"use {SHARED!r}, part_name(rank) or a plain file name"
        )


@dataclass(frozen=True)
class PartSummary:
    """What distinguishes one file of a checkpoint from any other bytes."""

    name: str  # within the checkpoint
    size_bytes: int
    sha256: str  # 64 hexadecimal digits

    @classmethod
    def of(cls, name: str, data: bytes) -> PartSummary:
        """Summarise these bytes."""
        return cls(name, len(data), hashlib.sha256(data).hexdigest())

    def problem_with(self, data: bytes) -> str | None:
        """Return how the bytes differ from those that were summarised; None if they don't."""
        if len(data) != self.size_bytes:
            return f"{self.name} has {len(data)} bytes, not {self.size_bytes}"
        if PartSummary.of(self.name, data) != self:
            return f"{self.name} has another checksum than when it was written"
        return None


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What is needed to check and read a checkpoint's other files. Raises ValueError for unfit values."""

    number: int  # grows from checkpoint to checkpoint of a training; no number is used twice
    world_size: int  # ranks that wrote it
    identity: str  # equal for the same model, data and parameters; a training resumes only from its own
    epoch: int  # position in the data: the epoch, from 1
    step: int  # and how many of its steps are done
    parts: tuple[PartSummary, ...]

    def __post_init__(self) -> None:
        for name, least in {"number": 0, "world_size": 1, "epoch": 0, "step": 0}.items():
            if getattr(self, name) < least:
                raise InputError(f"{name}: {getattr(self, name)} is too small", f"give at least {least}")
        names = [part.name for part in self.parts]
        missing = {SHARED, *map(part_name, range(self.world_size))} - set(names)
        if missing:
            raise InputError(f"parts: no {', '.join(sorted(missing))}", "write the shared part and one for each rank")
        if len(set(names)) < len(names):
            raise InputError(f"parts: {', '.join(sorted(names))} name a part twice", "give each once")
        for name in names:
            check_part_name(name)

    def part(self, name: str) -> PartSummary:
        """Return the summary of the part with this name. Raises ValueError if there is none."""
        for part in self.parts:
            if part.name == name:
                return part
        names = ", ".join(part.name for part in self.parts)
        raise InputError(f"name: {name!r} is not a part of checkpoint {self.number}", f"choose one of {names}")

    def to_bytes(self) -> bytes:
        """Return JSON with its own checksum, so that a flipped bit in the position does not pass."""
        body = {
            "format": FORMAT,
            "number": self.number,
            "world_size": self.world_size,
            "identity": self.identity,
            "position": {"epoch": self.epoch, "step": self.step},
            "files": {part.name: {"bytes": part.size_bytes, "sha256": part.sha256} for part in self.parts},
        }
        return _dump({**body, "sha256": hashlib.sha256(_dump(body)).hexdigest()})

    @classmethod
    def from_bytes(cls, data: bytes) -> Manifest:
        """Read what `to_bytes` gave. Raises ValueError for any other bytes; its whole text is the problem."""
        try:
            fields = json.loads(data)
            written = fields["format"]
            manifest = None
            if written == FORMAT:
                manifest = cls(
                    number=fields["number"],
                    world_size=fields["world_size"],
                    identity=fields["identity"],
                    epoch=fields["position"]["epoch"],
                    step=fields["position"]["step"],
                    parts=tuple(
                        PartSummary(name, file["bytes"], file["sha256"]) for name, file in fields["files"].items()
                    ),
                )
        except (KeyError, TypeError, AttributeError, RecursionError, ValueError):
            raise ValueError(f"{MANIFEST} is damaged") from None
        if manifest is None:
            raise ValueError(f"{MANIFEST} is of format {written!r}, not {FORMAT}")
        if manifest.to_bytes() != data:
            raise ValueError(f"{MANIFEST} is damaged")
        return manifest


def _dump(fields: dict[str, Any]) -> bytes:
    return (json.dumps(fields, indent=1) + "\n").encode("ascii")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint in a store, read part by part."""

    manifest: Manifest
    store: ByteStore
    held: dict[str, bytes] = field(default_factory=dict, repr=False)  # name -> bytes, already verified

    def read(self, name: str) -> Any:
        """Return the verified state in one part. Bytes that are held are released.

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
    messages: tuple[str, ...]  # one line for each newer checkpoint that was skipped, newest first


def file_name(number: int, name: str) -> str:
    """Return the name in the store of a checkpoint's file."""
    return f"{number:08d}/{name}"


def write_part(store: ByteStore, number: int, name: str, data: bytes) -> PartSummary:
    """Write one part, as `pack` gave it, of checkpoint `number`. Any rank, at any time before the manifest.

    Raises ValueError for a bad name or number, OSError if the store fails.
    """
    check_part_name(name)
    if number < 0:
        raise InputError(f"number: {number} is negative", "count checkpoints from 0")
    store.write(file_name(number, name), data)
    return PartSummary.of(name, data)


def write_manifest(store: ByteStore, manifest: Manifest) -> None:
    """Make the checkpoint whole. Rank 0, after all parts that the manifest names are written."""
    store.write(file_name(manifest.number, MANIFEST), manifest.to_bytes())


def latest(store: ByteStore, identity: str, hold: Collection[str] = ()) -> Search:
    """Find the newest whole checkpoint: its manifest is sound, and every part has its size and checksum.

    Call it on rank 0 alone and send its number to the others, which call `open_checkpoint`. So all resume from one
    checkpoint without a vote. A part is read at most twice over all ranks: here, and by the rank that needs it, which
    verifies it again. Rejected: each rank judges its own parts. That reads them once, but needs a round of collectives
    for each damaged checkpoint. In a smaller world nobody would judge the parts of ranks that are gone. Parts named in
    `hold`, those that rank 0 reads itself, stay in memory and are read once. Others are in memory one at a time.

    Raises ValueError if the newest checkpoint with a sound manifest has another identity. Raises OSError if the store
    fails: an unreachable store must not lead back to an older checkpoint.
    """
    messages: list[str] = []
    for number in sorted(_files_by_number(store), reverse=True):
        try:
            manifest = _read_manifest(store, number)
            if manifest.identity != identity:
                raise InputError(
                    f"checkpoint: {number} is of another training ({_difference(manifest.identity, identity)})",
                    "resume with the configuration that wrote it, or give an empty folder",
                )
            held: dict[str, bytes] = {}
            for part in manifest.parts:
                data = _read_part(store, manifest, part)
                if part.name in hold:
                    held[part.name] = data
        except CheckpointError as error:
            messages.append(f"checkpoint {number} is skipped: {error.problem}")
        else:
            return Search(Checkpoint(manifest, store, held), tuple(messages))
    return Search(None, tuple(messages))


def open_checkpoint(store: ByteStore, number: int) -> Checkpoint:
    """Open a checkpoint that `latest` found on another rank. Raises CheckpointError if its manifest is damaged now."""
    return Checkpoint(_read_manifest(store, number), store)


def forget_newer(store: ByteStore, number: int | None) -> None:
    """Delete all checkpoints newer than the one to resume from (None: all), so that their numbers are free.

    Rank 0, before any rank writes.
    """
    _delete(store, [other for other in _files_by_number(store) if number is None or other > number])


def forget_old(store: ByteStore, keep: int = 2) -> None:
    """Delete all but the last `keep` checkpoints with a manifest, and unfinished ones before the newest.

    Rank 0, after it wrote a manifest. Raises ValueError if `keep` is less than 1.
    """
    if keep < 1:
        raise InputError(f"keep: {keep} would delete the newest checkpoint", "give at least 1")
    files = _files_by_number(store)
    finished = sorted(number for number, names in files.items() if file_name(number, MANIFEST) in names)
    unfinished = [number for number in files if number not in finished and number < max(finished, default=0)]
    _delete(store, [*finished[:-keep], *unfinished])


def _delete(store: ByteStore, numbers: Iterable[int]) -> None:
    """Delete each manifest before its parts: what a broken deletion leaves never looks whole, and goes next time."""
    for number in sorted(numbers):
        store.delete(file_name(number, MANIFEST))
        store.delete_folder(f"{number:08d}")


def _files_by_number(store: ByteStore) -> dict[int, list[str]]:
    """Return the names in the store by their checkpoint's number, without foreign files."""
    files: dict[int, list[str]] = {}
    for name in store.names():
        match = _FILE.fullmatch(name)
        if match and name == file_name(int(match[1]), name.partition("/")[2]):
            files.setdefault(int(match[1]), []).append(name)
    return files


def _difference(there: str, here: str) -> str:
    """Return where two identities differ; field by field if both are JSON objects."""
    try:
        one, other = json.loads(there), json.loads(here)
        names = [name for name in sorted({*one, *other}) if one.get(name) != other.get(name)]
        return ", ".join(f"{name}: {one.get(name)!r} there, {other.get(name)!r} here" for name in names)
    except (ValueError, TypeError, AttributeError):
        return f"{there!r} there, {here!r} here"


def _read_manifest(store: ByteStore, number: int) -> Manifest:
    data = _read(store, number, MANIFEST, "it was not finished")
    try:
        manifest = Manifest.from_bytes(data)
    except ValueError as error:
        raise CheckpointError(number, str(error)) from None
    if manifest.number != number:
        raise CheckpointError(number, f"{MANIFEST} is that of checkpoint {manifest.number}")
    return manifest


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
