"""Imports all rooms above."""
