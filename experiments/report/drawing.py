"""How Matplotlib's figures look: palette, sizes, and a figure as SVG.

Figures are Matplotlib objects (`matplotlib.figure.Figure`), without pyplot's global state. In the SVG the colours of
ink, rules and muted lines become CSS variables, so that figures follow the page's light or dark scheme.
"""

import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito's colours without yellow and black. Readers with a colour-vision deficiency can tell them apart."""
MARKERS = ("o", "s", "^", "D", "v", "P")
LINES: tuple[Any, ...] = ("-", (0, (4, 2)), (0, (1, 1.5)), (0, (5, 1.5, 1, 1.5)))
HATCHES = ("", "", "///", "")
INK, RULE, MUTED, PAPER = "#16181c", "#d9dce1", "#8d939c", "#fdfdfc"
_CSS: Mapping[str, str] = {INK: "currentColor", RULE: "var(--rule)", MUTED: "var(--muted)", PAPER: "var(--paper)"}
WIDTH_INCHES, HEIGHT_INCHES = 5.0, 3.2
"""The size of one panel. Its text is readable on a telephone."""
LEGEND_CHARACTERS = 68
"""Characters of labels and handles that one row of a legend holds."""
MOST_TICKS = 13
LEAST_RATIO = 4.0
TICK_STEPS = ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 7), tuple(step / 10 for step in range(10, 100, 2)))
STYLE: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": MUTED,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.unicode_minus": False,
    "font.family": ["DejaVu Sans"],
    "font.size": 9,
    "grid.color": RULE,
    "grid.linewidth": 0.7,
    "hatch.linewidth": 0.6,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "legend.handlelength": 2.8,
    "lines.linewidth": 1.7,
    "lines.markersize": 4.5,
    "svg.fonttype": "none",
    "svg.hashsalt": "scalestudy",
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": INK,
    "xtick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.color": INK,
    "ytick.major.size": 0,
    "ytick.minor.size": 0,
}


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """One figure of the page."""

    name: str
    title: str
    caption: str
    """What it shows in this study, or why it can't be drawn."""
    svg: str = ""
    """Empty: it can't be drawn."""


def not_drawn(name: str, title: str, why: str) -> Drawn:
    """Return a figure that can't be drawn. why: a clause without a full stop."""
    return Drawn(name=name, title=title, caption=f"{why}.")


def sentences(*parts: str) -> str:
    """Join the parts of a caption. Empty ones are left out."""
    return " ".join(part for part in parts if part)


@contextmanager
def canvas(height: float = HEIGHT_INCHES) -> Iterator[tuple["Figure", "Axes"]]:
    """Yield a figure of one panel with its axes, in the report's style. Draw and export it inside."""
    import matplotlib as mpl  # here, since it is slow to import and analysis does not need it
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH_INCHES, height), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure, figure.add_subplot()


def export(figure: "Figure", name: str, title: str, caption: str) -> Drawn:
    """Return the drawn figure as SVG. The same drawing gives the same text."""
    out = io.StringIO()
    figure.savefig(out, format="svg", transparent=True)
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', text)
    text = re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", text)
    for colour, variable in _CSS.items():
        text = text.replace(colour, variable)
    text = text.replace("'DejaVu Sans'", "system-ui, 'DejaVu Sans', sans-serif")
    size = re.search(r'<svg[^>]*?(viewBox="[^"]+")[^>]*>', text)
    escapes = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"}
    label = "".join(escapes.get(character, character) for character in f"{title}. {caption}")
    box, xlink = size[1] if size else "", "http://www.w3.org/1999/xlink"
    opening = f'<svg {box} role="img" aria-label="{label}" xmlns:xlink="{xlink}">'
    svg = re.sub(r"<svg[^>]*>", lambda _: opening, text, count=1).strip()
    return Drawn(name=name, title=title, caption=caption, svg=svg)


def line_handle(**looks: Any) -> Any:
    """Return a legend's entry for a line or a marker."""
    from matplotlib.lines import Line2D

    return Line2D([], [], **looks)


def patch_handle(**looks: Any) -> Any:
    """Return a legend's entry for an area."""
    from matplotlib.patches import Patch

    return Patch(**looks)


def legend_below(figure: "Figure", handles: list[Any]) -> None:
    """Add a legend under the axes, where it hides no data. The figure grows by its rows, the axes keep their size."""
    if not handles:
        return
    longest = max(len(str(handle.get_label())) for handle in handles)
    columns = max(1, min(3, len(handles), LEGEND_CHARACTERS // (longest + 7)))
    rows = -(-len(handles) // columns)
    width, height = figure.get_size_inches()
    figure.set_size_inches(width, height + 0.2 * rows)
    figure.legend(handles=handles, loc="outside lower left", ncols=columns)


def plain_log_axes(axes: "Axes", which: Literal["x", "y", "xy"]) -> None:
    """Make one or both axes logarithmic, with ticks that read as plain numbers."""
    from matplotlib.ticker import NullLocator

    axes.set(**{f"{letter}scale": "log" for letter in which})
    for letter in which:
        axis, limits = (axes.xaxis, axes.get_xlim()) if letter == "x" else (axes.yaxis, axes.get_ylim())
        limits = widened(*limits)
        axes.set(**{f"{letter}lim": limits})
        ticks = log_ticks(*limits)
        axis.set_minor_locator(NullLocator())
        axis.set_ticks(ticks, [f"{tick:g}" for tick in ticks])


def widened(low: float, high: float) -> tuple[float, float]:
    """Return the ends of a log axis, at least a factor of `LEAST_RATIO` apart.

    On less, small differences look large.
    """
    short = max(1.0, LEAST_RATIO * low / high) ** 0.5
    return low / short, high * short


def log_sizes_axis(axes: "Axes", sizes: Sequence[float]) -> None:
    """Make a logarithmic x axis with a tick for each size tried. If there are many, every other one or fewer."""
    from matplotlib.ticker import NullLocator

    axes.set_xscale("log", base=2)
    axes.xaxis.set_minor_locator(NullLocator())
    ticks = sorted(set(sizes))
    ticks = ticks[:: max(1, -(-len(ticks) // MOST_TICKS))]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])


def log_ticks(low: float, high: float) -> list[float]:
    """Return round numbers within the limits of a log axis, about evenly spaced: three or more if there are so many."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks: list[float] = []
    for steps in TICK_STEPS:
        ticks = [float(f"{step}e{decade}") for decade in decades for step in steps]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) >= 3:
            break
    return ticks[:: max(1, len(ticks) // 5)]
