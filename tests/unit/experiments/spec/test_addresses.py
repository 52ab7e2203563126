"""Addresses of storage: what lies in what, and which hold credentials."""

import sqlite3
from pathlib import Path
from urllib.request import url2pathname

import pytest
from sqlalchemy import create_engine, make_url

from scalestudy.experiments.spec.addresses import (
    bare_uri,
    child,
    has_credentials,
    is_uri,
    options_of,
    parent_and_name,
    path_of,
    same_place,
    uri_of,
    uri_problem,
)
from scalestudy.training.redaction import redacted
from tests.support.synthetic_studies import spec_of

OPTIONS = "?scheme=http&endpoint_override=127.0.0.1:9000"


@pytest.mark.parametrize(
    ("where", "inside"),
    [
        ("s3://bucket", "s3://bucket/a/b"),
        ("s3://bucket/runs/" + OPTIONS, "s3://bucket/runs/a/b" + OPTIONS),
        ("/runs", "/runs/a/b"),
        ("/what?/runs/", "/what?/runs/a/b"),
    ],
)
def test_what_lies_in_a_place(where, inside):
    assert child(where, "a", "b") == inside
    place, name = parent_and_name(inside)
    assert (child(place, name), name) == (inside, "b")


def test_which_addresses_are_uris():
    assert [is_uri(each) for each in ("s3://b", "runs", "/a:b/c", "./s3:/b")] == [True, False, False, False]


ODD = [
    "50% done? #2 [v1] müll & co; $HOME 'x'",
    "a%41b",
    "%",
    "%3F",
    "a?b=c&d",
    'q"\\',
    "#",
    "a b\tc",
    "x:y@z",
    "é\u0301",
]


@pytest.mark.parametrize("name", ODD)
def test_a_path_of_any_name_is_a_uri_and_comes_back(tmp_path, name):
    folder = tmp_path / name
    folder.mkdir()
    file = folder / "mlflow.db"
    uri = uri_of(file, "sqlite", "timeout=3")
    assert (path_of(uri), options_of(uri)) == (file, "timeout=3")
    assert Path(make_url(uri).database) == file
    engine = create_engine(uri)
    with engine.connect():
        assert sqlite3.connect(file).execute("PRAGMA schema_version").fetchone()
    engine.dispose()
    assert [each.name for each in tmp_path.iterdir()] == [name]
    there = uri_of(folder)
    assert path_of(there) == Path(url2pathname(there.removeprefix("file://"))) == folder


def test_an_ordinary_database_has_the_ordinary_address():
    assert uri_of(Path("/a b/müll 50%/x.db"), "sqlite") == "sqlite:////a b/müll 50%/x.db"


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("sqlite:///mlflow.db", "mlflow.db"),
        ("sqlite+pysqlite:////a/b.db", "/a/b.db"),
        ("sqlite:///my?file.db", "my"),
        ("sqlite:///my%3Ffile.db", "my?file.db"),
        ("sqlite:///50%25.db", "50%.db"),
        ("file:///a%20b", "/a b"),
    ],
)
def test_what_sqlalchemy_reads_as_a_path(uri, path):
    assert path_of(uri) == Path(path)
    if uri.startswith("sqlite"):
        assert make_url(uri).database == path


@pytest.mark.parametrize(
    "uri", ["sqlite://", "sqlite:///:memory:", "sqlite:///file:x?uri=true", "s3://b/x", "file://h/x"]
)
def test_uris_that_name_no_path_here(uri):
    assert path_of(uri) is None


KEPT = ["s3://bucket/runs", "s3://bucket/a:b" + OPTIONS, "abfs://container@account/runs", "hdfs://me@host/runs"]
SECRET = [
    "s3://ME:s3cr3t@bucket",
    "s3://ME:s3/cr3t@bucket/runs",
    "s3://ME@bucket",
    "abfs://container:s3cr3t@account",
    "s3://bucket/runs?access_key=ME&secret_key=s3cr3t",
    "abfs://c@a?account_key=s3cr3t",
    "abfs://c@a/x?sig=s3cr3t",
    "hdfs://me:s3cr3t@host/runs",
]


@pytest.mark.parametrize("uri", KEPT)
def test_addresses_without_credentials(uri):
    assert not has_credentials(uri)
    assert uri_problem(uri) is None


@pytest.mark.parametrize("uri", SECRET)
def test_credentials_are_refused_and_not_shown(uri):
    assert has_credentials(uri)
    assert "environment" in uri_problem(uri)[1]
    shown = redacted(f'storage: "{uri}" is wrong')
    assert "cr3t" not in shown
    assert "ME@" not in shown
    assert shown.endswith(" is wrong")


@pytest.mark.parametrize(
    ("uri", "kept"),
    [
        ("http://ann:pass@h:5000/x", "http://h:5000/x"),
        ("http://ann:***@h:5000", "http://h:5000"),
        ("postgresql://ann:pass@h/db?sslmode=require&password=p", "postgresql://ann@h/db?sslmode=require"),
        ("mysql://h/db?token=t", "mysql://h/db"),
    ],
)
def test_an_address_without_its_credentials(uri, kept):
    assert bare_uri(uri) == kept
    assert same_place(uri, kept)


def test_other_places_are_told_apart():
    assert same_place("postgresql://ann:p@h/db", "postgresql://bob:q@h/db")
    assert not same_place("http://ann:p@h:5000", "http://ann:p@h:5001")
    assert not same_place("postgresql://ann:p@h/db", "postgresql://ann:p@h/other")


SPEC = "name: x\ntracking: {uri: 'http://ann:s3cr3t@h:5000'}\n"


def test_a_resolved_spec_has_no_password():
    spec = spec_of(SPEC)
    assert spec.tracking.uri == "http://ann:s3cr3t@h:5000"
    assert spec.to_dict()["tracking"]["uri"] == "http://ann:***@h:5000"
    assert "s3cr3t" not in spec.to_yaml()
    assert spec_of(spec.to_yaml()).tracking.uri == "http://ann:***@h:5000"
