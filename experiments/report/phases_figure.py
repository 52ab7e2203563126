"""Where the time of a step goes."""

from collections.abc import Sequence

from scalestudy.experiments.analysis.answers.judged import LOOP_PHASES
from scalestudy.experiments.analysis.answers.verdicts import phase_share
from scalestudy.experiments.analysis.measures.parts import Row, Summary, present
from scalestudy.experiments.analysis.measures.usable import PHASES
from scalestudy.experiments.report.drawing import (
    HATCHES,
    PALETTE,
    Drawn,
    canvas,
    export,
    legend_below,
    not_drawn,
    sentences,
)
from scalestudy.experiments.report.flags import flag_mark, flag_words

PHASE_NAMES = {
    "data": "data",
    "forward_backward": "forward + backward",
    "gradient_sync": "gradient sync (exposed)",
    "optimizer": "optimizer",
}
MOST_BARS = 16


def phases_figure(summary: Summary) -> Drawn:
    """Draw milliseconds a step by phase, with a stacked bar for each (num_gpus, batch_size)."""
    name, title = "phases", "Where a step's time goes"
    measured = [row for row in summary["timings"] if present(row["step_seconds"])]
    if not measured:
        why = LOOP_PHASES if "loop" in summary["study"] else "no trial measured the phases of its steps"
        return not_drawn(name, title, why)
    rows = measured
    if len(measured) > MOST_BARS:  # evenly from the whole range, the first and the last among them
        rows = [measured[round(number * (len(measured) - 1) / (MOST_BARS - 1))] for number in range(MOST_BARS)]
    with canvas(height=0.9 + 0.42 * len(rows)) as (figure, axes):
        left = [0.0 for _ in rows]
        for place, phase in enumerate(PHASES):
            widths = [row["step_seconds"][phase] * 1000 for row in rows]
            axes.barh(
                range(len(rows)),
                widths,
                left=left,
                height=0.44,
                color=PALETTE[place],
                hatch=HATCHES[place],
                edgecolor="white",
                linewidth=0.6,
                label=PHASE_NAMES[phase],
            )
            left = [start + width for start, width in zip(left, widths, strict=True)]
        for place, total in enumerate(left):
            axes.annotate(
                f"{total:.3g}", (total, place), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8
            )
            name_of_bar = f"{rows[place]['label']}{flag_mark([rows[place]])}"
            axes.annotate(name_of_bar, (0, place - 0.27), xytext=(1, 1), textcoords="offset points", fontsize=8)
        axes.set_yticks([])
        axes.set_ylim(len(rows) - 0.6, -0.75)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("milliseconds a step (median)")
        axes.margins(x=0.12)
        legend_below(figure, axes.get_legend_handles_labels()[0])
        return export(figure, name, title, _phases_caption(rows, len(measured)))


def _phases_caption(rows: Sequence[Row], of_all: int) -> str:
    cut = f"Of {of_all} sizes {len(rows)} from the whole range are shown." if of_all > len(rows) else ""
    several = [row for row in rows if row["params"]["num_gpus"] > 1] or list(rows)
    phase = "gradient_sync" if several[0]["params"]["num_gpus"] > 1 else "forward_backward"
    shares = {row["label"]: phase_share(row, phase) or 0.0 for row in several}
    top = max(shares, key=lambda name: shares[name])
    low = min(shares, key=lambda name: shares[name])
    between = "" if len(shares) == 1 else f" and {shares[low]:.0%} of one at {low}"
    words = {"gradient_sync": "Summing gradients", "forward_backward": "Forward and backward"}[phase]
    return sentences(f"{words} takes {shares[top]:.0%} of a step at {top}{between}.", cut, flag_words(rows))
