"""Why an adaptive search has ended, in words: for its journal, its summary and its report."""

from collections.abc import Mapping

from scalestudy.experiments.analysis.measures.progress import LOOP_TELLS_NONE

NO_CHOICE: Mapping[str | None, str] = {
    "unreached": "no training has reached the target",
    "none_can_run": "of every cell trials failed or ran out of memory",
    "untimed": "no timing run told what a step takes",
    "no_steps": LOOP_TELLS_NONE,
}
"""By `next_look.Over.why`: the ends of a search that has nothing to choose."""
WHY_OVER: Mapping[str | None, str] = {
    "sure": "the choice is likely enough near the best",
    "budget": "the budget has no room for another training",
    "uses": "another look costs more than it saves",
    **NO_CHOICE,
}
"""Why looking ended, by `Over.why`."""
UNCHOSEN: Mapping[str | None, str] = {
    "budget": "the budget was used before a training had reached the target",
    None: "it was cut short before a training had reached the target",
    **NO_CHOICE,
}
"""Why no cell is chosen, by why looking ended; None: it has not."""
