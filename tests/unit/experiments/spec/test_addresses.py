"""Addresses of storage: what lies in what. Secrets in them and in the environment: what is hidden, what is none."""

import re
import string

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from scalestudy.experiments.spec.addresses import (
    bare_uri,
    child,
    credentials_in,
    has_credentials,
    is_uri,
    parent_and_name,
    redacted,
    same_place,
    secrets_in,
    uri_problem,
)
from scalestudy.experiments.spec.reading import SpecError
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


def test_text_without_credentials_stays():
    text = "http://127.0.0.1:5000/?a=b and s3://bucket/x?region=eu-west-1; me@host"
    assert redacted(text) == text


# --- passwords in URIs and in the environment -------------------------------------------------------------------------


HIDDEN_IN = {
    "postgresql://ann:p@ss@h/db": "postgresql://ann:***@h/db",
    "mysql+pymysql://ann:p/ss@h:3306/db": "mysql+pymysql://ann:***@h:3306/db",
    "http://ann:1234@h:5000": "http://ann:***@h:5000",
    "http://a-token@h:5000/x": "http://***@h:5000/x",
    "http://:pass@[::1]:5000/x": "http://:***@[::1]:5000/x",
    "s3://AKIA:se/cr+et@bucket/p?region=x&secret_key=k": "s3://AKIA:***@bucket/p?region=x&secret_key=***",
    "https://h/x?X-Amz-Signature=ab12&sig=c&y=1#z": "https://h/x?X-Amz-Signature=***&sig=***&y=1#z",
    "(psycopg2) at 'postgresql://ann:pa'ss@h/db', http://b:c@i": "(psycopg2) at 'postgresql://ann:***@h/db', http://b:***@i",
}
LEFT_ALONE = (
    "http://h:5000/a@b",
    "http://[::1]:5000/x@y",
    "see http://h:5000, or mail a@b.c",
    '{"u":"http://h:5000","mail":"a@b.c"}',
    "postgresql://ann@h/db",
    "sqlite:////srv/a@b/mlflow.db",
    "http://h/?page=2&key=3&design=x",
)


@pytest.mark.parametrize("text", HIDDEN_IN)
def test_passwords_in_uris_are_hidden(text):
    assert redacted(text) == HIDDEN_IN[text]
    assert redacted(HIDDEN_IN[text]) == HIDDEN_IN[text]


@pytest.mark.parametrize("text", LEFT_ALONE)
def test_what_is_no_password_stays(text):
    assert redacted(text) == text
    assert bare_uri(text) == text
    assert credentials_in(text) == []


@given(st.text(string.ascii_letters + string.digits + "$%!+=*,._~'-", min_size=1), st.sampled_from(["http", "mysql+x"]))
def test_whatever_a_password_is_made_of(password, scheme):
    assume(not re.match(r"\d+'[,.]", password))  # would be a port and the end of a quotation
    text = f"before {scheme}://ann:{password}@host:5000/path after"
    assert redacted(text) == f"before {scheme}://ann:***@host:5000/path after"


def test_secrets_are_hidden_wherever_they_stand():
    assert redacted("a hunter/22 b, hunter%2F22", ["hunter/22"]) == "a *** b, ***"
    assert redacted("long-one", ["long", "long-one"]) == "***", "the longer one first: nothing of it is left"


def test_what_the_environment_holds_as_secrets():
    environment = {
        "MLFLOW_TRACKING_PASSWORD": "by-its-name",
        "AWS_SECRET_ACCESS_KEY": "another-name",
        "PGPASSWORD": "of-a-database",
        "MLFLOW_TRACKING_URI": "http://ann:in%2Fa-uri@h",
        "MY_LICENCE": "named-by-hand",
        "SCALESTUDY_SECRETS": "MY_LICENCE, OTHER",
        "SHORT_TOKEN": "short",
        "RAY_AUTH_TOKEN_PATH": "/srv/ann/.ray/auth_token",
        "TOKENIZERS_PARALLELISM": "disabled",
        "PWD": "/srv/ann",
        "PLAIN": "nothing-secret",
    }
    assert set(secrets_in(environment)) == {
        "by-its-name",
        "another-name",
        "of-a-database",
        "in%2Fa-uri",
        "in/a-uri",
        "named-by-hand",
    }


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


@pytest.mark.parametrize(
    "wrong",
    [
        "workload: {data: 'a.b:c', data_args: {deep: [{uri: 's3://ann:s3cr3t@bucket'}]}}",
        "workload: {model_args: {'http://ann:s3cr3t@h': 1}}",
        "description: 'see http://ann:s3cr3t@h'",
        "tracking: {experiment: 'http://ann:s3cr3t@h'}",
        "tracking: {uri: 'file://ann:s3cr3t@h'}",
        "tracking: {url: 'http://ann:s3cr3t@h'}",
        "workload: 'http://ann:s3cr3t@h'",
    ],
)
def test_a_password_elsewhere_is_refused_and_not_repeated(wrong):
    with pytest.raises(SpecError) as refused:
        spec_of(f"name: x\n{wrong}\n")
    assert "s3cr3t" not in str(refused.value)
    assert str(refused.value).count("\n") == 0
