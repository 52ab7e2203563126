"""Storage URIs, and secrets kept out of text."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
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


SCHEMES = ("s3", "gs", "abfs", "abfss", "hdfs")
"""Kinds of storage that pyarrow.fs reaches, beside folders."""


def is_uri(where: str | Path) -> bool:
    """Whether an address is a URI; a path otherwise."""
    return "://" in str(where)


def child(where: str | Path, *names: str) -> str:
    """The address of what lies in a place: of a URI, the path grows and the options stay."""
    place, question, options = str(where).partition("?") if is_uri(where) else (str(where), "", "")
    return "/".join([place.rstrip("/"), *names]) + question + options


def parent_and_name(where: str | Path) -> tuple[str, str]:
    """The address of the place that something lies in, and its name there."""
    place, question, options = str(where).partition("?") if is_uri(where) else (str(where), "", "")
    parent, _, name = place.rstrip("/").rpartition("/")
    return parent + question + options, name


def uri_problem(uri: str) -> tuple[str, str] | None:
    """What is wrong with a URI as the address of storage, and the remedy; None where nothing is."""
    scheme, _, rest = uri.partition("://")
    if scheme not in SCHEMES:
        kinds = ", ".join(f"{each}://" for each in SCHEMES)
        return "is storage of an unknown kind", f"name a folder, or a URI that starts with one of {kinds}"
    if has_credentials(uri):
        names = " (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY)" if scheme == "s3" else ""
        remedy = f"take them out, and give them by the environment{names}"
        return "holds credentials, which would stand in files and logs", remedy
    path = rest.partition("?")[0].split("/")
    if not path[0] or ".." in path:
        return "is not a place in a bucket", "name a bucket and a folder in it, such as s3://bucket/runs"
    return None


def has_credentials(uri: str) -> bool:
    """Whether a URI holds what should stand in the environment: files keep addresses, and logs show them.

    The part before an "@" is a user's name with hdfs, a container's with abfs, and half a secret with s3.
    """
    scheme, _, rest = uri.partition("://")
    return bool(credentials_in(uri)) or (scheme == "s3" and "@" in rest)
