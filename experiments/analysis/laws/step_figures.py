"""What draws of the law of a step's time say of its constants, and what would tell more (docs/formulas.md §4)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from scalestudy.experiments.analysis.laws.estimate import (
    ENDS_AND_MEDIAN,
    WIDEST_RATIO,
    Estimate,
    unknown,
)
from scalestudy.experiments.analysis.laws.step_seconds import StepSeconds
from scalestudy.experiments.analysis.laws.step_terms import COEFFICIENTS, COMPUTE, OVERLAPS, Place, Vector, counts_of

MEASURE: Mapping[str, str] = {
    "alpha_c": "time smaller batches per worker",
    "beta_c": "time larger batches per worker",
    "alpha_r": "time steps with 2 workers",
    "beta_r": "time steps with two or more numbers of workers above 1, such as 2 and 8",
    "gamma": "time batches whose gradients take about as long to compute as to sum",
    "alpha_n": "time steps across two nodes",
    "beta_n": "time steps across two or more numbers of nodes",
}
"""By figure of a law, the measurement that would identify it."""
NEGLIGIBLE = 0.1
"""A constant that may be zero is known well enough if half its interval changes no prediction by more than this share.
It is then too small to matter."""
LEARNT = 0.7
"""Standard deviation of log gamma over what it is beforehand, above which the timings have not told it."""


def why_no_law(places: Sequence[Place]) -> str | None:
    """Return why these places are too few to show a law's constants, and what to time. None if they are enough."""
    within, across = counts_of(places)
    shares = {place.per_worker_batch for place in places}
    if len(shares) < 2:
        only = f"at one batch per worker only ({min(shares):g})" if shares else "nowhere"
        return f"steps were timed {only}; time two or more other batch sizes"
    least = 2 + bool(within) + bool(across)
    if len(places) > least:
        return None
    return (
        f"{len(places)} combinations of workers and batch size can't show a law of {least} constants; time "
        f"{least + 1 - len(places)} more"
    )


class StepFigures:
    """The figures of a law that its places can show (`why_no_law`)."""

    def __init__(self, found: StepSeconds) -> None:
        self._found = found
        self._within, self._across = counts_of(found.lawful)

    def estimate(self, name: str) -> Estimate | None:
        """Return a figure of `MEASURE` with its interval, and what would identify it.

        None if nothing measured depends on it. alpha_r: summing over two workers of a node. beta_r: what each further
        worker adds, on average up to the most that were timed. alpha_n and beta_n: the same over nodes.
        """
        if name == "gamma":
            estimate = self._gamma()
        elif name[-2:] in ("_r", "_n"):
            told = self._sync(name)
            if told is None:
                return None
            estimate = told
        else:
            row = COEFFICIENTS.index(name)
            features = self._found.timings.features[row]
            estimate = self._told(name, self._found.laws.coefficients[:, row], features)
        return estimate if estimate.identified else replace(estimate, why=f"{estimate.why}; {MEASURE[name]}")

    def why_absent(self, name: str) -> str:
        """Return why there is no figure of this name."""
        counts, where = (self._within, "within a node") if name.endswith("_r") else (self._across, "across nodes")
        if not counts:
            return f"no steps of several workers were timed {where}; {MEASURE[name]}"
        kind = "workers" if name.endswith("_r") else "nodes"
        return f"{where}, no other number of {kind} above 1 than {counts[0]} was timed; {MEASURE[name]}"

    def _gamma(self) -> Estimate:
        if not (self._within or self._across):
            return unknown(OVERLAPS[0], "with one worker there is nothing to overlap")
        logs = np.log(self._found.laws.gamma)
        low, value, high = np.exp(_quantiles(logs)).tolist()
        identified = bool(logs.std() <= LEARNT * np.log(OVERLAPS).std())
        why = "" if identified else f"gamma lies anywhere between {low:.3g} and {high:.3g}"
        return Estimate(value=value, low=low, high=high, identified=identified, why=why)

    def _sync(self, name: str) -> Estimate | None:
        of_a_node = name.endswith("_r")
        counts = self._within if of_a_node else self._across
        if len(counts) < (1 if name.startswith("alpha") else 2):
            return None
        few, most = (2 if len(counts) > 1 else counts[0]), counts[-1]
        laws = self._found.laws

        def sync(count: int) -> Vector:
            return laws.sync_seconds(count, 1 if of_a_node else count)

        further = max(most - few, 1)
        several = np.asarray(self._found.timings.features[len(COMPUTE) :].any(axis=0), dtype=float)
        if name.startswith("alpha"):
            estimate = self._told(name, sync(few), several)
        else:
            estimate = self._told(name, (sync(most) - sync(few)) / further, further * several)
        if name.startswith("alpha") and len(counts) == 1 and few != 2:
            what = f"summing over {few} {'workers' if of_a_node else 'nodes'}"
            return replace(estimate, identified=False, why=f"{name} is all that {what} takes")
        return estimate

    def _told(self, name: str, draws: Vector, features: Vector) -> Estimate:
        """Return the figure that is drawn, of zero or above. features: by which it counts at each place (n,)."""
        low, value, high = _quantiles(draws).tolist()
        effect = (high - value) * float((features / np.exp(self._found.timings.logs)).max())
        if high < WIDEST_RATIO * low or effect <= NEGLIGIBLE:
            return Estimate(value=value, low=low, high=high)
        why = f"{name} is at most {high:.3g}, and may be far less"
        return Estimate(value=value, low=low, high=high, identified=False, why=why)


def _quantiles(draws: Vector) -> Vector:
    return np.asarray(np.quantile(draws, ENDS_AND_MEDIAN))
