"""From trials to figures, verdicts and a recommendation. Pure functions on plain data."""

from scalestudy.experiments.analysis.answers.recommendation import recommend
from scalestudy.experiments.analysis.answers.summary import predict, summarise
from scalestudy.experiments.analysis.text.advice import best_rows, book_table, recommendation_lines
from scalestudy.experiments.analysis.text.answer import answer_lines

__all__ = ["answer_lines", "best_rows", "book_table", "predict", "recommend", "recommendation_lines", "summarise"]
