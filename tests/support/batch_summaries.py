"""Shared by the tests of steps over batch sizes: studies whose trainings follow `BatchTruth`."""

from scalestudy.experiments.analysis.answers.analysis import Analysis
from scalestudy.experiments.analysis.answers.efficiency import statistical_efficiency
from scalestudy.experiments.analysis.answers.lr_rule import lr_rule
from scalestudy.experiments.plan.plan import make_plan
from tests.support.batch_studies import BatchTruth, batch_trials
from tests.support.synthetic_studies import spec_of

SPEC = (
    "name: x\ntrain: {{epochs: {epochs}{train}}}\ntargets: {{accuracy: {targets}}}\n"
    "sweep: {{num_gpus: {workers}, batch_size: {batches}, learning_rate: {rates}, seed: {seeds}{sweep}}}\n{more}"
)
DEFAULTS = {
    "epochs": 32,
    "train": "",
    "targets": "[0.8]",
    "workers": "[1]",
    "batches": "[64, 128, 256, 512, 1024]",
    "rates": "[0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2]",
    "seeds": "[0, 1, 2]",
    "sweep": "",
    "more": "",
}


def study(truth=None, *, draw=0, law=None, endings=None, **text):
    """Spec, plan and trials."""
    spec = spec_of(SPEC.format(**{**DEFAULTS, **text}))
    plan = make_plan(spec)
    return spec, plan, batch_trials(plan, truth or BatchTruth(), law, draw=draw, endings=endings)


def analysed(spec, plan, trials, function):
    """A part of the summary, as the summary makes it."""
    analysis = Analysis(spec, plan, trials)
    return function(spec, analysis.tunings(analysis.recommendation))


def efficiency_of(truth=None, **keywords):
    """`statistical_efficiency` of a study."""
    return analysed(*study(truth, **keywords), statistical_efficiency)


def rule_of(truth=None, **keywords):
    """`lr_rule` of a study."""
    return analysed(*study(truth, **keywords), lr_rule)
