"""The laws of docs/formulas.md as pure mathematics: arrays in, small records out. They know nothing of studies.

Imports NumPy and SciPy only.
"""
