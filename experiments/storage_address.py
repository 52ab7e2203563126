"""Stage 1, study spec: addresses of storage – the path of a folder, or the URI of an object store. Pure text."""

from pathlib import Path

from experiments.redaction import credentials_in

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
