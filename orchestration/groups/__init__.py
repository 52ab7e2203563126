"""Warm worker groups: the pool that hands trials to them, and what runs in each Ray Train worker.

Imports base, cluster, storage, `experiments.{plan,study}` and `training`. The pool knows neither Tune nor MLflow.
"""
