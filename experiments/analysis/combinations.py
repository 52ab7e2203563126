"""Stage 8, analysis: cells by what is swept beyond num_gpus, batch_size and learning_rate.

Such keys (gradient_sync, the optimizer …) may change both the time of a step and what a step learns, so that each
combination of them has laws of its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.analysis.cells import Cell, key_of
from experiments.analysis.parts import Part, present
from experiments.plan import label

USUAL = ("num_gpus", "batch_size", "learning_rate", "seed")


@dataclass(frozen=True, kw_only=True)
class Combination:
    """The cells that share every swept key but the usual ones. settings: these keys; of: their label, "" for none."""

    settings: Mapping[str, Any]
    cells: tuple[Cell, ...]

    @property
    def of(self) -> str:
        """`gradient_sync=ddp`."""
        return label(self.settings)

    @property
    def trials(self) -> int:
        """How many trainings it has."""
        return sum(len(cell.trials) for cell in self.cells)


def combinations(cells: Sequence[Cell], recommendation: Part | None = None) -> list[Combination]:
    """The combinations of a study, the recommended cell's first, then by their number of trainings.

    recommendation: of `recommendation.choose`; None or without a choice: the one with most trainings stands first.
    """
    members: dict[str, list[Cell]] = {}
    for cell in cells:
        members.setdefault(key_of(cell.params, without=USUAL), []).append(cell)
    found = [Combination(settings=_settings(group[0].params), cells=tuple(group)) for group in members.values()]
    choice = (recommendation or {}).get("choice")
    wanted = _settings(choice["params"]) if choice is not None and present(choice) else None
    return sorted(found, key=lambda each: (each.settings != wanted, -each.trials))


def _settings(params: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in params.items() if key not in USUAL}
