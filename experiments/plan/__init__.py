"""Imports spec."""
