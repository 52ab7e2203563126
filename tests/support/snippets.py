"""Reads a Markdown page into its fenced blocks, its inline code, and what comments say of how the blocks are tested.

Comments that GitHub and the site do not show, each on the line before a block:

* `<!-- not run: WHY; instead: tests/path/test_file.py::test_name -->`; several tests with commas
* `<!-- ran before: scalestudy run study.yaml -->`: this line has made what the folder begins with, and is not run again
* `<!-- in the background until: URL -->`: the commands stay in the foreground; the URL answers once they are up
* `<!-- the output of: COMMAND -->`: which earlier command the shown output is of; else it is the block before
* `<!-- not output: WHY -->`: text that no command of the page prints, as a formula; `; instead: TEST` if another does

and one anywhere on the page: `<!-- the folder begins with: the repository, my-study -->`, either or both.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

LANGUAGES = ("bash", "dockerfile", "json", "math", "python", "text", "yaml")
NOT_RUN, RAN_BEFORE, BACKGROUND = "not run", "ran before", "in the background until"
OUTPUT_OF, NOT_OUTPUT = "the output of", "not output"
INSTEAD = "; instead:"
SAID = {
    NOT_RUN: LANGUAGES,
    RAN_BEFORE: ("bash",),
    BACKGROUND: ("bash",),
    OUTPUT_OF: ("text",),
    NOT_OUTPUT: ("text",),
}
"""What a comment may say, and of blocks in which languages."""
REPOSITORY_FOLDER, STUDY_FOLDER = "the repository", "my-study"

COMMENT = re.compile(r"^[ \t]*<!--\s*(?P<kind>[a-z ]+?):\s*(?P<rest>.*?)\s*-->", re.DOTALL | re.MULTILINE)
ANY_COMMENT = re.compile(r"^[ \t]*<!--.*?-->", re.DOTALL | re.MULTILINE)
BEFORE_A_BLOCK = re.compile(r"(?:^[ \t]*<!--(?:(?!-->).)*-->[ \t]*\n)+\Z", re.DOTALL | re.MULTILINE)
FENCE = re.compile(r"^(?P<indent>[ \t]*)(?P<fence>`{3,}|~{3,})(?P<info>.*)$")
INFO = re.compile(r'^(?P<language>\w+)(?:\s+title="(?P<title>[^"]+)")?$')
INLINE = re.compile(r"(?<!`)(`+)(?!`)((?:(?!\n[ \t]*\n).)+?)(?<!`)\1(?!`)", re.DOTALL)
SESSION = re.compile(r"^\$ ", re.MULTILINE)


class SnippetError(ValueError):
    """A page that does not keep to the convention: file, line and what is wrong."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block, and what the comments before it say."""

    language: str
    title: str | None
    text: str
    line: int
    """Of the opening fence, from 1."""
    follows: bool = False
    """Nothing but comments and empty lines stand between it and the block before."""
    said: Mapping[str, str] = field(default_factory=dict)

    @property
    def not_run(self) -> bool:
        return NOT_RUN in self.said

    @property
    def is_run(self) -> bool:
        """Whether a page's test executes it: commands, or Python that is no file."""
        if self.not_run:
            return False
        return self.language == "bash" or self.is_session or (self.language == "python" and self.title is None)

    @property
    def is_session(self) -> bool:
        """Text that shows `$ command` lines with what they print."""
        return self.language == "text" and bool(SESSION.search(self.text))

    @property
    def instead(self) -> list[str]:
        """The tests that check what can be checked of a block that is not run, or is output that is not compared."""
        said = self.said.get(NOT_RUN) or self.said.get(NOT_OUTPUT, "")
        _, named, tests = said.partition(INSTEAD)
        return [name.strip() for name in tests.split(",")] if named else []

    @property
    def commands(self) -> str:
        """The commands of a block, as a shell takes them."""
        if not self.is_session:
            return self.text
        return "".join(line[2:] + "\n" for line in self.text.splitlines() if line.startswith("$ "))

    @property
    def shown(self) -> str:
        """The output of a text block, without commands."""
        return "".join(line + "\n" for line in self.text.splitlines() if not line.startswith("$ "))


@dataclass(frozen=True, kw_only=True)
class Span:
    """Inline code."""

    text: str
    line: int


@dataclass(frozen=True, kw_only=True)
class Page:
    """A page of Markdown, read."""

    name: str
    blocks: tuple[Block, ...]
    spans: tuple[Span, ...]
    begins_with: frozenset[str]


def read_page(text: str, name: str) -> Page:
    """Raises SnippetError where the page does not keep to the convention."""
    blocks, prose = _blocks(text, name)
    begins: set[str] = set()
    for comment in COMMENT.finditer(prose):
        line = prose.count("\n", 0, comment.start()) + 1
        begins |= _begins_with(comment, f"{name}:{line}")
    _refuse_lost_comments(prose, blocks, name)
    return Page(name=name, blocks=tuple(blocks), spans=tuple(_spans(prose)), begins_with=frozenset(begins))


