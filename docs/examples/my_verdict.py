"""A verdict of your own, on a study's summary: the optimizer takes a large part of a step.

python my_verdict.py runs/my-study-20260101T000000Z/summary.json
"""

import json
import sys
from pathlib import Path
from typing import Any

from scalestudy.experiments.analysis.answers.verdicts import Case, phase_share

OPTIMIZER_SHARE = 0.15


def slow_optimizer(case: Case) -> dict[str, Any] | None:
    """The update takes more than 15 % of a step where the recommended cell was timed."""
    shares = {row["label"]: phase_share(row, "optimizer") for row in case.places}
    evidence = {label: share for label, share in shares.items() if share is not None and share > OPTIMIZER_SHARE}
    if not evidence:
        return None
    first = next(iter(evidence))
    return {
        "cause": "slow_optimizer",
        "words": f"Updates take {evidence[first]:.0%} of a step ({case.where(first)}; over {OPTIMIZER_SHARE:.0%}).",
        "evidence": evidence,
        "threshold": OPTIMIZER_SHARE,
        "remedy": "Use a larger batch, so that there are fewer updates an epoch, or sgd without momentum.",
        "cells": list(evidence),
    }


if __name__ == "__main__":
    summary = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    found = slow_optimizer(Case.of(summary["timings"], summary["recommendation"]))
    print(f"{found['words']} {found['remedy']}" if found else "The optimizer takes little of a step.")
