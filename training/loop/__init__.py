"""Imports the ground floor, models, data, gradient_sync."""
