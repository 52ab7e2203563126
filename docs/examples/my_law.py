"""A law of your own, fitted to a study's summary: seconds an epoch = fixed + divided / N, over N workers.

python my_law.py runs/my-study-20260101T000000Z/summary.json
"""

import json
import sys
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

from scalestudy.experiments.plan.plan import label


def fit_epoch_law(workers: list[int], seconds: list[float]) -> tuple[float, float]:
    """Fixed and divided seconds, from the seconds of an epoch for each number of workers: least relative squares."""
    if len(set(workers)) < 2:
        raise ValueError(f"one number of workers ({workers[0]}) determines no law; time two or more")
    times = np.array(seconds)
    parts = np.stack([np.ones(len(times)), 1 / np.array(workers)], axis=1)
    fixed, divided = nnls(parts / times[:, None], np.ones(len(times)))[0].tolist()
    return fixed, divided


def of_summary(summary: dict) -> list[str]:
    """One line for each combination of swept values, the number of workers left out."""
    lines: dict[str, dict[int, float]] = {}
    for row in summary["timings"]:
        if row["epoch_seconds"]["value"] is not None:
            others = {key: value for key, value in row["params"].items() if key != "num_gpus"}
            lines.setdefault(label(others), {})[row["params"]["num_gpus"]] = row["epoch_seconds"]["value"]
    return [f"{name}: {_words(times)}" for name, times in lines.items()]


def _words(times: dict[int, float]) -> str:
    try:
        fixed, divided = fit_epoch_law(list(times), list(times.values()))
    except ValueError as error:
        return f"null, because {error}"
    return f"fixed {fixed:.3g} s, divided {divided:.3g} s"


if __name__ == "__main__":
    print("\n".join(of_summary(json.loads(Path(sys.argv[1]).read_text("utf-8")))))
