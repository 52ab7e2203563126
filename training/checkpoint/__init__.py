"""Checkpoints: a trial's state in a byte store, written, found again and resumed from."""
