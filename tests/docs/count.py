"""`python -m tests.docs.count`: what of the documentation is tested, in which way, as a table."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from tests.docs.pages import load, page_names
from tests.support.snippet_words import commands, is_a_name, span_commands, spec_keys
from tests.support.snippets import NOT_OUTPUT, OUTPUT_OF, Block, Page, shows_output

COLUMNS = ("page", "blocks", "commands run", "specs", "files", "python run", "outputs", "inline", "not run")


def compared(page: Page) -> list[Block]:
    """The text blocks that are compared with what was printed."""
    before = [None, *page.blocks]
    return [
        block
        for block, previous in zip(page.blocks, before, strict=False)
        if block.language == "text" and not block.not_run and NOT_OUTPUT not in block.said
        and (OUTPUT_OF in block.said or shows_output(block, previous))
    ]  # fmt: skip


def counts(page: Page) -> tuple[int, ...]:
    """The figures of a page, in the order of COLUMNS."""
    run = [block for block in page.blocks if block.is_run]
    return (
        len(page.blocks),
        sum(len(commands(block.commands)) for block in run if block.language != "python"),
        sum(block.language == "yaml" and not block.not_run for block in page.blocks),
        sum(block.title is not None for block in page.blocks),
        sum(block.language == "python" for block in run),
        len(compared(page)),
        sum(len(span_commands(span.text)) + len(spec_keys(span.text)) + is_a_name(span.text) for span in page.spans),
        sum(block.not_run for block in page.blocks),
    )


def lines() -> Iterator[str]:
    """The table, its sums, and each block that is not run with its reason and its tests."""
    rows = [(name, *counts(load(name))) for name in page_names()]
    sums = ("together", *(sum(column) for column in list(zip(*rows, strict=True))[1:]))
    width = max(len(name) for name, *_ in rows)
    for first, *rest in (COLUMNS, *rows, sums):
        yield "  ".join(
            [f"{first:<{width}}", *(f"{each:>{len(name)}}" for each, name in zip(rest, COLUMNS[1:], strict=True))]
        )
    yield ""
    for page in map(load, page_names()):
        for block in page.blocks:
            if block.not_run:
                yield f"{page.name}:{block.line}: {block.said['not run'].partition(';')[0]}; {', '.join(block.instead)}"


if __name__ == "__main__":
    sys.stdout.writelines(f"{line}\n" for line in lines())
