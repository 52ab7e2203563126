"""Data files: found, checked, downloaded."""

from __future__ import annotations

import hashlib
import os
import threading
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from http.client import HTTPException
from pathlib import Path
from typing import IO, Protocol

from scalestudy.training.exceptions import InputError
from scalestudy.training.proxies import through
from scalestudy.training.whole_file import write_whole

DOWNLOAD_TIMEOUT_SECONDS = 10.0  # until a mirror answers, and then without a byte


class DataError(InputError):
    """A data set is missing, damaged or unfit, or can't be fetched."""


def default_root() -> Path:
    """Return the folder of data sets: SCALESTUDY_DATA, otherwise scalestudy/data in the user's cache folder."""
    named = os.environ.get("SCALESTUDY_DATA")
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = Path(named) if named else Path(cache) / "scalestudy" / "data"
    return Path(os.path.expanduser(folder))  # noqa: PTH111 - `Path.expanduser` raises where there is no home


class FileSource(Protocol):
    """A data set that lives in files under a root folder."""

    @property
    def mirrors(self) -> tuple[str, ...]:
        """URLs of the folders that it is published in."""

    @property
    def md5(self) -> Mapping[str, str]:
        """The checksum of each file, by its name."""

    def require(self, root: Path) -> None:
        """Raise DataError, with the command that helps, unless the files are there. Read none."""

    def fetch(self, root: Path, folder: Path | None) -> list[Path]:
        """Put the missing files there, verified, from a folder or the internet (None); return them. DataError."""


def remedy(name: str) -> str:
    """Return the command that repairs a missing or damaged file."""
    return f"run `scalestudy data fetch {name}` (or with `--from DIR`, a folder that has the files)"


def check_md5(content: bytes, expected: str) -> None:
    """Raise DataError unless the content has this MD5, the checksum that these data sets' publishers state."""
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if found != expected:
        raise DataError(f"checksum (MD5) {found} is not {expected}: the file is damaged or another one")


def first_good(name: str, origins: Sequence[str], md5: str) -> bytes:
    """Return the content of the first path or URL whose content has the checksum. Raises DataError."""
    problems = []
    for origin in origins:
        try:
            with closing(_open_url(origin) if "://" in origin else Path(origin).open("rb")) as stream:
                content = stream.read()
            check_md5(content, md5)
        except (OSError, HTTPException, DataError) as error:
            problems.append(f"{origin}{through(origin, of_all=False)}: {error}")
        else:
            return content
    raise DataError(
        f"data: {name}: {', '.join(problems)}",
        f"check the network, or name a folder that has the files: scalestudy data fetch {name} --from DIR",
    )


def write_file(name: str, target: Path, content: bytes) -> Path:
    """Write a file of the data set, all at once, and return its path. Raises DataError."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_whole(target, content)
    except OSError as error:
        raise DataError(
            f"data: {name}: can't write {target}: {error.strerror}",
            "set SCALESTUDY_DATA to a folder that you may write",
        ) from None
    return target


def _open_url(url: str) -> IO[bytes]:
    """Open the URL. Raises TimeoutError if the mirror does not answer in time.

    A thread asks, because urllib's timeout starts anew for each address of a host and does not bound the look-up.
    """
    answer: Future[IO[bytes]] = Future()

    def ask() -> None:
        try:
            answer.set_result(urllib.request.urlopen(url, timeout=DOWNLOAD_TIMEOUT_SECONDS))
        except Exception as error:  # it belongs to the thread that waits
            answer.set_exception(error)

    threading.Thread(target=ask, daemon=True).start()
    try:
        return answer.result(DOWNLOAD_TIMEOUT_SECONDS)
    except TimeoutError:
        raise TimeoutError(f"no answer within {DOWNLOAD_TIMEOUT_SECONDS:g} seconds") from None
