"""The laws of docs/formulas.md as pure mathematics: arrays in, small records out, no word of studies.

Imports NumPy and SciPy only.
"""