def _blocks(text: str, name: str) -> tuple[list[Block], str]:
    """The blocks, and the page with an empty line in the place of each of their lines."""
    blocks, prose, inside, opening, since = list[Block](), list[str](), list[str](), None, 0
    for number, line in enumerate(text.splitlines(), start=1):
        fence = FENCE.match(line)
        if opening is None and fence is None:
            prose.append(line + "\n")
            continue
        if opening is None:
            opening, opened_at = fence, number
        elif fence and _closes(fence, opening):
            follows = bool(blocks) and not ANY_COMMENT.sub("", "".join(prose[since:])).strip()
            blocks.append(_block(opening["info"], inside, opened_at, follows, "".join(prose), name))
            prose += ["\n"] * (len(inside) + 2)
            since = len(prose)
            inside, opening = [], None
        else:
            inside.append(line)
    if opening is not None:
        raise SnippetError(f"{name}:{opened_at}: a block that does not end")
    return blocks, "".join(prose)


def _closes(fence: re.Match[str], opening: re.Match[str]) -> bool:
    return fence["fence"].startswith(opening["fence"]) and not fence["info"].strip()


def _block(info: str, lines: list[str], line: int, follows: bool, before: str, name: str) -> Block:
    place = f"{name}:{line}"
    read = INFO.match(info.strip())
    if read is None or read["language"] not in LANGUAGES:
        raise SnippetError(f"{place}: ```{info.strip()}: write one of {', '.join(LANGUAGES)}, and at most a title")
    text = textwrap.dedent("".join(f"{each}\n" for each in lines))
    said = _said(before, read["language"], place)
    return Block(language=read["language"], title=read["title"], text=text, line=line, follows=follows, said=said)


def _said(before: str, language: str, place: str) -> dict[str, str]:
    """What the comments that end on the line above a block say."""
    comments = BEFORE_A_BLOCK.search(before)
    said = {each["kind"]: each["rest"] for each in COMMENT.finditer(comments[0])} if comments else {}
    said = {kind: " ".join(rest.split()) for kind, rest in said.items() if kind in SAID}
    for kind, rest in said.items():
        if language not in SAID[kind]:
            raise SnippetError(f"{place}: `{kind}` can't be said of {language}")
        if not rest:
            raise SnippetError(f"{place}: `{kind}:` says nothing")
    if NOT_RUN in said:
        why, _, instead = said[NOT_RUN].partition(INSTEAD)
        if not why.strip() or not instead.strip():
            raise SnippetError(f"{place}: `not run` needs a reason and a test: WHY; instead: tests/…::test_…")
    return said


def _refuse_lost_comments(prose: str, blocks: list[Block], name: str) -> None:
    """Comments that were meant for a block and stand before none."""
    written = [each for each in COMMENT.finditer(prose) if each["kind"] in SAID]
    if len(written) > sum(len(block.said) for block in blocks):
        kinds = ", ".join(f"`{each['kind']}` in line {prose.count(chr(10), 0, each.start()) + 1}" for each in written)
        raise SnippetError(f"{name}: a comment stands right before no block: one of {kinds}")


def _begins_with(comment: re.Match[str], place: str) -> set[str]:
    if comment["kind"] != "the folder begins with":
        return set()
    parts = {part.strip() for part in comment["rest"].split(",")}
    if unknown := parts - {REPOSITORY_FOLDER, STUDY_FOLDER}:
        raise SnippetError(f"{place}: a folder begins with {REPOSITORY_FOLDER} or {STUDY_FOLDER}, not {unknown}")
    return parts


def _spans(prose: str) -> Iterator[Span]:
    without_comments = ANY_COMMENT.sub(lambda found: "\n" * found[0].count("\n"), prose)
    for found in INLINE.finditer(without_comments):
        line = without_comments.count("\n", 0, found.start()) + 1
        yield Span(text=" ".join(found[2].replace("\\|", "|").split()), line=line)


def shows_output(block: Block, before: Block | None) -> bool:
    """Whether text shows what was printed by itself, as a session, or by the block right before it."""
    return block.is_session or bool(before and block.follows and before.is_run and BACKGROUND not in before.said)


def comment_spans(text: str) -> list[Span]:
    """Inline code, and lines that begin with the command, in a YAML file's comments."""
    comments = "".join(
        f"{line.lstrip()[1:].strip() if line.lstrip().startswith('#') else ''}\n" for line in text.splitlines()
    )
    bare = (Span(text=re.split(r"\s{2,}", found[0])[0], line=comments.count("\n", 0, found.start()) + 1)
            for found in re.finditer(r"^scalestudy .*$", comments, re.MULTILINE))  # fmt: skip
    return [*_spans(comments), *bare]


def names_a_test(name: str, root: Path) -> bool:
    """Whether `tests/path/test_file.py::test_name` names a test function, by its source alone."""
    path, _, function = name.partition("::")
    file = root / path
    if not re.fullmatch(r"tests/[\w/]+\.py", path) or not function.startswith("test_") or not file.is_file():
        return False
    tree = ast.parse(file.read_text("utf-8"))
    return any(isinstance(node, ast.FunctionDef) and node.name == function for node in tree.body)
