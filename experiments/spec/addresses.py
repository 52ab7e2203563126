"""Addresses: paths as URIs and back, the parts and problems of storage URIs, and addresses without credentials."""

import re
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

from scalestudy.training.redaction import HIDDEN, credentials_in, redacted

SCHEMES = ("s3", "gs", "abfs", "abfss", "hdfs")
"""Kinds of storage that pyarrow.fs reaches, beside folders."""


_DATABASE = re.compile(r"sqlite(?:\+\w+)?:///(?P<file>[^?]*)(?:\?(?P<options>.*))?", re.DOTALL)


def uri_of(path: Path, kind: Literal["file", "sqlite"] = "file", options: str = "") -> str:
    """Return the URI of a file or folder, or of an SQLite database; `path_of` gives the path again.

    path: absolute. options: of a database's URI, as `options_of` gives them.

    SQLAlchemy ends a database's path at the first `?`, and decodes `%41`. MLflow makes the folder of every path behind
    `sqlite:///` as it stands there, so a path that needs quoting names the driver too.
    """
    if kind == "file":
        return path.as_uri()
    quoted = re.sub(r"%(?=[0-9A-Fa-f]{2})", "%25", str(path)).replace("?", "%3F")
    driver = "" if quoted == str(path) else "+pysqlite"
    return f"sqlite{driver}:///{quoted}" + (f"?{options}" if options else "")


def path_of(uri: str) -> Path | None:
    """Return the path that a file's or an SQLite database's URI names; None for every other URI.

    A `?` begins the options of a database, as for SQLAlchemy. None too for a database in memory, and for options that
    give the path another meaning (`uri=true`).
    """
    if database := _DATABASE.fullmatch(uri):
        file = unquote(database["file"])
        return None if file in ("", ":memory:") or "uri=" in (database["options"] or "") else Path(file)
    parts = urlsplit(uri)
    return Path(unquote(parts.path)) if parts.scheme == "file" and not parts.netloc else None


def options_of(uri: str) -> str:
    """Return what follows the `?` of an SQLite database's URI; empty for every other URI."""
    database = _DATABASE.fullmatch(uri)
    return database["options"] or "" if database else ""


def is_uri(where: str | Path) -> bool:
    """Whether an address is a URI. All others are paths."""
    return "://" in str(where)


def child(where: str | Path, *names: str) -> str:
    """Return the address of something inside a place. In a URI the path grows and the options stay at the end."""
    place, question, options = str(where).partition("?") if is_uri(where) else (str(where), "", "")
    return "/".join([place.rstrip("/"), *names]) + question + options


def parent_and_name(where: str | Path) -> tuple[str, str]:
    """Split an address into the address of its parent and its name there."""
    place, question, options = str(where).partition("?") if is_uri(where) else (str(where), "", "")
    parent, _, name = place.rstrip("/").rpartition("/")
    return parent + question + options, name


def uri_problem(uri: str) -> tuple[str, str] | None:
    """Check a URI as a storage address. Return what is wrong and the remedy, or None if it is valid."""
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


def bare_uri(uri: str) -> str:
    """Remove what `redacted` would hide. The result may be stored, and the environment completes it later.

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
