"""Addresses of storage: what lies in what, and what a URI may not hold."""

import pytest

from scalestudy.experiments.spec.addresses import child, has_credentials, is_uri, parent_and_name, redacted, uri_problem

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


def test_text_without_credentials_stays():
    text = "http://127.0.0.1:5000/?a=b and s3://bucket/x?region=eu-west-1; me@host"
    assert redacted(text) == text
