"""Figures as numbers and words: what `charts.js` draws. How they look, the page's scripts decide."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from scalestudy.experiments.analysis.measures.parts import Summary

LineStyle = Literal["", "solid", "dashed", "dotted"]
Shape = Literal["", "circle", "square", "triangle", "diamond", "down", "cross"]
COLOURS = ("w1", "w2", "w3", "w4", "w5", "w6")
"""Colours for what differs, as style.css names them; beside them there are accent, ink and soft."""
SHAPES: tuple[Shape, ...] = ("circle", "square", "triangle", "diamond", "down")
"""Shapes for what differs: one fewer than colours, so that 30 of both differ."""


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One axis of a chart."""

    label: str
    log: bool = False
    start: float | None = None
    """Where it begins, if no number is less."""
    ticks: Sequence[float] = ()
    """Empty: round numbers."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """One point of a series."""

    x: float
    y: float
    low: float | None = None
    """With high, its 90 % interval."""
    high: float | None = None
    cells: Sequence[int] = ()
    """Places of the cells that it is of, in the study's order: where filters hide all of them, it is hidden too."""
    words: Sequence[str] = ()
    """What is told of it: a title, then lines."""
    note: str = ""
    """Beside it."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """Points of one kind."""

    words: str = ""
    """Its entry in the legend; empty: none."""
    points: Sequence[Point]
    colour: str
    line: LineStyle = ""
    """Joins the points."""
    shape: Shape = ""
    """Stands at each point."""
    hollow: bool = False
    band: bool = False
    """Whether the intervals are drawn as an area, in place of a bar each."""


@dataclass(frozen=True, kw_only=True)
class Upright:
    """A vertical line."""

    at: float
    low: float | None = None
    """With high, the ends of the area that is shaded around it."""
    high: float | None = None
    words: str = ""
    """Its entry in the legend; empty: none."""
    note: str = ""
    """Along it."""
    colour: str
    line: LineStyle


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Series over two axes."""

    x: Axis
    y: Axis
    series: Sequence[Series]
    uprights: Sequence[Upright] = ()


@dataclass(frozen=True, kw_only=True)
class Part:
    """What one part of every stacked bar is."""

    words: str
    colour: str


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One stacked bar."""

    label: str
    values: Sequence[float]
    """A length for each part."""
    cells: Sequence[int]
    """See `Point`."""


@dataclass(frozen=True, kw_only=True)
class Bars:
    """Stacked bars, one below the other."""

    label: str
    """What the lengths are."""
    unit: str
    """Follows a length."""
    parts: Sequence[Part]
    bars: Sequence[Bar]


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """One figure of the page."""

    name: str
    title: str
    caption: str = ""
    """What it shows in this study."""
    lacks: str = ""
    """Why it can't be drawn; empty: it can."""
    numbers: Chart | Bars | None = None
    """None: the page draws it from its cells."""


def not_drawn(name: str, title: str, why: str) -> Drawing:
    """Return a figure that can't be drawn. why: a clause without a full stop."""
    return Drawing(name=name, title=title, lacks=f"{why}.")


def sentences(*parts: str) -> str:
    """Join the parts of a caption. Empty ones are left out."""
    return " ".join(part for part in parts if part)


def between(low: float | None, high: float | None, text: Callable[[float], str]) -> str:
    """Return ` (low to high)`, which follows a number; empty without an interval."""
    return "" if low is None or high is None else f" ({text(low)} to {text(high)})"


def places_of(summary: Summary) -> dict[str, int]:
    """Return the place of each cell in the study's order, by its label."""
    return {row["label"]: place for place, row in enumerate(summary["cells"])}
