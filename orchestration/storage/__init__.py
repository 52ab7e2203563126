"""Where a study's files are: object stores and their local copy, checkpoints, models, and the lock.

Imports base, cluster, `experiments.{spec,study}` and `training.{checkpoint,whole_file}`.
"""
