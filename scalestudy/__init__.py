"""How many GPUs, what batch size and what learning rate reach your accuracy soonest and cheapest.

`run_study`, `resume_study` and `judge` are the Python way in, and `step` is for a training loop of your own. They are
imported on first use, because Ray unpickles functions from the modules of this package inside processes that must start
fast. `orchestration`, `training` and `experiments` are links to the folders beside this one; `lightning` and
`transformers` have a callback for trainings with those libraries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scalestudy.orchestration.judging.judge import judge
    from scalestudy.orchestration.study.result import StudyResult
    from scalestudy.orchestration.study.study import resume_study, run_study
    from scalestudy.training.steps import step

    __version__: str

__all__ = ["StudyResult", "__version__", "judge", "resume_study", "run_study", "step"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from scalestudy.orchestration.base.places import version

        return version()
    if name == "judge":
        from scalestudy.orchestration.judging.judge import judge

        return judge
    if name == "step":
        from scalestudy.training.steps import step

        globals()["step"] = step  # a loop asks for it at every step, which then costs no import
        return step
    if name in __all__:
        from scalestudy.orchestration.study import study

        return getattr(study, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
