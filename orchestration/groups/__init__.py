"""Warm worker groups: the pool that hands trials to them, and what runs in each Ray Train worker.

Imports base, cluster, storage, `experiments.plan`, and the ground floor, loop and checkpoint of `training`. No file
here imports Tune or MLflow.
"""
