"""How far a training is at an evaluation, as far as a study's records say it, and its updates where they do not.

Our own loop counts its updates. A Ray Train loop of the user's may tell them, and runs that others made may too. Where
nothing but time is known, time stands for the updates: then times to a target come out as measured, and no figure in
updates or examples is shown (`answers.judged`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self

from scalestudy.experiments.analysis.measures.trial import Epoch, Trial
from scalestudy.experiments.analysis.measures.usable import COUNTED, Usable, without_timing_runs
from scalestudy.experiments.spec.study_spec import StudySpec

STEPS_A_SECOND = 1000.0
"""Where nothing but time is known, a millisecond counts as a step."""
TIMES_ALONE = (
    "nothing but the runs' times is known, no updates or epochs: say which column has them (--column step=NAME, "
    "--column epoch=NAME)"
)
SET_UNKNOWN = "the size of the training set is not known, so epochs tell no updates: --set train_samples=N"
LOOP_TELLS_NONE = (
    "some report of the loop tells no steps: call scalestudy.step(samples) in it, or name its examples in "
    "workload.metrics.samples"
)


@dataclass(frozen=True, kw_only=True)
class Progress:
    """What the records of a study say of how far a training is."""

    unit: Literal["steps", "epochs", "seconds"] = "steps"
    """steps: its updates are known. epochs: they are, up to one factor. seconds: nothing but its time."""
    why: str = ""
    """Why a figure in updates or examples is not known, as a clause; "": it is."""

    @classmethod
    def of(cls, spec: StudySpec, trials: Sequence[Trial]) -> Self:
        """Return it for the trials of a study. A loop tells its steps if every report of every training does."""
        if spec.judged is not None:
            why = {"steps": "", "epochs": SET_UNKNOWN, "seconds": TIMES_ALONE}
            return cls(unit=spec.judged.progress, why=why[spec.judged.progress])
        if not spec.workload.loop:
            return cls()
        counted = [trial for trial in without_timing_runs(trials) if trial.status in COUNTED]
        told = all(epoch.steps_at(trial.batch_size) for trial in counted for epoch in trial.epochs)
        return cls() if told else cls(unit="seconds", why=LOOP_TELLS_NONE)


def with_updates(known: Usable, spec: StudySpec, progress: Progress) -> Usable:
    """Return the trials of a loop with the updates of each period: as told, or by its time where none are known.

    Their periods are timed whole, with the loop's own evaluation. Of other studies the records have the updates.
    """
    if not spec.workload.loop:
        return known
    filled = _by_time if progress.unit == "seconds" else _as_told
    trials = (
        replace(trial, whole_periods=True, epochs=tuple(filled(epoch, trial.batch_size) for epoch in trial.epochs))
        for trial in known.trials
    )
    return replace(known, trials=tuple(trials))


def _as_told(epoch: Epoch, batch_size: int) -> Epoch:
    return epoch._replace(steps=epoch.steps_at(batch_size))


def _by_time(epoch: Epoch, batch_size: int) -> Epoch:
    steps = None if epoch.train_seconds is None else epoch.train_seconds * STEPS_A_SECOND
    return epoch._replace(steps=steps, samples=None, samples_per_second=None, tokens_per_second=None)
