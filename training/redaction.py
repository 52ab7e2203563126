"""Secrets kept out of text: credentials in URIs, and what the environment holds."""

import re
from collections.abc import Iterable, Mapping
from urllib.parse import quote, unquote

HIDDEN = "***"
"""Replaces a secret in text."""
SHORTEST_SECRET = 6
"""Characters. A shorter secret would be found inside ordinary words."""
NAMES_VARIABLE = "SCALESTUDY_SECRETS"
"""Names more environment variables that hold secrets, separated by commas."""

_WORDS = r"passwo?r?d|passwd|passphrase|secret|token|credential|signature|(?:api|access|account|private)_?key"
_SECRET_NAME = re.compile(rf"(?:^|_|PG)(?:{_WORDS})S?(?:_|$)|_PWD$", re.IGNORECASE)
_PLACE_NAME = re.compile(r"_(?:FILE|PATH|DIR|URI|URL|MODE|ID|TTL)$", re.IGNORECASE)
_END = r"\s'\"<>"
# A port is no password. Digits before a quotation mark are a port if punctuation follows the mark, as in JSON,
# or if no @ follows in the same word.
_PORT = r"\d+(?:[/?#\s]|$|['\"<>](?:[,;:.}\])\s]|$|(?![^/?#\s]*@)))"
# A password ends at the last @ of the authority. SQLAlchemy allows a `/` in it; then it ends at the next @.
_PASSWORD = re.compile(rf"(?P<start>://[^/:@?#\[{_END}]*:)(?P<secret>(?!{_PORT})(?:[^/?#\s]+(?=@)|[^@\s]+(?=@)))")
_WEB_USER = re.compile(rf"(?P<start>\b(?:https?|s3)://)(?P<secret>[^/:@?#{_END}]+)(?=@)", re.IGNORECASE)
_PARAMETER = re.compile(
    rf"(?P<start>(?:[?&;])[\w.-]*(?:{_WORDS}|\bsig|\bauth)[\w.-]*=)(?P<secret>[^&;#{_END}]+)", re.IGNORECASE
)
_IN_URIS = (_PASSWORD, _WEB_USER, _PARAMETER)


def redacted(text: str, secrets: Iterable[str] = ()) -> str:
    """Hide the credentials of all URIs in a text: `http://ann:***@host?token=***`.

    A user name stays if a password follows it. A lone one over http or s3 is hidden too: it may be a token or a key.
    secrets: also hidden wherever they occur, plain or percent-encoded.
    """
    for secret in sorted(secrets, key=len, reverse=True):
        for form in (secret, quote(secret, safe="")):
            text = text.replace(form, HIDDEN)
    for pattern in _IN_URIS:
        text = pattern.sub(lambda found: found["start"] + HIDDEN, text)
    return text


def credentials_in(text: str) -> list[str]:
    """Return what `redacted` hides in the URIs of a text: each as written, then percent-decoded."""
    secrets = [match["secret"] for pattern in _IN_URIS for match in pattern.finditer(text) if match["secret"] != HIDDEN]
    return [form for secret in secrets for form in dict.fromkeys((secret, unquote(secret)))]


def secrets_in(environment: Mapping[str, str]) -> list[str]:
    """Return the secrets among environment variables.

    A variable is secret if its name says so or SCALESTUDY_SECRETS lists it. Credentials of URIs count too.
    """
    named = {name.strip() for name in environment.get(NAMES_VARIABLE, "").split(",")}
    secrets: set[str] = set()
    for name in list(environment):
        value = environment.get(name, "")  # another thread may remove a variable meanwhile
        if name == NAMES_VARIABLE:
            continue
        if name in named or (_SECRET_NAME.search(name) and not _PLACE_NAME.search(name)):
            secrets.add(value)
        if "://" in value:
            secrets.update(credentials_in(value))
    return [secret for secret in secrets if len(secret) >= SHORTEST_SECRET]
