"""Checkpoints of `training` in any storage that pyarrow reaches, local folders to object stores."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from pyarrow import ArrowInvalid
from pyarrow.fs import FileSelector, FileSystem, FileType, LocalFileSystem, SubTreeFileSystem

from scalestudy.orchestration.base.errors import RequestError, UnreachableError
from scalestudy.orchestration.base.places import expanded
from scalestudy.training.checkpoint.byte_store import ByteStore, LocalByteStore, checked_name, sorted_names
from scalestudy.training.redaction import redacted
from scalestudy.training.whole_file import ASIDE_CHARACTERS, aside_prefix

ONE_REQUEST = "allow_delayed_open=true"
"""pyarrow's option that puts a small object by one request of S3, not by the three of an upload in parts."""
_AWS = re.compile(r"AWS Error (\w+) during \w+ operation: (.*?)(?: \(Request ID.*)?", re.DOTALL)
RENAMING = frozenset({"local", "hdfs"})
"""pyarrow's types of file systems that rename a file atomically. Elsewhere a rename is a copy, and an object appears
whole, when its upload ends."""


def open_byte_store(where: str | Path) -> ByteStore:
    """Return the store at a path or a URI that pyarrow.fs knows (file, s3, gs, abfs, hdfs).

    A local folder is a LocalByteStore, which flushes to the disk; pyarrow does not. Raises RequestError for an address
    that can't be right, UnreachableError for a storage that does not answer.
    """
    filesystem, root = _resolve(where)
    return LocalByteStore(root) if filesystem.type_name == "local" else ArrowByteStore(root, filesystem)


@dataclass(frozen=True)
class Stamp:
    """What changes when a file changes."""

    size_bytes: int
    changed: int  # nanoseconds since 1970


