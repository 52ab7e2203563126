"""The fingerprint of a study: its code, which this process has imported, and its data, read in a process of their own.

That process (`main`) keeps torch and what the user's code starts out of this one, within a limit of time. What can't be
opened here, such as data on the cluster's storage alone, stops no study: it is unknown.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

from scalestudy.experiments.plan.plan import TrialPlan
from scalestudy.experiments.spec.study_spec import StudySpec
from scalestudy.orchestration.base.child import order_and_answer, run_child
from scalestudy.orchestration.base.waiting import Say, say_nothing
from scalestudy.orchestration.study.callables import modules_of
from scalestudy.orchestration.study.trials import train_config
from scalestudy.training.config import TrainConfig
from scalestudy.training.fingerprint import DataFacts, Fingerprint, data_key

LIMIT_SECONDS = 30.0
"""For all data sets of a study, the process's start included."""


def fingerprint_of(
    spec: StudySpec,
    trials: Iterable[TrialPlan],
    data_root: Path,
    say: Say = say_nothing,
    seen: Mapping[str, DataFacts] | None = None,
) -> Fingerprint:
    """Return the fingerprint of a study. Its callables are imported before.

    trials: whose data are read. say: takes what comes next, if that takes seconds. seen: what is known of data already.
    """
    seen = seen or {}
    data = {data_key(trial.workload): trial for trial in trials}
    own: dict[str, TrainConfig] = {}
    for key, trial in data.items():
        with suppress(ValueError):  # an impossible training, which `check_configs` refuses
            own |= {key: train_config(trial, data_root)} if key and key not in seen else {}
    code = Fingerprint.of_code(modules_of(spec))
    if not own:
        return replace(code, data=seen)
    say(f"some examples of {spec.workload.data}")
    return replace(code, data={**seen, **read_data(own)})


def read_data(configs: Mapping[str, TrainConfig]) -> dict[str, DataFacts]:
    """Return what is known of the data sets of these configs, by their keys, as far as they can be opened."""
    order = [config.to_dict() for config in configs.values()]
    ended = run_child(("-m", __name__), order, LIMIT_SECONDS)
    facts = (DataFacts.from_plain(json.loads(line)) for line in ended.answers)
    return {key: each for key, each in zip(configs, facts, strict=False) if each != DataFacts()}


def main() -> None:
    """Read configs from standard input, and print the facts of each one's data, empty for data that can't be opened."""
    order, answer = order_and_answer()
    from scalestudy.training.data.facts import read_twice

    for each in order:
        try:
            facts = read_twice(TrainConfig.from_dict(each))
        except BaseException:  # the user's code may raise anything
            facts = DataFacts()
        answer(asdict(facts))
    os._exit(0)  # whatever the user's code has started


if __name__ == "__main__":
    main()
