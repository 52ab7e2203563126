"""Checkpoints as bytes under names, with a manifest that is written last.

Imports the ground floor and loop, whose hook it is.
"""