class ArrowByteStore:
    """A folder of a pyarrow file system, made at the first write; another process can receive it.

    Files are written aside and renamed where the file system can do that, directly elsewhere: an object store shows an
    object when its upload is complete. For `where` and errors see `open_byte_store`; with a `filesystem`, `where` is a
    path in it. `address` is `where`, as text.
    """

    def __init__(self, where: str | Path, filesystem: FileSystem | None = None) -> None:
        self.address = str(where)
        self._files, root = (filesystem, str(where)) if filesystem is not None else _resolve(where)
        self._root = root.rstrip("/")
        self._renames = _base(self._files).type_name in RENAMING

    def write(self, name: str, data: bytes) -> None:
        """See ByteStore."""
        path = self._path(name)
        if not self._renames:
            self._put(path, data)
            return
        aside = f"{_folder(path)}/{aside_prefix(name)}{uuid4().hex}"
        try:
            self._put(aside, data)
            self._files.move(aside, path)
        except BaseException:
            with suppress(OSError):
                self._files.delete_file(aside)
            raise

    def read(self, name: str) -> bytes:
        """See ByteStore."""
        with self._files.open_input_file(self._path(name)) as stream:
            return stream.read()

    def names(self, prefix: str = "") -> list[str]:
        """See ByteStore."""
        selector = FileSelector(self._root, allow_not_found=True, recursive=True)
        paths = [info.path for info in self._files.get_file_info(selector) if info.type == FileType.File]
        return sorted_names([self._name(path) for path in paths], prefix)

    def create(self, name: str, data: bytes) -> None:
        """Write as `write` does, but raise FileExistsError if the name is taken.

        The check comes just before the write: pyarrow has no write that an object store would refuse by itself.
        """
        try:
            self._files.open_input_file(self._path(name)).close()
        except FileNotFoundError:
            self.write(name, data)
        else:
            raise FileExistsError(f"{name} is there already")

    def stamps(self) -> dict[str, Stamp]:
        """Return the stamp of every name."""
        infos = self._files.get_file_info(FileSelector(self._root, allow_not_found=True, recursive=True))
        stamps = {
            self._name(info.path): Stamp(info.size, info.mtime_ns or 0) for info in infos if info.type == FileType.File
        }
        return {name: stamps[name] for name in sorted_names(list(stamps), "")}

    def has_top(self) -> bool:
        """Whether the bucket, or the topmost folder, exists."""
        top = self._root.split("/")[0] or "/"
        return bool(self._files.get_file_info(top).type != FileType.NotFound)

    def folders(self) -> list[str]:
        """Return the names of the folders in it, sorted."""
        infos = self._files.get_file_info(FileSelector(self._root, allow_not_found=True))
        return sorted(self._name(info.path) for info in infos if info.type == FileType.Directory)

    def clear(self, keep: str | None = None) -> None:
        """Delete everything except the object `keep`, a name without a slash; one request deletes many objects."""
        infos = self._files.get_file_info(FileSelector(self._root, allow_not_found=True))
        kept = [info for info in infos if keep is not None and info.path == self._path(keep)]
        if infos and not kept:
            self._files.delete_dir(self._root)
            return
        for info in infos:
            if info.type == FileType.Directory:
                self._files.delete_dir(info.path)
            elif info not in kept:
                self._files.delete_file(info.path)

    def delete(self, name: str) -> None:
        """See ByteStore. Also delete folders that become empty; an object store would keep an empty object for each."""
        path = self._path(name)
        with suppress(FileNotFoundError):
            self._files.delete_file(path)
        self._delete_asides(name)
        self._delete_empty(_folder(path))

    def delete_folder(self, name: str) -> None:
        """See ByteStore. An object store needs a few requests, however many objects there are."""
        path = self._path(name)
        with suppress(FileNotFoundError):
            self._files.delete_dir(path)
        self._delete_empty(_folder(path))

    def _delete_empty(self, folder: str) -> None:
        """Delete a folder that holds nothing, and those above it that are then empty too."""
        while folder != self._root and not self._paths_in(folder):
            with suppress(FileNotFoundError):
                self._files.delete_dir(folder)
            folder = _folder(folder)

    def _delete_asides(self, name: str) -> None:
        """Delete the files that killed writers left."""
        if self._renames:
            start = f"{_folder(self._path(name))}/{aside_prefix(name)}"
            for other in self._paths_in(_folder(start)):
                if other.startswith(start) and len(other) == len(start) + ASIDE_CHARACTERS:
                    self._files.delete_file(other)

    def _put(self, path: str, data: bytes) -> None:
        try:
            stream = self._files.open_output_stream(path, compression=None)
        except FileNotFoundError:  # only now: an object store has no folders, and `create_dir` would make objects
            self._files.create_dir(_folder(path), recursive=True)
            stream = self._files.open_output_stream(path, compression=None)
        with stream:
            stream.write(data)

    def _paths_in(self, folder: str) -> list[str]:
        return [info.path for info in self._files.get_file_info(FileSelector(folder, allow_not_found=True))]

    def _path(self, name: str) -> str:
        return f"{self._root}/{checked_name(name)}"

    def _name(self, path: str) -> str:
        return path[len(self._root) :].lstrip("/")


def _resolve(where: str | Path) -> tuple[FileSystem, str]:
    """Return the file system and the path in it."""
    text = str(where)
    if "://" not in text:
        return LocalFileSystem(), str(expanded(text).absolute())
    try:
        return FileSystem.from_uri(_in_one_request(text))
    except ArrowInvalid as error:
        raise RequestError(_problem(text, error), "give a folder, or a URI such as s3://bucket/folder") from None
    except OSError as error:
        raise UnreachableError(_problem(text, error), "check the address, the network and the credentials") from None


def _in_one_request(uri: str) -> str:
    if not uri.startswith("s3://") or ONE_REQUEST.partition("=")[0] in uri:
        return uri
    return f"{uri}{'&' if '?' in uri else '?'}{ONE_REQUEST}"


def storage_reason(error: OSError) -> str:
    """Return why a storage failed, in one line: from S3's long texts the error's name and its message."""
    text = error.strerror or str(error)
    if match := _AWS.search(text):
        name, said = match[1].replace("_", " ").lower(), _AWS.fullmatch(text[match.start() :])
        text = f"{name}: {said[2]}" if said else name
    return (text.splitlines() or [type(error).__name__])[0][:300]


def _problem(uri: str, error: Exception) -> str:
    """Return one line, without secrets that the URI may hold."""
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return redacted(f"storage: {uri}: {reason.replace(_in_one_request(uri), uri)}")


def _base(filesystem: FileSystem) -> FileSystem:
    """Return the file system that contains a subtree."""
    while isinstance(filesystem, SubTreeFileSystem):
        filesystem = filesystem.base_fs
    return filesystem


def _folder(path: str) -> str:
    return path.rpartition("/")[0]
