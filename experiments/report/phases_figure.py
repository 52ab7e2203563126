"""Where the time of a step goes."""

from collections.abc import Sequence

from scalestudy.experiments.analysis.answers.judged import LOOP_PHASES
from scalestudy.experiments.analysis.answers.verdicts import phase_share
from scalestudy.experiments.analysis.measures.parts import Row, Summary, present
from scalestudy.experiments.report.charts import Bar, Bars, Drawing, Part, not_drawn, places_of, sentences
from scalestudy.experiments.report.flags import flag_mark, flag_words

PHASE_PARTS = {
    "data": Part(words="data", colour="w1"),
    "forward_backward": Part(words="forward + backward", colour="accent"),
    "gradient_sync": Part(words="gradient sync (exposed)", colour="w3"),
    "optimizer": Part(words="optimizer", colour="w2"),
}


def phases_figure(summary: Summary) -> Drawing:
    """Return milliseconds a step by phase, a stacked bar for each (num_gpus, batch_size)."""
    name, title = "phases", "Where a step's time goes"
    rows = [row for row in summary["timings"] if present(row["step_seconds"])]
    if not rows:
        why = LOOP_PHASES if "loop" in summary["study"] else "no trial measured the phases of its steps"
        return not_drawn(name, title, why)
    places = places_of(summary)
    bars = [
        Bar(
            label=f"{row['label']}{flag_mark([row])}",
            values=[row["step_seconds"][phase] * 1000 for phase in PHASE_PARTS],
            cells=[places[each] for each in row["cells"]],
        )
        for row in rows
    ]
    numbers = Bars(label="milliseconds a step (median)", unit="ms", parts=[*PHASE_PARTS.values()], bars=bars)
    return Drawing(name=name, title=title, caption=_caption(rows), numbers=numbers)


def _caption(rows: Sequence[Row]) -> str:
    several = [row for row in rows if row["params"]["num_gpus"] > 1] or list(rows)
    phase = "gradient_sync" if several[0]["params"]["num_gpus"] > 1 else "forward_backward"
    shares = {row["label"]: phase_share(row, phase) or 0.0 for row in several}
    top = max(shares, key=lambda name: shares[name])
    low = min(shares, key=lambda name: shares[name])
    between = "" if len(shares) == 1 else f" and {shares[low]:.0%} of one at {low}"
    words = {"gradient_sync": "Summing gradients", "forward_backward": "Forward and backward"}[phase]
    return sentences(f"{words} takes {shares[top]:.0%} of a step at {top}{between}.", flag_words(rows))
