"""A report's page as a reader meets it: its tags, its text, its tables."""

import re
from html.parser import HTMLParser

from scalestudy.experiments.report.page import render_page
from tests.support.rich_study import TEXT

VOID = {"meta", "br", "link", "img", "hr", "input"}
NOT_WORDS = re.compile(r"(?<![\w.])(nan|NaN|-?inf|Infinity|None|null|undefined)(?![\w.])")
"""What a reader must never meet."""


class Page(HTMLParser):
    """Collects tags, attributes, text and tables; complains about tags that are not closed in order.

    tables: by aria-label of the box around, the rows, each a list of texts, the header first.
    """

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.attributes, self.text = [], [], [], []
        self.tables, self._label, self.scripts = {}, None, []
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

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
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

    def handle_data(self, data):
        if self.open and self.open[-1] in ("script", "style"):
            self.scripts += [data] if self.open[-1] == "script" else []
            return
        data = data.replace("\u00a0", " ")
        self.text.append(data)
        if {"td", "th"} & set(self.open):
            self.tables[self._label][-1][-1] += data


def check(text):
    """The page of a report in which a reader meets no word of a programming language."""
    page = Page(text)
    assert not NOT_WORDS.findall(page.said)
    assert "Traceback" not in page.shown
    return page


def page_of(summary, figures=()):
    """The page of a summary; drawing all of its figures takes its time, so that most tests do without."""
    return check(render_page(summary, figures, TEXT))


def number(text):
    """The number that a text begins with, seconds where it is a time, 0 to 1 where it is a percentage."""
    value, unit = re.match(r"([-+]?[\d,.]+(?:e[-+]?\d+)?)†?\s*([^\s(]*)", text).groups()
    factor = {"ms": 1e-3, "µs": 1e-6, "min": 60.0, "h": 3600.0, "%": 0.01}.get(unit, 1.0)
    return float(value.replace(",", "")) * factor
