"""That the pages repeat the thresholds of verdicts as the code has them."""

import re

import pytest

from scalestudy.experiments.analysis.answers import verdicts
from tests.support.studies import REPOSITORY

FIGURES = {
    "data": f"{verdicts.DATA_SHARE:.0%}",
    "allreduce": f"{verdicts.SYNC_SHARE:.0%}",
    "small batch per worker": f"{verdicts.SMALL_BATCH_RATIO}",
    "fixed cost": f"{verdicts.FIXED_SHARE:.0%}",
    "straggler": f"{verdicts.STRAGGLER_RATIO}",
    "disturbed": f"{verdicts.UNSTEADINESS:.0%}",
    "not sharded": f"{verdicts.SHARDED_HALFWAY}",
}
WORDS = {"50%": "half", "0.5": "half"}
"""How a page may write a figure."""


def rows_of(page):
    """The verdicts' tables of a page: name to the rest of its line."""
    lines = (REPOSITORY / "docs" / page).read_text("utf-8").splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return {name: " ".join(rest) for name, *rest in cells}


@pytest.mark.parametrize("page", ["report.md", "formulas.md"])
@pytest.mark.parametrize("verdict", FIGURES)
def test_a_page_has_the_threshold_of_the_code(page, verdict):
    row, figure = rows_of(page)[verdict].replace(" %", "%"), FIGURES[verdict]
    assert {figure, WORDS.get(figure)} & set(re.findall(r"[a-z]+|[\d.]+%?", row)), row


@pytest.mark.parametrize("page", ["report.md", "formulas.md"])
def test_a_page_has_every_verdict(page):
    """A rule is called as its verdict is, but for two."""
    names = {rule.__name__.replace("_", " ") for rule in (*verdicts.DOUBTS, *verdicts.CAUSES)}
    assert names - {"unsteady", "data wait"} <= rows_of(page).keys()
