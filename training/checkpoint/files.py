"""Manifest and parts: written, judged, found, forgotten.

A checkpoint is one file for each rank, one that rank 0 wrote for all, and then the manifest. No torch here.

Layout: `<number>/part-<rank>.pt` of each rank, `<number>/shared.pt` of rank 0, and `<number>/manifest.json` last, by
rank 0, once all ranks have said that theirs is written. What has no manifest is not there; no rename is needed, which
object stores don't have. A number is used once (`forget_newer` sees to that on resuming), so no file of a checkpoint
that is whole is ever written again.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from scalestudy.training.checkpoint.byte_store import ByteStore, is_name
from scalestudy.training.state import unpack

FORMAT = 1  # of the manifest and of the files' layout; raise it when an older program could not read a new checkpoint
MANIFEST = "manifest.json"
SHARED = "shared.pt"
WORD_BITS = 16
WORDS = 256 // WORD_BITS
_SHA256 = re.compile("[0-9a-f]{64}")


def part_name(rank: int) -> str:
    """The name of a rank's own part."""
    return f"part-{rank}.pt"


def digest_words(sha256: str) -> tuple[float, ...]:
    """A SHA-256 of 64 hexadecimal digits as 16 whole numbers below 2**16, high first, for collectives of numbers.

    Raises ValueError for another text.
    """
    if not _SHA256.fullmatch(sha256):
        raise ValueError(f"sha256: {sha256!r} is not a SHA-256; give 64 hexadecimal digits, small letters")
    digits = len(sha256) // WORDS
    return tuple(float(int(sha256[at : at + digits], 16)) for at in range(0, len(sha256), digits))


def digest_from_words(words: Sequence[float]) -> str:
    """The SHA-256 that `digest_words` took apart. Raises ValueError for what can't come from there."""
    if len(words) != WORDS or not all(0 <= word < 2**WORD_BITS and word == int(word) for word in words):
        raise ValueError(f"words: {list(words)} are not a SHA-256; give what digest_words gave, {WORDS} whole numbers")
    return "".join(f"{int(word):0{WORD_BITS // 4}x}" for word in words)


@dataclass(frozen=True)
class PartSummary:
    """What tells one file of a checkpoint from any other bytes."""

    name: str  # within the checkpoint
    size_bytes: int
    sha256: str  # 64 hexadecimal digits

    @classmethod
    def of(cls, name: str, data: bytes) -> PartSummary:
        """The summary of these bytes."""
        return cls(name, len(data), hashlib.sha256(data).hexdigest())

    @classmethod
    def from_row(cls, name: str, row: Sequence[float]) -> PartSummary:
        """The summary that another rank sent as `to_row`. Raises ValueError for another row."""
        if not (row and 0 <= row[0] <= 2**53):
            raise ValueError(f"row: {list(row)} does not start with a size; give what to_row gave")
        return cls(name, int(row[0]), digest_from_words(row[1:]))

    def to_row(self) -> tuple[float, ...]:
        """Size and digest as 17 whole numbers that float64 holds exactly, for `gather_rows`."""
        return float(self.size_bytes), *digest_words(self.sha256)

    def problem_with(self, data: bytes) -> str | None:
        """How the bytes differ from those that were summarised; None if they don't."""
        if len(data) != self.size_bytes:
            return f"{self.name} has {len(data)} bytes, not {self.size_bytes}"
        if PartSummary.of(self.name, data) != self:
            return f"{self.name} has another checksum than when it was written"
        return None


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The last file of a checkpoint: all that is needed to judge and read the others. Raises ValueError if unfit."""

    number: int  # grows from checkpoint to checkpoint of a training; no number is used twice
    world_size: int  # ranks that wrote it
    identity: str  # equal for the same model, data and parameters; resuming is refused for another
    epoch: int  # position in the data: the epoch, from 1
    step: int  # and how many of its steps are done
    parts: tuple[PartSummary, ...]

    def __post_init__(self) -> None:
        for name, least in {"number": 0, "world_size": 1, "epoch": 0, "step": 0}.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name}: {getattr(self, name)} is too small; give at least {least}")
        self._check_parts([part.name for part in self.parts])

    def _check_parts(self, names: list[str]) -> None:
        missing = {SHARED, *map(part_name, range(self.world_size))} - set(names)
        if missing:
            raise ValueError(f"parts: no {', '.join(sorted(missing))}; write the shared part and one for each rank")
        if len(set(names)) < len(names):
            raise ValueError(f"parts: {', '.join(sorted(names))} name a part twice; give each once")
        for name in names:
            check_part_name(name)

    def part(self, name: str) -> PartSummary:
        """The summary of the part with this name. Raises ValueError if there is none."""
        for part in self.parts:
            if part.name == name:
                return part
        raise ValueError(f"name: {name!r} is no part of checkpoint {self.number}; choose one of "
                         f"{', '.join(part.name for part in self.parts)}")  # fmt: skip

    def to_bytes(self) -> bytes:
        """JSON, with a checksum of its own: a flipped bit in the position must not pass."""
        body = self._to_dict()
        return _dump({**body, "sha256": hashlib.sha256(_dump(body)).hexdigest()})

    def _to_dict(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "number": self.number,
            "world_size": self.world_size,
            "identity": self.identity,
            "position": {"epoch": self.epoch, "step": self.step},
            "files": {part.name: {"bytes": part.size_bytes, "sha256": part.sha256} for part in self.parts},
        }

    @classmethod
    def from_bytes(cls, data: bytes) -> Manifest:
        """What `to_bytes` gave. Raises ValueError for any other bytes, with the problem as its whole text."""
        try:
            fields = json.loads(data)
            written = fields["format"]
            manifest = cls._from_dict(fields) if written == FORMAT else None
        except (KeyError, TypeError, AttributeError, RecursionError, ValueError):
            raise ValueError(f"{MANIFEST} is damaged") from None
        if manifest is None:
            raise ValueError(f"{MANIFEST} is of format {written!r}, not {FORMAT}")
        if manifest.to_bytes() != data:
            raise ValueError(f"{MANIFEST} is damaged")
        return manifest

    @classmethod
    def _from_dict(cls, fields: dict[str, Any]) -> Manifest:
        files = fields["files"].items()
        return cls(
            number=fields["number"],
            world_size=fields["world_size"],
            identity=fields["identity"],
            epoch=fields["position"]["epoch"],
            step=fields["position"]["step"],
            parts=tuple(PartSummary(name, file["bytes"], file["sha256"]) for name, file in files),
        )


def check_part_name(name: str) -> None:
    """Raise ValueError unless a file of a checkpoint may be called so."""
    if not is_name(name) or "/" in name or name == MANIFEST:
        raise ValueError(f"name: {name!r} is not a part's name; use {SHARED!r}, part_name(rank) or a plain file name")


def _dump(fields: dict[str, Any]) -> bytes:
    return (json.dumps(fields, indent=1) + "\n").encode("ascii")


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
