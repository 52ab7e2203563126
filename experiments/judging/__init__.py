"""Runs that others made, read and judged: what they hold, what is unfair in them, and the study that they make."""
