"""The pages whose snippets are tested: every Markdown file of the project."""

from __future__ import annotations

from functools import cache

from tests.support.project_files import project_files
from tests.support.snippets import Page, read_page
from tests.support.studies import REPOSITORY


@cache
def page_names() -> list[str]:
    return project_files("*.md")


@cache
def load(name: str) -> Page:
    return read_page((REPOSITORY / name).read_text("utf-8"), name)
