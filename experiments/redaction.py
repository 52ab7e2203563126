"""What is shown, logged or recorded, without the passwords in it: those inside URIs, and given secrets as such."""

import re
from collections.abc import Iterable, Mapping
from urllib.parse import quote, unquote

HIDDEN = "***"
"""Stands where a secret stood."""
SHORTEST_SECRET = 6
"""Characters; a shorter one would be found in words that have nothing to do with it."""
NAMES_VARIABLE = "SCALESTUDY_SECRETS"
"""Names more variables of the environment that hold secrets, separated by commas."""

_WORDS = r"passwo?r?d|passwd|passphrase|secret|token|credential|signature|(?:api|access|account|private)_?key"
_SECRET_NAME = re.compile(rf"(?:^|_|PG)(?:{_WORDS})S?(?:_|$)|_PWD$", re.IGNORECASE)
_PLACE_NAME = re.compile(r"_(?:FILE|PATH|DIR|URI|URL|MODE|ID|TTL)$", re.IGNORECASE)
_END = r"\s'\"<>"
# A password ends at the last @ of the authority, or, where it holds a `/`, as SQLAlchemy allows, at the next @.
# A port is no password; before a quotation mark it is one if punctuation
# comes next, as in JSON, or no @ in the same word.
_PORT = r"\d+(?:[/?#\s]|$|['\"<>](?:[,;:.}\])\s]|$|(?![^/?#\s]*@)))"
_PASSWORD = re.compile(rf"(?P<start>://[^/:@?#\[{_END}]*:)(?P<secret>(?!{_PORT})(?:[^/?#\s]+(?=@)|[^@\s]+(?=@)))")
_WEB_USER = re.compile(rf"(?P<start>\b(?:https?|s3)://)(?P<secret>[^/:@?#{_END}]+)(?=@)", re.IGNORECASE)
_PARAMETER = re.compile(
    rf"(?P<start>(?:[?&;])[\w.-]*(?:{_WORDS}|\bsig|\bauth)[\w.-]*=)(?P<secret>[^&;#{_END}]+)", re.IGNORECASE
)
_IN_URIS = (_PASSWORD, _WEB_USER, _PARAMETER)


def redacted(text: str, secrets: Iterable[str] = ()) -> str:
    """A text without the passwords of the URIs in it: `http://ann:***@host?token=***`; nor these secrets.

    A user name stays where a password follows it; over http and for s3, where it may be a token or a key, it does not
    stay alone.
    secrets: taken out wherever they stand, also as URIs write them.
    """
    for secret in sorted(secrets, key=len, reverse=True):
        for form in (secret, quote(secret, safe="")):
            text = text.replace(form, HIDDEN)
    for pattern in _IN_URIS:
        text = pattern.sub(lambda found: found["start"] + HIDDEN, text)
    return text


def bare_uri(uri: str) -> str:
    """A URI with nothing in place of what `redacted` hides: what may be kept, and completed from the environment.

    A database keeps its user's name; over http the user goes too, for the name alone would say nothing.
    """
    uri = redacted(uri)
    uri = re.sub(r"(?<=://)[^/?#]*@", "", uri) if uri.lower().startswith("http") else uri.replace(f":{HIDDEN}@", "@")
    base, mark, query = uri.partition("?")
    kept = [part for part in re.split("[&;]", query) if not part.endswith(f"={HIDDEN}")]
    return base + (mark + "&".join(kept) if kept else "")


def same_place(one: str, other: str) -> bool:
    """Whether two URIs differ in their credentials at most."""
    return _place(one) == _place(other)


def secrets_in(environment: Mapping[str, str]) -> list[str]:
    """The secrets among variables: what a name says is one, or SCALESTUDY_SECRETS names, and passwords in URIs."""
    named = {name.strip() for name in environment.get(NAMES_VARIABLE, "").split(",")}
    found: set[str] = set()
    for name, value in environment.items():
        if name == NAMES_VARIABLE:
            continue
        if name in named or (_SECRET_NAME.search(name) and not _PLACE_NAME.search(name)):
            found.add(value)
        if "://" in value:
            found.update(credentials_in(value))
    return [secret for secret in found if len(secret) >= SHORTEST_SECRET]


def credentials_in(text: str) -> list[str]:
    """What `redacted` hides in the URIs of a text, as it stands there and as it is meant."""
    found = [match["secret"] for pattern in _IN_URIS for match in pattern.finditer(text) if match["secret"] != HIDDEN]
    return [form for secret in found for form in dict.fromkeys((secret, unquote(secret)))]


def _place(uri: str) -> str:
    return re.sub(r"(?<=://)[^/?#]*@", "", bare_uri(uri))
