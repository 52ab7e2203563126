"""What `mkdocs build` does beyond MkDocs: pages from outside docs/, and links that hold on GitHub and on the site.

In the repository a page links to what lies beside it: `../infra/ray/README.md`, `../training/loop/train.py`. The site
has docs/ at its root. So README.md is added as its first page, CONTRIBUTING.md and the pages of infra/ and skills/
under their own paths, every other file that some page links to becomes a page that shows it, under `source/`, and links
are turned round as pages are read.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
OUTSIDE = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "infra/**/*.md", "skills/**/*.md")
"""Pages of the repository that the site has too, those of them that are there."""
FIRST = ("README.md", "index.md")
"""The page that opens the repository opens the site, too: its path here and there."""
LANGUAGES = {".py": "python", ".sh": "bash", ".yaml": "yaml", ".toml": "toml", ".js": "javascript", ".css": "css"}
PICTURES = {".png", ".svg", ".jpg"}

LINK = re.compile(r"(?<=\]\()([^)\s#]*)(#[^)\s]*)?(?=(?:\s+\"[^\"]*\")?\))")
NUMBER = re.compile(r"^( +\d{2,})\.(?= )", re.MULTILINE)
"""A sentence's last number at the beginning of a line: within a list Python-Markdown takes it for another item, GitHub
does not. No list here has ten items."""
CODE = re.compile(r"(```.*?```|`[^`\n]*`)", re.DOTALL)
ELSEWHERE = re.compile(r"[a-z][a-z+.-]*:")


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages from outside docs/, and a page for each other file that is linked to."""
    from mkdocs.structure.files import File, InclusionLevel

    for page in sorted(found for pattern in OUTSIDE for found in ROOT.glob(pattern)):
        path = page.relative_to(ROOT).as_posix()
        files.append(File.generated(config, FIRST[1] if path == FIRST[0] else path, abs_src_path=str(page)))
    pages = [file for file in files if file.is_documentation_page()]
    for path in sorted({path for page in pages for path in linked_sources(page.content_string, in_repository(page))}):
        content = shown(path, (ROOT / path).read_text("utf-8"))
        place = f"source/{path}.md"
        files.append(File.generated(config, place, content=content, inclusion=InclusionLevel.NOT_IN_NAV))
    return files


def on_page_markdown(markdown: str, page: Any, files: Files, **_: Any) -> str:
    """The page with links, and numbers at the beginnings of lines, as the site needs them."""
    markdown = outside_code(markdown, lambda part: NUMBER.sub(r"\1\\.", part))
    return turned(markdown, page.file.src_uri, {in_repository(file): file.src_uri for file in files})


def in_repository(file: File) -> str:
    """Where the repository has what the site has as this file."""
    path: str = file.src_uri
    if path.startswith("source/"):
        return path.removeprefix("source/").removesuffix(".md")
    if path == FIRST[1]:
        return FIRST[0]
    return path if file.generated_by else f"docs/{path}"


def linked_sources(markdown: str, page: str) -> Iterator[str]:
    """Files of the repository, neither pages nor pictures, that a page links to. page: its path in the repository."""
    for part in CODE.split(markdown)[::2]:
        for place, _ in LINK.findall(part):
            path = resolved(place, page)
            if path and Path(path).suffix not in {".md", *PICTURES} and (ROOT / path).is_file():
                yield path


def turned(markdown: str, page: str, site: Mapping[str, str]) -> str:
    """The Markdown with each link that the site would break turned to where the site has its target.

    page: its path on the site. site: by path in the repository, the path on the site; what is not there stays, so
    that MkDocs complains of it.
    """
    at = next((path for path, place in site.items() if place == page), f"docs/{page}")

    def turn(found: re.Match[str]) -> str:
        place, anchor = found[1], found[2] or ""
        target = site.get(resolved(place, at) or "")
        return posixpath.relpath(target, posixpath.dirname(page) or ".") + anchor if target else found[0]

    return outside_code(markdown, lambda part: LINK.sub(turn, part))


def outside_code(markdown: str, change: Callable[[str], str]) -> str:
    """The Markdown, changed wherever it is no code."""
    parts = CODE.split(markdown)
    parts[::2] = map(change, parts[::2])
    return "".join(parts)


def resolved(place: str, page: str) -> str | None:
    """The path in the repository that a link leads to; None for a link within the page, or to another site."""
    if not place or ELSEWHERE.match(place):
        return None
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), place))


def shown(path: str, text: str) -> str:
    """A page that shows a file."""
    language = LANGUAGES.get(Path(path).suffix, "text")
    return f"# {path}\n\n````{language}\n{text.rstrip()}\n````\n"
