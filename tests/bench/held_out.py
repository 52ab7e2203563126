"""Seeds of draws that nobody has tuned anything on: they are known only once the code is committed."""

import hashlib
import subprocess

from tests.support.studies import REPOSITORY


def held_out_seed(part: str) -> int:
    """A seed for a part of `make bench`, from the hash of the commit that is checked out."""
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout.strip()
    return int.from_bytes(hashlib.sha256(f"{commit} {part}".encode()).digest()[:8])
