"""Stage 8, analysis: from trials to figures, verdicts and a recommendation. Pure functions on plain data."""

from experiments.analysis.advice_words import recommendation_lines
from experiments.analysis.recommendation import recommend
from experiments.analysis.summary import predict, summarise
from experiments.analysis.tables import best_rows, book_table
from experiments.analysis.words import answer_lines

__all__ = ["answer_lines", "best_rows", "book_table", "predict", "recommend", "recommendation_lines", "summarise"]
