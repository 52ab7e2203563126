"""The study spec: what a user may write, checked as a whole, with every problem reported at once.

Imports `training.config` and `training.registry`, which load no torch, and nothing else.
"""
