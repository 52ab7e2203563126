"""From trials to figures, verdicts and a recommendation: pure functions on plain data.

The rooms: laws, measures, text, answers. Imports spec and plan. What is named here is imported on first use, because
every command asks a room below for something, and the laws import SciPy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scalestudy.experiments.analysis.answers.analysis import predict, recommend
    from scalestudy.experiments.analysis.answers.summary import summarise
    from scalestudy.experiments.analysis.text.answer import answer_lines
    from scalestudy.experiments.analysis.text.sentences import best_rows, book_table, recommendation_lines

__all__ = ["answer_lines", "best_rows", "book_table", "predict", "recommend", "recommendation_lines", "summarise"]


def __getattr__(name: str) -> Any:
    match name:
        case "predict" | "recommend":
            from scalestudy.experiments.analysis.answers import analysis

            return getattr(analysis, name)
        case "summarise":
            from scalestudy.experiments.analysis.answers import summary

            return summary.summarise
        case "answer_lines":
            from scalestudy.experiments.analysis.text import answer

            return answer.answer_lines
        case "best_rows" | "book_table" | "recommendation_lines":
            from scalestudy.experiments.analysis.text import sentences

            return getattr(sentences, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
