"""Stage 8, analysis: what a reader must know before following one recommendation, as sentences."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from experiments.analysis.cells import Cell, key_of
from experiments.analysis.intervals import ENOUGH_SEEDS
from experiments.analysis.rate_grid import TUNED
from experiments.analysis.ties import tie_sentence

Edge = Literal["lowest", "highest", "only"]


def rate_edges(cells: Sequence[Cell]) -> dict[str, Edge]:
    """By label, the cells whose rate is the lowest, the highest or the only one tried where all but num_gpus is alike.

    A rate counts as tried where a training with it ended in a way that says something about it, diverged ones too.
    """
    return _edges(cells, "learning_rate", "num_gpus")


def batch_edges(cells: Sequence[Cell]) -> dict[str, Edge]:
    """The same of batch sizes, each at rates of its own."""
    return _edges(cells, "batch_size", "learning_rate", "num_gpus")


def _edges(cells: Sequence[Cell], key: str, *besides: str) -> dict[str, Edge]:
    tried: dict[str, set[float]] = {}
    places = {cell.label: (key_of(cell.params, without=(key, *besides)), float(cell.params[key])) for cell in cells}
    for cell in cells:
        if cell.with_status(TUNED):
            place, value = places[cell.label]
            tried.setdefault(place, set()).add(value)
    edges = {label: _edge(value, tried.get(place, set())) for label, (place, value) in places.items()}
    return {label: edge for label, edge in edges.items() if edge is not None}


def _edge(value: float, tried: set[float]) -> Edge | None:
    if tried <= {value}:
        return "only"
    if value <= min(tried):
        return "lowest"
    return "highest" if value >= max(tried) else None


def caveats_of(
    choice: Mapping[str, Any], edge: Edge | None, ties: Sequence[str], batch_edge: Edge | None = None
) -> list[str]:
    """Of one row of the recommendation, the weightiest first.

    edge: of its learning rate. ties: labels of what it can't be told apart from.
    """
    found = [
        _seed_caveat(choice["n_seeds"]),
        tie_sentence(ties),
        _slower_caveat(choice),
        _inferred_caveat(choice["evidence"]),
        _miss_caveat(choice),
        _stopped_caveat(choice),
        _edge_caveat(choice, edge),
        _batch_caveat(choice, batch_edge),
        _bound_caveat(choice),
        _flag_caveat(choice["flags"]),
    ]
    return [caveat for caveat in found if caveat]


def _seed_caveat(seeds: int) -> str | None:
    if seeds >= ENOUGH_SEEDS:
        return None
    if seeds == 1:
        return "Provisional: with one seed it is not known how far its figures scatter, nor whether other cells differ."
    return f"Provisional: of {seeds} seeds the range is shown; no difference from other cells is established."


def _slower_caveat(choice: Mapping[str, Any]) -> str | None:
    """Of a time to a target with more workers than are of use: seeds and rounding made it short, not the workers."""
    gain = choice.get("strong_speedup")
    if choice.get("seconds") is None or gain is None or gain >= 1:
        return None
    return (
        f"At batch {choice['batch_size']} its {choice['num_gpus']} workers made steps at {gain:.2f}× the speed of one: "
        "what learns alike is sooner with one, and that it was not so here may be chance."
    )


def _inferred_caveat(evidence: Mapping[str, Any]) -> str | None:
    if evidence["kind"] == "measured":
        return None
    trained = ", ".join(evidence["cells"])
    return f"Inferred: the epochs are those of {trained}, the seconds an epoch those of a timing run of its own."


def _miss_caveat(choice: Mapping[str, Any]) -> str | None:
    reached, seeds = choice["reached"], choice["n_seeds"]
    if reached is None or reached >= seeds:
        return None
    return f"{seeds - reached} of {seeds} seeds did not reach the target."


def _stopped_caveat(choice: Mapping[str, Any]) -> str | None:
    """Of a time to a target: seeds that are left out; of a final metric: seeds that have not trained to the end."""
    left_out = choice.get("stopped")
    if left_out:
        were = "1 more seed was" if left_out == 1 else f"{left_out} more seeds were"
        return f"{were} stopped before the target and left out: those that were let go on may be the lucky ones."
    count = len(choice.get("stopped_after") or ()) if left_out is None else 0
    if not count:
        return None
    were = "1 seed was" if count == 1 else f"{count} seeds were"
    return f"{were} stopped early, so that the last epoch is not that of a whole training."


def _edge_caveat(choice: Mapping[str, Any], edge: Edge | None) -> str | None:
    if edge is None:
        return None
    beyond = {"lowest": "a lower one", "highest": "a higher one", "only": "another one"}[edge]
    rate, batch = f"{choice['learning_rate']:g}", choice["batch_size"]
    return f"{rate} is the {edge} learning rate tried at batch {batch}: {beyond} may do better."


def _batch_caveat(choice: Mapping[str, Any], edge: Edge | None) -> str | None:
    """Of a study that asks for the batch size: with one alone there is nothing to choose."""
    if edge is None or edge == "only":
        return None
    which, beyond = {"lowest": ("smallest", "a smaller one"), "highest": ("largest", "a larger one")}[edge]
    return f"{choice['batch_size']} is the {which} batch size tried: {beyond} may do better."


def _bound_caveat(choice: Mapping[str, Any]) -> str | None:
    if not choice["upper_bound"]:
        return None
    return "A seed met the target within its first epoch, whose end is counted: the time is an upper bound."


def _flag_caveat(flags: Sequence[str]) -> str | None:
    return f"Its timings are marked {', '.join(flags)}." if flags else None
