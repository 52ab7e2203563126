"""Warm worker groups: the pool that hands trials to them, and what runs in each Ray Train worker.

Imports base, cluster, storage, `experiments.plan` and `training`. No file here imports Tune or MLflow.
"""
