"""A report's page as a reader meets it: its tags, its text, its tables."""

import re
from html.parser import HTMLParser

VOID = {"meta", "br", "link", "img", "hr", "input"}
MOST_ROWS = 9
INLINE = {"strong", "span", "a", "output", "br"}
NOT_WORDS = re.compile(r"(?<![\w.])(nan|NaN|-?inf|Infinity|None|null|undefined)(?![\w.])")
"""What a reader must never meet."""


class Page(HTMLParser):
    """Collects tags, attributes, text and tables; complains about tags that are not closed in order.

    tables: by aria-label of the box around, the rows, each a list of texts, the header first. lines: what is read, a
    line for each part of the page or row of a table; without pictures, scripts and the study's spec.
    """

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.attributes, self.text = [], [], [], []
        self.tables, self._label, self.scripts = {}, None, []
        self._lines = [""]
        self.feed(text)
        self.close()
        assert self.open == []

    @property
    def shown(self):
        """All text that can be read, scripts and styles left out."""
        return "".join(self.text)

    @property
    def said(self):
        """The text before the study's spec, which is the user's own."""
        return self.shown.partition("The study's spec")[0]

    @property
    def lines(self):
        """See above. Of a table with many rows, the first ones."""
        read = (" ".join(line.split()).strip("| ") for line in self._lines)
        kept, rows = [], 0
        for line in filter(None, read):
            if line == "The study's spec":
                break
            rows = rows + 1 if " | " in line else 0
            kept += [line] if rows <= MOST_ROWS else ["…"] if rows == MOST_ROWS + 1 else []
        return "\n".join(kept)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self._lines[-1:] = [f"{self._lines[-1]} | "] if tag in ("td", "th") else [self._lines[-1]]
        if tag not in {"td", "th", *INLINE}:
            self._lines.append("#" * int(tag[1]) + " " if tag in ("h1", "h2", "h3") else "")
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)
        if dict(attrs).get("role") == "region":
            self._label = dict(attrs)["aria-label"]
            self.tables[self._label] = []
        if tag == "tr":
            self.tables[self._label].append([])
        if tag in ("td", "th"):
            self.tables[self._label][-1].append("")

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        if tag not in {"td", "th", *INLINE}:
            self._lines.append("")

    def handle_data(self, data):
        if self.open and self.open[-1] in ("script", "style"):
            self.scripts += [data] if self.open[-1] == "script" else []
            return
        data = data.replace("\u00a0", " ")
        self.text.append(data)
        if "head" not in self.open:
            self._lines[-1] += data
        if {"td", "th"} & set(self.open):
            self.tables[self._label][-1][-1] += data


def check(text):
    """The page of a report in which a reader meets no word of a programming language."""
    page = Page(text)
    assert not NOT_WORDS.findall(page.said)
    assert "Traceback" not in page.shown
    return page
