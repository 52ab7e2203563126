"""Addresses of storage: what lies in what, and which hold credentials."""

import pytest

from scalestudy.experiments.spec.addresses import (
    bare_uri,
    child,
    has_credentials,
    is_uri,
    parent_and_name,
    same_place,
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
