"""Imports `experiments/spec/addresses` and no other room."""
