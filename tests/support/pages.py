"""The project's Markdown pages: their fenced blocks, their inline code, and the shell commands in either."""

from __future__ import annotations

import re
import shlex
import textwrap
from dataclasses import dataclass

from tests.support.project_files import REPOSITORY, project_files

FENCED = re.compile(
    r'^(?P<indent>[ \t]*)```(?P<language>\w+)(?: title="(?P<title>[^"]+)")?\n(?P<text>.*?)^(?P=indent)```$',
    re.MULTILINE | re.DOTALL,
)
HEADING = re.compile(r"^(#{1,6})\s+(.*?)\s*#*$", re.MULTILINE)
INLINE = re.compile(r"(?<!`)`([^`\n]+(?:\n(?![ \t]*\n)[^`\n]+)?)`(?!`)")
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
HEREDOC = re.compile(r"<<-?\s*'?(\w+)'?.*?\n.*?^\s*\1$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block; line: of its opening fence, from 1."""

    language: str
    title: str | None
    text: str
    line: int


def page_names() -> list[str]:
    """Every Markdown file of the project."""
    return project_files("*.md")


def page_text(name: str) -> str:
    """A page as it lies in the repository."""
    return (REPOSITORY / name).read_text("utf-8")


def blocks(text: str, *languages: str) -> list[Block]:
    """The fenced blocks of a page in their order, of these languages, or all."""
    return [
        Block(
            language=found["language"],
            title=found["title"],
            text=textwrap.dedent(found["text"]),
            line=text.count("\n", 0, found.start()) + 1,
        )
        for found in FENCED.finditer(text)
        if not languages or found["language"] in languages
    ]


def inline_code(text: str) -> list[str]:
    """What stands between single backticks, outside of fenced blocks; as one line each."""
    return [" ".join(span.replace("\\|", "|").split()) for span in INLINE.findall(FENCED.sub("", text))]


def shell_commands(text: str) -> list[list[str]]:
    """The commands of a shell's text as lists of words, without comments, here-documents and leading assignments."""
    plain = re.sub(r"(?:^|(?<=\s))#.*", "", HEREDOC.sub("", text).replace("\\\n", " "))
    lexer = shlex.shlex(plain, posix=True, punctuation_chars=";&|\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t", True, ""
    commands, command = list[list[str]](), list[str]()
    for word in [*lexer, ";"]:
        if set(word) <= set(";&|\n"):
            commands += [command] if command else []
            command = []
        elif command or not ASSIGNMENT.match(word):
            command.append(word)
    return commands


def anchors(text: str, depth: int | None = None) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them; depth: only of those with so many #."""
    headings = HEADING.findall(re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
        for signs, heading in headings
        if depth in (None, len(signs))
    }
