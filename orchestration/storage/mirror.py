"""A study that is kept in an object store, and its working copy on this machine.

Whoever runs or reads a study works on a folder of this machine. If the study is kept under a URI, that folder is a copy
below `$SCALESTUDY_HOME`: `work` for the process that runs it, `read` for those that read it without disturbing the run,
`seen` for the few files from which a plan learns and a list is made. Records are written to the store first. An object
exists only after its upload, so an interruption leaves no half record. Only the store has checkpoints and models.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal
from uuid import uuid4

from scalestudy.experiments.spec.addresses import child, is_uri, parent_and_name, uri_problem
from scalestudy.experiments.study.folder import StudyFolder
from scalestudy.orchestration.base.errors import RequestError, StudyError, UnreachableError
from scalestudy.orchestration.base.places import writable_home
from scalestudy.orchestration.cluster.connection import Cluster
from scalestudy.orchestration.cluster.node_checks import ask_nodes
from scalestudy.orchestration.storage.arrow_store import ArrowByteStore, Stamp, storage_reason
from scalestudy.training.redaction import redacted
from scalestudy.training.whole_file import written_aside

Use = Literal["work", "read", "seen"]
NOT_COPIED = ("checkpoints/", "logs/", "driver.log", "lock", "probe-")
"""Prefixes of names that a copy omits: files in use there, large files, and what is no record."""
GLIMPSE = ("spec.yaml", "plan.json", "trials.jsonl", "summary.json")
AT_ONCE = 16  # objects that are fetched at a time


def open_store(uri: str, field: str = "storage") -> ArrowByteStore:
    """Return the store at a URI, which serves as a folder's `Mirror` too.

    field: what errors call the URI. Raises RequestError for one that can't be right, UnreachableError where nothing
    answers.
    """
    if problem := uri_problem(uri):
        raise RequestError(f"{field}: {redacted(uri)}: {problem[0]}", problem[1])
    return ArrowByteStore(uri)


def mirrored(address: str, use: Use) -> StudyFolder:
    """Return the copy of a study on this machine as it is; it may not exist yet. Raises as `open_store`."""
    _, name = parent_and_name(address)
    digest = hashlib.sha256(address.encode("utf-8")).hexdigest()[:8]
    return StudyFolder(writable_home() / use / f"{name}-{digest}", open_store(address))


def fetch(folder: StudyFolder) -> StudyFolder:
    """Copy a study's records here, and delete from the copy what the store does not have.

    Raises RequestError where the address is not a study's, UnreachableError where the store does not answer.
    """
    check_study(folder)
    with answering(folder.address, "read"):
        _copy(store_of(folder), folder.path)
    return folder


def check_study(folder: StudyFolder) -> StudyFolder:
    """Return the folder of a study if it is in its store. Raises as `fetch`."""
    store = store_of(folder)
    with answering(folder.address, "read"):
        try:
            store.read(folder.plan_file.name)
        except FileNotFoundError:
            if not store.has_top():
                raise OSError("no such bucket") from None
            problem = f"DIR: {folder.address}: is not a study's folder (it has no plan.json)"
            raise RequestError(problem, "name one under the study's `storage`") from None
    return folder


def glimpses(storage: str) -> list[StudyFolder]:
    """Return copies of the studies under a URI, with `GLIMPSE` and the first and the last entry of the journal only.

    Raises RequestError for an address that can't be right, UnreachableError where nothing answers.
    """
    store = open_store(storage)
    with answering(storage, "read"):
        names = store.folders()
        if not names and not store.has_top():
            raise OSError("no such bucket")
        folders = [mirrored(child(storage, name), "seen") for name in names]
        with ThreadPoolExecutor(AT_ONCE) as threads:
            list(threads.map(lambda folder: _copy(store_of(folder), folder.path, _in_glimpse), folders))
    return [folder for folder in folders if folder.plan_file.exists()]


def _in_glimpse(names: Collection[str]) -> Collection[str]:
    entries = sorted(name for name in names if name.startswith("journal/"))
    return {*GLIMPSE, *entries[:1], *entries[-1:]}


def store_of(folder: StudyFolder) -> ArrowByteStore:
    """Return where a mirrored study is kept."""
    assert isinstance(folder.mirror, ArrowByteStore)
    return folder.mirror


def _copy(
    store: ArrowByteStore, path: Path, wanted: Callable[[Collection[str]], Collection[str]] = lambda names: names
) -> None:
    """Make a folder hold the records of a store that `wanted` picks by their names."""
    stamps = {name: stamp for name, stamp in store.stamps().items() if _is_record(name)}
    stamps = {name: stamps[name] for name in stamps.keys() & wanted(stamps.keys())}
    known = {file.relative_to(path).as_posix(): file for file in path.rglob("*") if file.is_file()}
    for name in known.keys() - stamps.keys():
        if _is_record(name):
            known[name].unlink(missing_ok=True)
    stale = [name for name, stamp in stamps.items() if name not in known or _stamp(known[name]) != stamp]
    with ThreadPoolExecutor(AT_ONCE) as threads:
        list(threads.map(lambda name: _copy_file(store, name, path / name, stamps[name]), stale))


def _copy_file(store: ArrowByteStore, name: str, file: Path, stamp: Stamp) -> None:
    """Copy one file: write it aside and rename it, since another process may fill the same copy."""
    with suppress(FileNotFoundError):  # the running study has deleted it
        data = store.read(name)
        file.parent.mkdir(parents=True, exist_ok=True)
        with written_aside(file, data) as aside:
            os.utime(aside, ns=(stamp.changed, stamp.changed))
            aside.replace(file)


def _stamp(file: Path) -> Stamp:
    status = file.stat()
    return Stamp(status.st_size, status.st_mtime_ns)


def _is_record(name: str) -> bool:
    return not name.startswith(NOT_COPIED)


def clear(folder: StudyFolder) -> None:
    """Delete a study, here and in its store, whatever is there; errors are ignored."""
    shutil.rmtree(folder.path, ignore_errors=True)
    with suppress(OSError):
        store_of(folder).clear()


def is_free(address: str) -> bool:
    """Whether nothing is kept under a URI. Raises as `check_writable`."""
    with answering(address, "read"):
        return not open_store(address).names()


def check_writable(address: str) -> None:
    """Write an object and delete it. Raises UnreachableError where a study could not be written."""
    store, name = open_store(address), f"probe-{uuid4().hex}"
    with answering(address, "written"):
        store.write(name, b"probe")
        store.delete(name)


@contextmanager
def answering(address: str, done: str) -> Iterator[None]:
    """Turn the failure of a store or folder into an UnreachableError. done: a participle, such as "read"."""
    try:
        yield
    except OSError as error:
        keys = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" if address.startswith("s3:") else "the credentials"
        in_bucket = f"make the bucket, correct the address, or set {keys} in the environment"
        remedy = in_bucket if is_uri(address) else "make the folder and its files readable"
        raise UnreachableError(f"storage: {address}: can't be {done} ({storage_reason(error)})", remedy) from error


def check_nodes(address: str, cluster: Cluster) -> None:
    """Raise UnreachableError where a node can't read what the driver has written, or can't write.

    A cluster that this process started is not asked: its nodes share this process's network and environment.
    """
    if cluster.started_here:
        return
    store, name = open_store(address), f"probe-{uuid4().hex}"
    with answering(address, "written"):
        store.write(name, name.encode())
    try:
        reasons = ask_nodes(cluster.nodes, _reaches, address, name)
    finally:
        with suppress(OSError):
            store.delete(name)
    bad = sorted(f"{node.host} ({reason})" for node, reason in zip(cluster.nodes, reasons, strict=True) if reason)
    if bad:
        remedy = "give every node the bucket's credentials, in the environment of `ray start` or with `submit --env`"
        raise UnreachableError(f"storage: {address}: can't be reached on {', '.join(bad)}", remedy)


def _reaches(address: str, name: str) -> str:
    """Return why a node can't use the store; empty where it can."""
    own = f"{name}-{uuid4().hex}"
    try:
        store = open_store(address)
        if store.read(name) != name.encode():
            return "it holds something else"
        store.write(own, b"probe")
        store.delete(own)
    except FileNotFoundError:
        return "it is not the same there"
    except OSError as error:
        return storage_reason(error)
    except StudyError as error:
        return error.problem
    return ""
