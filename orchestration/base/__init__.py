"""What every command needs first: its exit status, the process's environment, and the folders it reads.

Imports `experiments.spec.addresses` and `training.exceptions`, and no other room of orchestration.
"""
