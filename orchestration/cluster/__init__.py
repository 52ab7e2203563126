"""Imports base and `experiments/spec`."""
