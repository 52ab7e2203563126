"""The sweep: which trial is next, which is stopped early, and how Ray Tune runs them through the pool.

Imports base, groups, `experiments.{spec,plan}`, `experiments.analysis.{measures,answers}` and `training.records`. The
only room with Tune and Optuna.
"""
