"""Stage 5, training loop: what a checkpoint consists of, as its manifest says.

A checkpoint is one file for each rank, one that rank 0 wrote for all, and then the manifest. No torch here.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from training.checkpoint.byte_store import is_name

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
        for field, least in {"number": 0, "world_size": 1, "epoch": 0, "step": 0}.items():
            if getattr(self, field) < least:
                raise ValueError(f"{field}: {getattr(self, field)} is too small; give at least {least}")
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
