"""What follows from the measures: recommendation, laws, predictions, verdicts; together summary.json.

Imports spec, plan, laws and measures. No other code parses a sentence made here.
"""
