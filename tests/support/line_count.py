"""How many lines a user writes: those that are neither blank nor comment nor docstring."""

from __future__ import annotations

import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

LAYOUT = (tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING, tokenize.ENDMARKER)


def lines_written(files: Iterable[Path]) -> int:
    """The lines of all files together; Python by its tokens, anything else as YAML."""
    return sum(_lines_of_python(file) if file.suffix == ".py" else _lines_of_yaml(file) for file in files)


def _lines_of_python(file: Path) -> int:
    with tokenize.open(file) as stream:
        statements = list(_statements(tokenize.generate_tokens(stream.readline)))
    said = [tokens for tokens in statements if any(token.type != tokenize.STRING for token in tokens)]
    return len({line for tokens in said for token in tokens for line in range(token.start[0], token.end[0] + 1)})


def _statements(tokens: Iterable[tokenize.TokenInfo]) -> Iterator[list[tokenize.TokenInfo]]:
    """The tokens of each logical line, without those that are layout."""
    found: list[tokenize.TokenInfo] = []
    for token in tokens:
        if token.type == tokenize.NEWLINE:
            yield found
            found = []
        elif token.type not in LAYOUT:
            found.append(token)


def _lines_of_yaml(file: Path) -> int:
    lines = [line.strip() for line in file.read_text("utf-8").splitlines()]
    return sum(1 for line in lines if line and not line.startswith("#"))
