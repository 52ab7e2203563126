"""That the pages repeat the thresholds of verdicts as the code has them."""

import re

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


def test_pages_have_the_thresholds_of_the_code():
    """Every table row of a page that begins with a verdict's name, and at least one for each."""
    found = set()
    for page in sorted((REPOSITORY / "docs").rglob("*.md")):
        for line in page.read_text("utf-8").splitlines():
            name, _, row = line.strip("| ").partition(" |")
            if line.startswith("|") and name in FIGURES:
                said = set(re.findall(r"[a-z]+|[\d.]+%?", row.replace(" %", "%")))
                assert {FIGURES[name], WORDS.get(FIGURES[name])} & said, f"{page.name}: {line}"
                found.add(name)
    assert found == FIGURES.keys()
