"""Storage URIs, and secrets kept out of text."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import quote, unquote

SCHEMES = ("s3", "gs", "abfs", "abfss", "hdfs")
"""Kinds of storage that pyarrow.fs reaches, beside folders."""
HIDDEN = "***"
"""Replaces a secret in text."""
SHORTEST_SECRET = 6
"""Characters. A shorter secret would be found inside ordinary words."""
NAMES_VARIABLE = "SCALESTUDY_SECRETS"
"""Names more environment variables that hold secrets, separated by commas."""


def is_uri(where: str | Path) -> bool:
    """Whether an address is a URI. All others are paths."""
    return "://" in str(where)


def child(where: str | Path, *names: str) -> str:
    """The address of something inside a place. In a URI the path grows and the options stay at the end."""
    place, question, options = str(where).partition("?") if is_uri(where) else (str(where), "", "")
    return "/".join([place.rstrip("/"), *names]) + question + options


def parent_and_name(where: str | Path) -> tuple[str, str]:
    """Splits an address into the address of its parent and its name there."""
    place, question, options = str(where).partition("?") if is_uri(where) else (str(where), "", "")
    parent, _, name = place.rstrip("/").rpartition("/")
    return parent + question + options, name


def uri_problem(uri: str) -> tuple[str, str] | None:
    """Checks a URI as a storage address. Returns what is wrong and the remedy, or None if it is valid."""
    scheme, _, rest = uri.partition("://")
    if scheme not in SCHEMES:
        kinds = ", ".join(f"{each}://" for each in SCHEMES)
        return "is an unknown kind of storage", f"name a folder, or a URI that starts with one of {kinds}"
    if has_credentials(uri):
        names = " (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY)" if scheme == "s3" else ""
        remedy = f"remove them, and pass them in environment variables{names}"
        return "holds credentials, which would appear in files and logs", remedy
    path = rest.partition("?")[0].split("/")
    if not path[0] or ".." in path:
        return "is not a folder in a bucket", "name a bucket and a folder in it, such as s3://bucket/runs"
    return None


def has_credentials(uri: str) -> bool:
    """Whether a URI holds credentials. These belong in the environment, since files and logs show addresses.

    The part before an "@" is a user name with hdfs, a container name with abfs, and an access key with s3.
    """
    scheme, _, rest = uri.partition("://")
    return bool(credentials_in(uri)) or (scheme == "s3" and "@" in rest)


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
    """Hides the credentials of all URIs in a text: `http://ann:***@host?token=***`.

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
    """What `redacted` hides in the URIs of a text: each as written, then percent-decoded."""
    secrets = [match["secret"] for pattern in _IN_URIS for match in pattern.finditer(text) if match["secret"] != HIDDEN]
    return [form for secret in secrets for form in dict.fromkeys((secret, unquote(secret)))]


def secrets_in(environment: Mapping[str, str]) -> list[str]:
    """The secrets among environment variables.

    A variable is secret if its name says so or SCALESTUDY_SECRETS lists it. Credentials of URIs count too.
    """
    named = {name.strip() for name in environment.get(NAMES_VARIABLE, "").split(",")}
    secrets: set[str] = set()
    for name, value in environment.items():
        if name == NAMES_VARIABLE:
            continue
        if name in named or (_SECRET_NAME.search(name) and not _PLACE_NAME.search(name)):
            secrets.add(value)
        if "://" in value:
            secrets.update(credentials_in(value))
    return [secret for secret in secrets if len(secret) >= SHORTEST_SECRET]


def bare_uri(uri: str) -> str:
    """Removes what `redacted` would hide. The result may be stored, and the environment completes it later.

    A database URI keeps its user name. An http URI loses it, since the name alone is of no use.
    """
    uri = redacted(uri)
    uri = re.sub(r"(?<=://)[^/?#]*@", "", uri) if uri.lower().startswith("http") else uri.replace(f":{HIDDEN}@", "@")
    base, mark, query = uri.partition("?")
    kept = [part for part in re.split("[&;]", query) if not part.endswith(f"={HIDDEN}")]
    return base + (mark + "&".join(kept) if kept else "")


def same_place(one: str, other: str) -> bool:
    """Whether two URIs are equal, apart from their credentials."""
    one, other = (re.sub(r"(?<=://)[^/?#]*@", "", bare_uri(uri)) for uri in (one, other))
    return one == other
