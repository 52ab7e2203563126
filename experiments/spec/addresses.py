"""Storage URIs: their parts, their problems, and the address without its credentials."""

import re
from pathlib import Path

from scalestudy.training.redaction import HIDDEN, credentials_in, redacted

SCHEMES = ("s3", "gs", "abfs", "abfss", "hdfs")
"""Kinds of storage that pyarrow.fs reaches, beside folders."""


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
