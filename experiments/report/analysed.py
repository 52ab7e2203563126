"""A study's folder, read and analysed: what the report and the page of a running study begin with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from scalestudy.experiments.analysis.answers.analysis import Analysis
from scalestudy.experiments.analysis.answers.judged import judged_caveats
from scalestudy.experiments.analysis.answers.summary import summary_of
from scalestudy.experiments.plan.plan import Plan
from scalestudy.experiments.report.explorer import explorer_data
from scalestudy.experiments.spec.study_spec import StudySpec
from scalestudy.experiments.spec.yaml_lines import read_yaml
from scalestudy.experiments.study.folder import StudyFolder


@dataclass(frozen=True, kw_only=True)
class AnalysedStudy:
    """The analysis of a study, and its summary with the study's id."""

    spec_yaml: str
    analysis: Analysis
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
        analysis: Analysis | None = None,
    ) -> Self:
        """Read and analyse a study. Raises OSError or ValueError if a file is missing or broken.

        wall_seconds, include_flagged: see `summarise`. fresh_workers: see `write_report`. plan, trials: None reads
        plan.json and trials.jsonl. analysis: of these, if it was made before.
        """
        spec_yaml = folder.spec_file.read_text("utf-8")
        if analysis is None:
            spec = StudySpec.model_validate(read_yaml(spec_yaml).data)
            plan = folder.read_plan() if plan is None else plan
            lines = folder.read_trials() if trials is None else trials
            analysis = Analysis(spec, plan, lines, include_flagged=include_flagged)
        summary = summary_of(analysis, wall_seconds)
        summary["study"]["study_id"] = folder.study_id
        if (judged := folder.read_judged()) is not None:
            summary["judged"] = judged
            summary["caveats"][:0] = judged_caveats(judged)
        if fresh_workers:
            summary["study"]["fresh_workers"] = fresh_workers
            words = f"Every trial got fresh workers: {fresh_workers}."
            summary["caveats"].insert(0, {"kind": "fresh_workers", "words": words})
        return cls(
            spec_yaml=spec_yaml,
            analysis=analysis,
            summary=summary,
            runs_page=folder.runs_page(),
        )

    def page_data(self, *, more_targets: bool = True) -> dict[str, Any]:
        """Return what the page explores: see `explorer_data`."""
        return explorer_data(
            self.analysis,
            self.summary,
            more_targets=more_targets,
            runs_page=self.runs_page,
        )
