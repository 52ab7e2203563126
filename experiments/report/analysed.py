"""A study's folder, read and analysed: what the report and the page of a running study begin with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from scalestudy.experiments.analysis.answers.posterior import Posterior
from scalestudy.experiments.analysis.answers.summary import summarise_cells
from scalestudy.experiments.analysis.answers.target_times import TargetTimes, times_to
from scalestudy.experiments.analysis.measures.cells import gather
from scalestudy.experiments.analysis.measures.metric import StudyMetric
from scalestudy.experiments.analysis.measures.usable import usable
from scalestudy.experiments.plan.plan import Plan
from scalestudy.experiments.report.explorer import explorer_data
from scalestudy.experiments.spec.study_spec import StudySpec
from scalestudy.experiments.spec.yaml_lines import read_yaml
from scalestudy.experiments.study.folder import StudyFolder


@dataclass(frozen=True, kw_only=True)
class AnalysedStudy:
    """Spec, posterior, the cells' times to the spec's targets, and the summary with the study's id."""

    spec_yaml: str
    spec: StudySpec
    posterior: Posterior
    by_target: Mapping[float, TargetTimes]
    summary: dict[str, Any]
    runs_page: str | None  # of its experiment in MLflow

    @classmethod
    def of(
        cls,
        folder: StudyFolder,
        wall_seconds: float | None = None,
        *,
        fresh_workers: str = "",
        include_flagged: bool = False,
        plan: Plan | None = None,
        trials: Sequence[Mapping[str, Any]] | None = None,
    ) -> Self:
        """Read and analyse a study. Raises OSError or ValueError if a file is missing or broken.

        wall_seconds, include_flagged: see `summarise`. fresh_workers: see `write_report`. plan, trials: None reads
        plan.json and trials.jsonl.
        """
        spec_yaml = folder.spec_file.read_text("utf-8")
        spec = StudySpec.model_validate(read_yaml(spec_yaml).data)
        plan = folder.read_plan() if plan is None else plan
        chosen = usable(folder.read_trials() if trials is None else trials)
        cells = gather(plan, chosen, StudyMetric.of(spec.workload))
        posterior = Posterior(spec, cells, include_flagged=include_flagged)
        by_target = times_to(posterior, spec.targets.accuracy, spec.targets.price_per_gpu_hour)
        summary = summarise_cells(
            spec,
            plan,
            chosen,
            cells,
            wall_seconds,
            posterior=posterior,
            by_target=by_target,
        )
        summary["study"]["study_id"] = folder.study_id
        if fresh_workers:
            summary["study"]["fresh_workers"] = fresh_workers
            words = f"Every trial got fresh workers: {fresh_workers}."
            summary["caveats"].insert(0, {"kind": "fresh_workers", "words": words})
        return cls(
            spec_yaml=spec_yaml,
            spec=spec,
            posterior=posterior,
            by_target=by_target,
            summary=summary,
            runs_page=folder.runs_page(),
        )

    def page_data(self, *, more_targets: bool = True) -> dict[str, Any]:
        """Return what the page explores: see `explorer_data`."""
        return explorer_data(
            self.spec,
            self.posterior,
            self.summary,
            self.by_target,
            more_targets=more_targets,
            runs_page=self.runs_page,
        )
