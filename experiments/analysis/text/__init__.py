"""Imports measures, plan."""
