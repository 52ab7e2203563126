"""Imports `training."""
