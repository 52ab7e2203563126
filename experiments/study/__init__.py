"""Imports spec, plan."""
