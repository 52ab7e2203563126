"""Imports spec, plan, measures, laws."""
