"""Checkpoints in pyarrow's file systems: the same behaviour everywhere, and addresses that can't be right."""

import pickle
import resource

import pytest
from pyarrow.fs import FileSystem, LocalFileSystem, SubTreeFileSystem

from scalestudy.orchestration.base.errors import RequestError, UnreachableError
from scalestudy.orchestration.storage.arrow_store import ArrowByteStore, open_byte_store, storage_reason
from scalestudy.training.checkpoint.byte_store import LocalByteStore
from scalestudy.training.checkpoint.files import file_name, forget_newer, forget_old, latest
from tests.support.training.checkpoints import LENET, NAMES, origins, save


def mock():
    """In memory, and not known to rename: files are written directly, as to an object store."""
    return FileSystem.from_uri("mock:///")[0]


KINDS = {
    "path": lambda folder: ArrowByteStore(folder / "a" / "b"),
    "uri": lambda folder: ArrowByteStore((folder / "a b").as_uri() + "/"),
    "memory": lambda folder: ArrowByteStore("mock:///a/b"),
    "top of memory": lambda folder: ArrowByteStore("", mock()),
    "tree": lambda folder: ArrowByteStore("a", SubTreeFileSystem(str(folder), LocalFileSystem())),
    "tree in memory": lambda folder: ArrowByteStore("a/", SubTreeFileSystem("b", mock())),
    "training's own": lambda folder: open_byte_store(folder / "a"),
}


@pytest.fixture(params=KINDS)
def store(request, tmp_path):
    return KINDS[request.param](tmp_path)


@pytest.fixture(params=[name for name in KINDS if name not in ("training's own", "top of memory")])
def remote(request, tmp_path):
    """A store of pyarrow's, below its top."""
    return KINDS[request.param](tmp_path)


def test_bytes_under_names(store):
    assert store.names() == []
    store.write("b/two", b"2")
    store.write("one", b"")
    store.write("b/two.pt", bytes(range(256)) * 1000)
    store.write("b/two", b"22")
    assert store.names() == ["b/two", "b/two.pt", "one"]
    assert store.names("b/two.") == ["b/two.pt"]
    assert store.names("../") == []
    assert [store.read(name) for name in ("one", "b/two")] == [b"", b"22"]
    assert store.read("b/two.pt") == bytes(range(256)) * 1000


def test_a_name_is_given_once(remote):
    remote.create("a/b", b"1")
    with pytest.raises(FileExistsError):
        remote.create("a/b", b"2")
    assert remote.read("a/b") == b"1"


def test_what_shows_a_change(remote):
    remote.write("a/b", b"1")
    before = remote.stamps()
    assert (list(before), before["a/b"].size_bytes) == (["a/b"], 1)
    remote.write("a/b", b"22")
    remote.write("c", b"")
    after = remote.stamps()
    assert list(after) == ["a/b", "c"] == remote.names()
    assert after["a/b"] != before["a/b"]
    assert remote.folders() == ["a"]
    assert remote.has_top()


def test_all_but_one_name_is_cleared(remote):
    remote.clear()
    for name in ("00000001/part-0.pt", "00000002/part-0.pt", "model.pt", "more"):
        remote.write(name, b"1")
    remote.clear(keep="model.pt")
    assert remote.names() == ["model.pt"]
    remote.clear()
    assert remote.names() == []


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (
            "When initiating multiple part upload for key 'x' in bucket 'none': AWS Error NO_SUCH_BUCKET during "
            "CreateMultipartUpload operation: The specified bucket does not exist (Request ID: lzapq0h1)",
            "no such bucket: The specified bucket does not exist",
        ),
        ("AWS Error ACCESS_DENIED during HeadObject operation: No response body.", "access denied: No response body."),
        ("disk\nfull", "disk"),
        ("", "OSError"),
    ],
)
def test_why_a_storage_failed_in_one_line(said, shown):
    assert storage_reason(OSError(said)) == shown


def test_nothing_under_a_name(store):
    for _ in range(2):
        store.delete("a/b")
        with pytest.raises(FileNotFoundError):
            store.read("a/b")
        store.write("a/b", b"1")
        store.write("a/c", b"2")
        store.delete("a/b")
        assert store.names() == ["a/c"]
    store.delete("a/c")
    assert store.names() == []


def test_nothing_in_a_folder(store):
    for name in ("a/b", "a/c/d", "ab", "e/f"):
        store.write(name, b"1")
    store.delete_folder("a")
    store.delete_folder("nothing")
    assert store.names() == ["ab", "e/f"]
    store.write("a/b", b"2")
    assert store.read("a/b") == b"2"
    store.delete_folder("a")
    store.delete_folder("e")
    assert store.names() == ["ab"]


