"""Secrets in text and in the environment: what is hidden, and what is none."""

import os
import re
import string

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from scalestudy.training.redaction import credentials_in, redacted, secrets_in


def test_text_without_credentials_stays():
    text = "http://127.0.0.1:5000/?a=b and s3://bucket/x?region=eu-west-1; me@host"
    assert redacted(text) == text


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


def test_a_variable_may_vanish_while_the_environment_is_read(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hunter22")
    names = [*os.environ, "GONE_TOKEN"]
    monkeypatch.setattr(type(os.environ), "__iter__", lambda environment: iter(names))
    assert "hunter22" in secrets_in(os.environ)
