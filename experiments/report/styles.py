"""Which cells get which colour, line and marker, and which are drawn if there are many."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scalestudy.experiments.analysis.measures.cells import Cell, key_of
from scalestudy.experiments.analysis.measures.parts import Summary, present
from scalestudy.experiments.analysis.measures.units import FLAGGED, metric_of
from scalestudy.experiments.plan.plan import label
from scalestudy.experiments.report.drawing import INK, LINES, MARKERS, MUTED, PALETTE, line_handle, patch_handle

Params = Mapping[str, Any]
FEW_CELLS = 12
"""With more cells than this, only the recommended ones have a colour, each its own. Nobody could tell more apart."""
MOST_CELLS = 60
"""Cells drawn in one figure. If there are more, the recommended and the best are drawn."""


@dataclass(frozen=True)
class Styles:
    """How the cells of a study are drawn.

    Few cells have a line and marker by num_gpus, and a colour by everything else. If there are many, each recommended
    cell and each of the Pareto front has its own colour, line and marker. The rest is grey.

    by_cell: whether there are many. colours: by group. A group is a cell if there are many, else all cells that differ
    only in num_gpus. foremost: labels of the cells that are drawn. flagged: groups with a flag on some timing.
    """

    by_cell: bool
    colours: Mapping[str, str]
    labels: Mapping[str, str]
    workers: Sequence[int]
    foremost: frozenset[str]
    flagged: frozenset[str]

    @classmethod
    def of(cls, summary: Summary) -> "Styles":
        """The styles of a study's cells. Those that matter most have the palette's colours."""
        by_cell = len(summary["cells"]) > FEW_CELLS
        shared = () if by_cell else ("num_gpus",)
        recommended = _recommended(summary)
        rank = [*recommended, *_by_metric(summary)]
        groups: dict[str, str] = {}
        for row in recommended if by_cell else rank:
            rest = {name: value for name, value in row["params"].items() if name not in shared}
            groups.setdefault(key_of(rest), label(rest))
        labels = dict(list(groups.items())[: len(PALETTE)])
        return cls(
            by_cell=by_cell,
            colours=dict(zip(labels, PALETTE, strict=False)),
            labels=labels,
            workers=sorted({row["params"]["num_gpus"] for row in summary["cells"]}),
            foremost=frozenset(list(dict.fromkeys(row["label"] for row in rank))[:MOST_CELLS]),
            flagged=frozenset(key_of(row["params"], shared) for row in summary["cells"] if row["flags"]),
        )

    def _group(self, params: Params) -> str:
        return key_of(params, () if self.by_cell else ("num_gpus",))

    def most_important(self, cells: Sequence[Cell]) -> list[Cell]:
        """The cells that are drawn, in their order."""
        return [cell for cell in cells if cell.label in self.foremost]

    def colour(self, params: Params) -> str:
        """The colour of a cell."""
        return self.colours.get(self._group(params), MUTED)

    def is_grey(self, params: Params) -> bool:
        """Whether a cell has no colour of its own."""
        return self._group(params) not in self.colours

    def marker(self, params: Params) -> str:
        """The marker of a cell among points, by num_gpus."""
        return MARKERS[self.workers.index(params["num_gpus"]) % len(MARKERS)]

    def line(self, params: Params) -> dict[str, Any]:
        """Matplotlib's keywords for a cell's line."""
        if self.is_grey(params):
            return {"color": MUTED, "linewidth": 0.7, "alpha": 0.6, "zorder": 2}
        if self.by_cell:
            return self._own_line(self._group(params))
        place = self.workers.index(params["num_gpus"])
        looks = {"linestyle": LINES[place % len(LINES)], "marker": self.marker(params)}
        return {"color": self.colour(params), "linewidth": 1.7, "zorder": 3, **looks}

    def _own_line(self, group: str) -> dict[str, Any]:
        place = list(self.colours).index(group)
        looks = {"linestyle": LINES[place % len(LINES)], "marker": MARKERS[place % len(MARKERS)]}
        return {"color": self.colours[group], "linewidth": 1.8, "zorder": 3 + 0.1 * place, **looks}

    def line_handles(self, drawn: Sequence[Params], timed: bool) -> list[Any]:
        """Legend entries for the lines of some cells. timed: with the mark of flags."""
        groups, grey = self._among(drawn)
        rest = [line_handle(color=MUTED, linewidth=0.7, label="other cells")] if grey else []
        looks = {group: self._own_line(group) if self.by_cell else {"color": self.colours[group]} for group in groups}
        colours = [line_handle(label=self._name(group, timed), **look) for group, look in looks.items()]
        return [*colours, *rest, *([] if self.by_cell else self._worker_handles(lines=True))]

    def _among(self, drawn: Sequence[Params]) -> tuple[list[str], bool]:
        """The coloured groups that some cells belong to, and whether others of them are grey."""
        there = {self._group(params) for params in drawn}
        return [group for group in self.colours if group in there], any(map(self.is_grey, drawn))

    def point_handles(self, drawn: Sequence[Params]) -> list[Any]:
        """Legend entries for the points of some cells: colours as patches, num_gpus as markers."""
        groups, grey = self._among(drawn)
        rest = [patch_handle(color=MUTED, label="other cells")] if grey else []
        colours = [patch_handle(color=self.colours[group], label=self._name(group, True)) for group in groups]
        return [*colours, *rest, *self._worker_handles(lines=False)]

    def _name(self, group: str, timed: bool) -> str:
        return f"{self.labels[group]}{f' {FLAGGED}' if timed and group in self.flagged else ''}"

    def _worker_handles(self, lines: bool) -> list[Any]:
        return [
            line_handle(
                color=INK,
                linestyle=LINES[place % 4] if lines else "none",
                marker=MARKERS[place % 6],
                label=f"num_gpus={number}",
            )
            for place, number in enumerate(self.workers)
        ]


def flag_mark(rows: Sequence[Mapping[str, Any]]) -> str:
    """The mark that follows what flagged timings touch."""
    return f" {FLAGGED}" if any(row["flags"] for row in rows) else ""


def flag_words(rows: Sequence[Mapping[str, Any]]) -> str:
    """A sentence about what the mark means here. Empty if no row is flagged."""
    flags = sorted({flag.replace("_", " ") for row in rows for flag in row["flags"]})
    return f"{FLAGGED} Timed under doubtful conditions ({', '.join(flags)})." if flags else ""


def used_all_the_same(part: Mapping[str, Any]) -> str:
    """A sentence saying that a law, or what follows from it, rests on flagged timings. Empty if it does not."""
    return f"Flagged timings ({FLAGGED}) were used anyway." if part.get("flagged") else ""


def _recommended(summary: Summary) -> list[Mapping[str, Any]]:
    """The cells that were chosen, then the rest of the Pareto front. Each has label and params."""
    recommendation = summary["recommendation"]
    best = metric_of(summary["study"]).choice_key
    parts = [recommendation[key] for key in ("recommended", "fastest", "cheapest", best)]
    front = set(recommendation["pareto"])
    return [*filter(present, parts), *(row for row in summary["cells"] if row["label"] in front)]


def _by_metric(summary: Summary) -> list[Mapping[str, Any]]:
    """The cells' rows, the best first, and those without a value last."""
    metric = metric_of(summary["study"])
    known = [row for row in summary["cells"] if present(row[metric.key])]
    rows = sorted(known, key=lambda row: metric.order(row[metric.key]["value"]))
    return [*rows, *(row for row in summary["cells"] if not present(row[metric.key]))]