@pytest.mark.parametrize("name", ["", "../a", "/a", "a//b", ".a", "a/..", "a b"])
def test_names_stay_in_the_store(store, name):
    for act in (
        lambda: store.write(name, b""),
        lambda: store.read(name),
        lambda: store.delete(name),
        lambda: store.delete_folder(name),
    ):
        with pytest.raises(ValueError, match="is not a name in a store; use words of letters"):
            act()


def test_checkpoints(store):
    for number in range(4):
        save(store, number)
        forget_old(store)
    assert {name.partition("/")[0] for name in store.names()} == {"00000002", "00000003"}
    store.write(file_name(3, NAMES[1]), store.read(file_name(3, NAMES[1]))[:-1])
    search = latest(store, LENET)
    assert origins(search) == {(name, 2, 0) for name in NAMES}
    assert [message.partition(" has ")[0] for message in search.messages] == ["checkpoint 3 is skipped: part-0.pt"]
    forget_newer(store, None)
    assert store.names() == []


@pytest.mark.parametrize("as_uri", [False, True])
def test_a_local_folder_is_training_s_own_store(tmp_path, as_uri):
    store = open_byte_store(tmp_path.as_uri() if as_uri else str(tmp_path))
    assert isinstance(store, LocalByteStore)
    store.write("a/b", b"1")
    assert (tmp_path / "a" / "b").read_bytes() == b"1"
    assert ArrowByteStore(tmp_path).names() == ["a/b"]


def test_a_path_is_relative_to_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ArrowByteStore("runs").write("a", b"1")
    open_byte_store("runs").write("b", b"2")
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["a", "b"]


def test_folders_and_what_killed_writers_left_go_with_the_last_file(tmp_path):
    store = ArrowByteStore(tmp_path)
    store.write("a/b/c", b"")
    for left in (f".c.{'0' * 32}", f".c.d.{'0' * 32}"):
        (tmp_path / "a" / "b" / left).write_bytes(b"half")
    assert store.names() == ["a/b/c"]
    store.delete("a/b/c")
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == [f".c.d.{'0' * 32}"]
    store.delete("a/b/c.d")
    assert tmp_path.is_dir()
    assert list(tmp_path.iterdir()) == []


def test_a_write_that_fails_leaves_what_was_there(tmp_path):
    store = ArrowByteStore(tmp_path)
    store.write("a/b", b"before")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, before[1]))  # the disk is full, so to speak
    try:
        with pytest.raises(OSError, match="File too large"):
            store.write("a/b", bytes(2_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert store.read("a/b") == b"before"
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]


def test_a_store_can_be_sent(tmp_path):
    store = pickle.loads(pickle.dumps(ArrowByteStore(tmp_path)))
    store.write("a", b"1")
    assert (tmp_path / "a").read_bytes() == b"1"


@pytest.mark.parametrize(
    "uri", ["s3://bucket/runs?region=eu-west-1", "s3://bucket/runs?endpoint_override=localhost:9000"]
)
def test_object_stores_are_addresses_too(uri):
    """Neither needs the network before the first read or write."""
    assert isinstance(open_byte_store(uri), ArrowByteStore)


@pytest.mark.parametrize(
    ("uri", "problem"),
    [
        (
            "ftp://me:secret@host/runs",
            "storage: ftp://me:***@host/runs: Unrecognized filesystem type in URI: ftp://me:***@host/runs",
        ),
        (
            "s3://me:secret@bucket/a?regoin=x",
            "storage: s3://me:***@bucket/a?regoin=x: Unexpected query parameter in S3 URI: 'regoin'",
        ),
        (
            "file://host/runs",
            "storage: file://host/runs: Unsupported hostname in non-Windows local URI: 'file://host/runs'",
        ),
    ],
)
def test_an_address_that_can_t_be_right(uri, problem):
    with pytest.raises(RequestError) as error:
        open_byte_store(uri)
    assert str(error.value) == f"{problem}; give a folder, or a URI such as s3://bucket/folder"


def test_a_storage_that_does_not_answer():
    with pytest.raises(UnreachableError, match=r"^storage: hdfs://me:\*\*\*@localhost:1/runs: .*; check the") as error:
        open_byte_store("hdfs://me:secret@localhost:1/runs")
    assert "\n" not in str(error.value)
    assert "secret" not in str(error.value)
