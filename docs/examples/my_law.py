"""A law of your own, fitted to a study's summary: seconds an epoch = fixed + divided / N, over N workers.

python my_law.py runs/my-study-20260101T000000Z/summary.json
"""

import json
import sys
from pathlib import Path

import numpy as np

from scalestudy.experiments.analysis.laws.least_squares import Fit, NoLawError, Parameter, fit
from scalestudy.experiments.plan.plan import label


def fit_epoch_law(workers: list[int], seconds: list[float]) -> Fit:
    """The law through the seconds of an epoch, one figure for each number of workers. Raises NoLawError."""
    if len(set(workers)) < 2:
        raise NoLawError(f"one number of workers ({workers[0]}) determines no law; time two or more")
    most = max(seconds)
    parameters = (
        Parameter(name="fixed", low=0.0, high=2 * most, starts=(0.1 * most, 0.5 * most)),
        Parameter(name="divided", low=0.0, high=2 * most * max(workers), starts=(most, 0.5 * most)),
    )
    count = np.array(workers, dtype=float)
    return fit(lambda values: values[0] + values[1] / count, seconds, parameters)


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
        law = fit_epoch_law(list(times), list(times.values()))
    except NoLawError as error:
        return f"null, because {error}"
    told = []
    for name in ("fixed", "divided"):
        found = law.estimate(name)
        told.append(f"{name} {found.value:.3g} s" + ("" if found.identified else f" (not identified: {found.why})"))
    return ", ".join(told)


if __name__ == "__main__":
    print("\n".join(of_summary(json.loads(Path(sys.argv[1]).read_text("utf-8")))))
