"""The pages whose snippets are tested: every Markdown file of the project."""

from __future__ import annotations

import subprocess
from functools import cache

from tests.support.snippets import Page, read_page
from tests.support.studies import REPOSITORY


def page_names() -> list[str]:
    return tracked("*.md")


@cache
def tracked(pattern: str) -> list[str]:
    """The files of a pattern that are tracked, or new and not ignored."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", pattern]
    listed = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    return [name for name in sorted(set(listed.splitlines())) if (REPOSITORY / name).is_file()]


@cache
def load(name: str) -> Page:
    return read_page((REPOSITORY / name).read_text("utf-8"), name)
