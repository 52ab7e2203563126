"""The search that a spec asks for."""

from __future__ import annotations

from collections.abc import Callable

from scalestudy.experiments.analysis.answers.next_look import Over, Room
from scalestudy.experiments.plan.plan import Plan
from scalestudy.experiments.spec.study_spec import StudySpec
from scalestudy.orchestration.sweep.adaptive import AdaptiveTrials, LookLimits
from scalestudy.orchestration.sweep.asha import Asha
from scalestudy.orchestration.sweep.search import Past, PlannedTrials, Search, TpeTrials, TrialSource
from scalestudy.orchestration.sweep.stopping import Stopping


def search_for(
    spec: StudySpec,
    plan: Plan,
    past: Past = (),
    *,
    room: Callable[[], Room] = lambda: Room(workers=1),
    over: Callable[[Over], None] = lambda _: None,
) -> Search:
    """Return the search that a spec asks for, after the events of earlier runs.

    A search serves one sweep: after a sweep that broke off, make another from the events so far. room, over: as
    `AdaptiveTrials` takes them.
    """
    source: TrialSource
    rule: Stopping | None = Asha(spec) if spec.search.scheduler == "asha" else None
    if spec.is_adaptive:
        source, rule = AdaptiveTrials(spec, room, over), LookLimits(spec)
    else:
        source = TpeTrials(spec) if spec.search.method == "tpe" else PlannedTrials(plan.trials)
    search = Search(source, rule, plan.trials)
    search.learn(past)
    return search
