"""The recommended cell as a study (`recommend --spec`), and as a torchrun command (`--torchrun`)."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from scalestudy.experiments.analysis.measures.parts import present
from scalestudy.experiments.plan.plan import Plan, make_plan, with_swept
from scalestudy.experiments.spec.reading import parse_study
from scalestudy.experiments.spec.study_spec import StudySpec
from scalestudy.orchestration.base.errors import RequestError
from scalestudy.orchestration.commands.study_commands import Advice, write_spec_file
from scalestudy.orchestration.study.folders import refuse_judged
from scalestudy.orchestration.study.loop_checks import refuse_loop
from scalestudy.orchestration.study.trials import train_config
from scalestudy.training.arguments import make_arguments
from scalestudy.training.section import changed

LONGEST_NAME = 64 - len("-best")
ALWAYS = ("workload.model", "workload.data", "train.epochs", "targets.accuracy")
"""Keys that a written study has even where they are the defaults: they say what it is."""


@dataclass(frozen=True, kw_only=True)
class RecommendedCell:
    """A cell that a study recommends."""

    spec: StudySpec  # a study of the cell alone, which trains to the last epoch
    device: str  # that it ran on

    @classmethod
    def of(cls, advice: Advice) -> RecommendedCell:
        """Return the requested cell. Raises RequestError if there is none."""
        spec, choice = advice.spec, advice.data[advice.role]
        refuse_judged(spec, f"DIR: {advice.study_id}")
        if not present(choice):
            remedy = "ask for another target with --accuracy, or add cells with scalestudy run --extend"
            raise RequestError(f"DIR: {advice.study_id}: no cell is {advice.role}: {choice['why']}", remedy)
        params, plain = choice["params"], spec.to_dict()
        del plain["search"], plain["budget"]
        swept = with_swept(plain, params)
        plain |= {
            "name": f"{spec.name[:LONGEST_NAME]}-best",
            "description": f"The {advice.role} cell of {advice.study_id}: {choice['label']}",
            "workload": swept["workload"],
            "train": swept["train"],
            "sweep": {
                **{key: [params[key]] for key in ("num_gpus", "batch_size", "learning_rate")},
                "seed": _seeds(spec, advice.plan, params),
            },
            "targets": {**plain["targets"], "stop": False},
        }
        return cls(spec=StudySpec.model_validate(plain), device=choice["device"] or "")

    def to_yaml(self) -> str:
        """Return the study as people write one: what differs from the defaults, a line a section."""
        kept = changed(StudySpec, self.spec.to_dict(), always=ALWAYS)
        return yaml.safe_dump(kept, sort_keys=False, allow_unicode=True, default_flow_style=None, width=120)

    def write(self, file: Path) -> Path:
        """Write the study. Raises RequestError if the file exists or can't be written, SpecError if it is not valid."""
        text = self.to_yaml()
        parse_study(text, str(file))
        return write_spec_file(file, text, "--spec")

    def torchrun(self) -> str:
        """Return the command that trains the cell on one machine with its first seed, quoted for a shell.

        Raises RequestError for a Ray Train loop, which such a command can't run.
        """
        refuse_loop(self.spec, "--torchrun", "run the cell with recommend --spec FILE, then scalestudy run FILE")
        trial, resources = make_plan(self.spec).trials[0], self.spec.resources
        config = train_config(trial, ".").replace(data_root=None)  # the machine that trains finds its data
        words = ["torchrun", "--standalone", "--nproc-per-node", str(trial.num_gpus), "-m", "scalestudy.training"]
        words += make_arguments(config)
        if "cuda" in self.device and resources.gpus_per_worker < 1:
            shared = (int(rank * resources.gpus_per_worker) for rank in range(trial.num_gpus))
            words += ["--devices", ",".join(f"cuda:{number}" for number in shared)]
        elif resources.device != "auto":
            words += ["--device", resources.device]
        if self.device == "cpu":
            words += ["--threads", str(resources.cpus_per_worker)]
        return shlex.join(words)


def _seeds(spec: StudySpec, plan: Plan, params: Mapping[str, Any]) -> list[int]:
    """Return the seeds of a cell: the sweep's, else those that its points name."""
    if spec.sweep.seed is not None:
        return list(spec.sweep.seed)
    return list(dict.fromkeys(trial.seed for trial in plan.trials if trial.cell == params))
