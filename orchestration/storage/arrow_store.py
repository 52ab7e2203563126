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
from scalestudy.training.checkpoint.byte_store import ByteStore, LocalByteStore, checked_name, sorted_names
from scalestudy.training.redaction import redacted
from scalestudy.training.whole_file import ASIDE_CHARACTERS, aside_prefix

ONE_REQUEST = "allow_delayed_open=true"
"""pyarrow's option by which a small object is put by one request of S3, not by the three of an upload in parts."""
_AWS = re.compile(r"AWS Error (\w+) during \w+ operation: (.*?)(?: \(Request ID.*)?", re.DOTALL)
RENAMING = frozenset({"local", "hdfs"})
"""Types of pyarrow's file systems that rename a file in one act. Elsewhere a rename is a copy, and an object appears
whole, when its upload ends."""


def open_byte_store(where: str | Path) -> ByteStore:
    """The store at a path or a URI that pyarrow.fs knows (file, s3, gs, abfs, hdfs); what it can't open, it raises.

    A local folder is a LocalByteStore, which flushes to the disk; pyarrow does not. Raises RequestError for an address
    that can't be right, UnreachableError for a storage that does not answer.
    """
    filesystem, root = _resolve(where)
    return LocalByteStore(root) if filesystem.type_name == "local" else ArrowByteStore(root, filesystem)


@dataclass(frozen=True)
class Stamp:
    """By what a file that has changed is known. size_bytes; changed: when, in nanoseconds since 1970."""

    size_bytes: int
    changed: int


class ArrowByteStore:
    """A folder of a pyarrow file system, made when something is first written; it can be sent to another process.

    Files are written aside and renamed where the file system can do that, directly elsewhere: an object store shows
    an object when its upload is complete. For `where` and errors see `open_byte_store`; with a `filesystem`, `where` is
    a path in it.

    Attributes:
        address: `where`, as text.
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
        """As `write`. Raises FileExistsError where something is held under the name.

        It is asked for just before: pyarrow has no write that an object store would refuse by itself.
        """
        try:
            self._files.open_input_file(self._path(name)).close()
        except FileNotFoundError:
            self.write(name, data)
        else:
            raise FileExistsError(f"{name} is there already")

    def stamps(self) -> dict[str, Stamp]:
        """All names, each with what shows a change."""
        infos = self._files.get_file_info(FileSelector(self._root, allow_not_found=True, recursive=True))
        stamps = {
            self._name(info.path): Stamp(info.size, info.mtime_ns or 0) for info in infos if info.type == FileType.File
        }
        return {name: stamps[name] for name in sorted_names(list(stamps), "")}

    def has_top(self) -> bool:
        """Whether the bucket, or the topmost folder, is there."""
        top = self._root.split("/")[0] or "/"
        return bool(self._files.get_file_info(top).type != FileType.NotFound)

    def folders(self) -> list[str]:
        """The names of the folders in it, sorted."""
        infos = self._files.get_file_info(FileSelector(self._root, allow_not_found=True))
        return sorted(self._name(info.path) for info in infos if info.type == FileType.Directory)

    def clear(self, keep: str | None = None) -> None:
        """Holds nothing any more, but what has this name, one without a slash; many objects go by one request."""
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
        """See ByteStore. Folders that are empty then go too; an object store would keep an empty object for each."""
        path = self._path(name)
        with suppress(FileNotFoundError):
            self._files.delete_file(path)
        self._delete_asides(name)
        self._delete_empty(_folder(path))

    def delete_folder(self, name: str) -> None:
        """See ByteStore. Of an object store it takes a few requests, however many objects there are."""
        path = self._path(name)
        with suppress(FileNotFoundError):
            self._files.delete_dir(path)
        self._delete_empty(_folder(path))

    def _delete_empty(self, folder: str) -> None:
        """A folder that holds nothing, and those above it that then don't either."""
        while folder != self._root and not self._paths_in(folder):
            with suppress(FileNotFoundError):
                self._files.delete_dir(folder)
            folder = _folder(folder)

    def _delete_asides(self, name: str) -> None:
        """Those that killed writers left."""
        if self._renames:
            start = f"{_folder(self._path(name))}/{aside_prefix(name)}"
            for other in self._paths_in(_folder(start)):
                if other.startswith(start) and len(other) == len(start) + ASIDE_CHARACTERS:
                    self._files.delete_file(other)

    def _put(self, path: str, data: bytes) -> None:
        try:
            stream = self._files.open_output_stream(path, compression=None)
        except FileNotFoundError:  # only then: an object store has no folders, and would be asked to make objects
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
    """The file system and the path in it."""
    text = str(where)
    if "://" not in text:
        return LocalFileSystem(), str(Path(text).expanduser().absolute())
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
    """Why a storage failed, in one line: of S3's long texts the name of the error and what it says."""
    text = error.strerror or str(error)
    if match := _AWS.search(text):
        name, said = match[1].replace("_", " ").lower(), _AWS.fullmatch(text[match.start() :])
        text = f"{name}: {said[2]}" if said else name
    return (text.splitlines() or [type(error).__name__])[0][:300]


def _problem(uri: str, error: Exception) -> str:
    """One line, without secrets that the URI may hold."""
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return redacted(f"storage: {uri}: {reason.replace(_in_one_request(uri), uri)}")


def _base(filesystem: FileSystem) -> FileSystem:
    """What a tree within a file system is in."""
    while isinstance(filesystem, SubTreeFileSystem):
        filesystem = filesystem.base_fs
    return filesystem


def _folder(path: str) -> str:
    return path.rpartition("/")[0]
