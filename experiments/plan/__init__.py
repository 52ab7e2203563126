"""A spec as trials: ids, seeds, order, timing runs, and what they will cost.

Imports spec.
"""
