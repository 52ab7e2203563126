"""Filters by which MLflow finds the runs of a study or a cell. It knows two quotation marks and no escapes."""

from collections.abc import Mapping
from typing import Any

from scalestudy.experiments.study.mlflow_limits import fitted_params

STUDY_ID = "scalestudy.study_id"
"""Tag of every run of a study."""


def study_filter(study_id: str) -> str:
    """Return the filter for a study's runs: other studies may have the same experiment."""
    return f"tags.`{STUDY_ID}` = {_quoted(study_id)}"


def cell_filter(params: Mapping[str, Any], study_id: str) -> str | None:
    """Return the filter for a cell's runs in its study; None if a value can't be written."""
    texts, _ = fitted_params(params.items())
    if any("'" in text and '"' in text for text in texts.values()):
        return None
    wanted = [f"params.`{key}` = {_quoted(text)}" for key, text in texts.items()]
    return " and ".join([*wanted, study_filter(study_id)])


def _quoted(text: str) -> str:
    """Return a text in a filter. One with both quotation marks can't be written."""
    return f'"{text}"' if "'" in text else f"'{text}'"
