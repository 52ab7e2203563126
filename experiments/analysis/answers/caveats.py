"""What a reader must know of a choice before relying on it."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from scalestudy.experiments.analysis.measures.cells import Cell, key_of
from scalestudy.experiments.analysis.measures.intervals import ENOUGH_SEEDS, tie_sentence
from scalestudy.experiments.analysis.measures.trainings import TUNED
from scalestudy.experiments.analysis.measures.units import plural

Edge = Literal["lowest", "highest", "only"]


def caveats_of(
    choice: Mapping[str, Any], edge: Edge | None, ties: Sequence[str], batch_edge: Edge | None = None
) -> list[dict[str, str]]:
    """Return the caveats of one row of the recommendation as kind and words, the weightiest first.

    edge: of its learning rate. ties: labels of the cells that it can't be told apart from. batch_edge: of its batch
    size, if the study asks for that; a single batch size is no choice.
    """
    batch_size, flags, seeds = choice["batch_size"], choice["flags"], choice["n_seeds"]
    caveats: dict[str, str | None] = {"seeds": _seed_caveat(seeds), "ties": tie_sentence(ties)}
    if flags:
        caveats["flags"] = f"Its timings are marked {', '.join(flags)}: they may say little about it."
    if choice.get("nodes", 1) > 1:
        caveats["several_nodes"] = (
            f"Its workers were on {choice['nodes']} nodes: its times include the network between these."
        )
    gain = choice.get("strong_speedup")
    if choice.get("seconds") is not None and gain is not None and gain < 1:
        caveats["retrograde"] = (
            f"At batch {batch_size} its {choice['num_gpus']} workers ran at {gain:.2f}× the speed of one worker. "
            "The same training should be faster with one worker; that it was not may be chance."
        )
    if choice["evidence"]["kind"] != "measured":
        trained = ", ".join(choice["evidence"]["cells"])
        caveats["lent"] = f"Its steps are those of {trained}, its seconds a step those of timing runs."
    reached = choice["reached"]
    if reached is not None and reached < seeds:
        were = "was" if choice["cut"] == 1 else "were"
        early = f", {choice['cut']} of which {were} stopped before their end" if choice["cut"] else ""
        caveats["missed"] = f"{seeds - reached} of {plural(seeds, 'seed')} did not reach the target{early}."
    if unseen := choice.get("unseen"):
        caveats["unseen"] = (
            f"{plural(unseen, 'training')} {'was' if unseen == 1 else 'were'} stopped for being behind, and no other "
            "has evaluations on its way to the target: what they would have taken can't be told, and so no interval."
        )
    stopped = len(choice.get("stopped_after") or ()) if choice["censored"] is None else 0
    if stopped:
        caveats["stopped"] = (
            f"{plural(stopped, 'seed')} {'was' if stopped == 1 else 'were'} stopped early: its last evaluation is "
            "not that of a whole training."
        )
    if edge is not None:
        beyond = {"lowest": "a lower one", "highest": "a higher one", "only": "another one"}[edge]
        rate = f"{choice['learning_rate']:g}"
        caveats["rate_edge"] = (
            f"{rate} is the {edge} learning rate tried at batch {batch_size}: {beyond} may do better."
        )
    if batch_edge is not None and batch_edge != "only":
        which, beyond = {"lowest": ("smallest", "a smaller one"), "highest": ("largest", "a larger one")}[batch_edge]
        caveats["batch_edge"] = f"{batch_size} is the {which} batch size tried: {beyond} may do better."
    if undecided := choice.get("undecided"):
        cells, they = ("1 other cell", "it is") if undecided == 1 else (f"{undecided} other cells", "they are")
        caveats["last_evaluation"] = (
            f"{cells} met the target at the last evaluation only: one more evaluation would show whether {they} "
            "faster or cheaper."
        )
    if choice["upper_bound"]:
        caveats["upper_bound"] = (
            "A seed met the target at its first evaluation, which is counted: the time is an upper bound."
        )
    return [{"kind": kind, "words": words} for kind, words in caveats.items() if words]


def _seed_caveat(seeds: int) -> str | None:
    if seeds >= ENOUGH_SEEDS:
        return None
    if seeds == 1:
        return "Provisional: one seed. The scatter of seeds is estimated from how far cells lie off the fitted laws."
    return f"Provisional: {seeds} seeds."


def rate_edges(cells: Sequence[Cell]) -> dict[str, Edge]:
    """Return, by label, the cells whose rate is the lowest, the highest or the only one tried.

    A rate counts as tried if a training with it ended in a way that says something about it. Diverged trainings do.
    Rates compare where all else but num_gpus is equal.
    """
    return _edges(cells, "learning_rate", "num_gpus")


def batch_edges(cells: Sequence[Cell]) -> dict[str, Edge]:
    """Return the same for batch sizes, each at its best rates."""
    return _edges(cells, "batch_size", "learning_rate", "num_gpus")


def _edges(cells: Sequence[Cell], key: str, *besides: str) -> dict[str, Edge]:
    tried: dict[str, set[float]] = {}
    places = {cell.label: (key_of(cell.params, without=(key, *besides)), float(cell.params[key])) for cell in cells}
    for cell in cells:
        if cell.with_status(TUNED):
            place, value = places[cell.label]
            tried.setdefault(place, set()).add(value)
    ends = {place: (min(values), max(values)) for place, values in tried.items()}
    edges: dict[str, Edge] = {}
    for label, (place, value) in places.items():
        lowest, highest = ends.get(place, (value, value))
        if lowest == value == highest:
            edges[label] = "only"
        elif value <= lowest:
            edges[label] = "lowest"
        elif value >= highest:
            edges[label] = "highest"
    return edges
