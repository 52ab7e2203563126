"""Imports spec, plan, laws."""
