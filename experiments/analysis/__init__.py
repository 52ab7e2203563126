"""From trials to figures, verdicts and a recommendation: pure functions on plain data.

The rooms: laws, measures, text, answers. Imports spec and plan.
"""

from scalestudy.experiments.analysis.answers.analysis import predict, recommend
from scalestudy.experiments.analysis.answers.summary import summarise
from scalestudy.experiments.analysis.text.answer import answer_lines
from scalestudy.experiments.analysis.text.sentences import best_rows, book_table, recommendation_lines

__all__ = ["answer_lines", "best_rows", "book_table", "predict", "recommend", "recommendation_lines", "summarise"]
