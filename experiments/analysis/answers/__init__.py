"""What follows from the measures: recommendation, laws, predictions, verdicts; together summary.json.

Imports spec, plan, laws and measures. No sentence made here is taken apart elsewhere.
"""
