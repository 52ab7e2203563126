"""What every command needs first: how it can end, what the process sets, and where it reads.

Imports `experiments.spec.addresses` and `training.exceptions`, and no other room of orchestration.
"""
