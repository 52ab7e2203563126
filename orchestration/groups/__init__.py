"""Imports base, cluster, storage, `experiments/study`, `training`."""
