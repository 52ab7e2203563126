"""The training loop: epochs, steps, evaluation, and everything that one training works with.

Imports the ground floor, models, data and gradient_sync; never checkpoint, which is a hook.
"""
